"""The servers' files of tables, without Paddle."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from launcher import files
from launcher.errors import DataError
from launcher.worker import parts

WIDE = b"16 0 0 8.8 88 0 -0.0846907 8.34727 170.871 0.478297 0.993021 -0.105741 0.25 1 2 3 4 0.53 0.99\n"
YOUNG = b"7 0 0 1 1 0 0.5 1 2 0.81 0.998\n"


def test_a_row_is_read_as_the_servers_give_it_also_when_it_is_young() -> None:
    key, values = parts.row(WIDE, 3)
    assert key == 16
    assert values.tolist() == np.array([-0.0846907, -0.105741, 0.25], np.float32).tolist()
    assert parts.row(YOUNG, 3)[1].tolist() == [0.5, 0, 0]
    assert parts.row(YOUNG, 1)[1].tolist() == [0.5]
    with pytest.raises(DataError, match="no row of 3 values"):
        parts.row(b"16 0 0\n", 3)


def test_a_table_that_is_written_reads_back_bit_by_bit_and_lies_where_each_server_looks(
    tmp_path: Path,
) -> None:
    table = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    table[10:20] = 0
    parts.write_table(tmp_path / "000", table, 3)
    assert np.array_equal(parts.read_table(tmp_path / "000", 100, 4), table)
    names = [path.name for path in parts.of_servers(tmp_path / "000", range(1, 2))]
    assert names == [f"part-001-{shard:05d}.gz" for shard in range(4, 8)]
    lines = gzip.decompress((tmp_path / "000" / names[1]).read_bytes()).splitlines()
    keys = [int(line.split()[0]) for line in lines]
    assert keys == [key for key in range(100) if key % 12 == 5 and not 10 <= key < 20]
    with pytest.raises(DataError, match="but the table has 50 rows"):
        parts.read_table(tmp_path / "000", 50, 4)


def test_what_is_read_back_is_told_by_size_sum_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "part-000-00000.gz"
    path.write_bytes(gzip.compress(WIDE + YOUNG * 3 + WIDE.replace(b"16 ", b"32 ", 1)))
    part = parts.read_back(path, 3)
    assert (part.size, part.sha256) == (path.stat().st_size, files.sha256_file(path))
    assert sorted(part.rows) == [16, 32], "the first and the last row"
    assert parts.read_back(path, 0).rows == {}
    empty = tmp_path / "part-000-00001.gz"
    empty.write_bytes(gzip.compress(b""))
    assert parts.read_back(empty, 3).rows == {}


@pytest.mark.parametrize("broken", ["cut", "flipped", "not gzip"])
def test_a_torn_part_is_told_by_its_name(tmp_path: Path, broken: str) -> None:
    lines = b"".join(b"%d 0 0 1 1 0 0.%d 1 2 0.81 0.998\n" % (n, n) for n in range(2000))
    data = bytearray(gzip.compress(lines))
    if broken == "flipped":
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "part-001-00004.gz"
    path.write_bytes({"cut": bytes(data[:-20]), "flipped": bytes(data), "not gzip": lines}[broken])
    with pytest.raises(DataError, match=r"part-001-00004.gz is torn|no row of"):
        parts.read_back(path, 1)


def test_six_digits_are_the_same_and_five_are_not() -> None:
    value = np.array([-0.105741, 1e-9, 12345.6], np.float32)
    assert not parts.differ(np.array([float(f"{v:.6g}") for v in value]), value)
    assert parts.differ(np.array([float(f"{v:.4g}") for v in value]), value)
    assert parts.differ(np.zeros(2), np.zeros(3))


def test_the_server_of_a_file_stands_in_its_name() -> None:
    assert parts.server("tables/000/part-012-00048.gz") == 12
    assert parts.server("tables/001/part-1000.gz") == 1000
    assert parts.server("params.npz") is None
