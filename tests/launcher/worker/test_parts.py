"""The servers' files of tables, without Paddle."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from launcher import files
from launcher.errors import DataError
from launcher.worker import parts
from launcher.worker.rules import Rule

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


RULES = {
    "adam": Rule("adam", 0.1, 0.9, 0.999, 1e-8),
    "sgd": Rule("sgd", 0.1),
    "adagrad": Rule("adagrad", 0.1, initial=0.1),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width", [1, 4])
def test_a_table_that_is_written_reads_back_bit_by_bit_and_lies_where_each_server_looks(
    tmp_path: Path, rule: str, width: int
) -> None:
    ids = np.array([*range(1, 100), 2**63, 2**64 - 1], np.uint64)
    vectors = np.random.default_rng(1).normal(size=(len(ids), width)).astype(np.float32)
    folder, rows = tmp_path / "000", parts.Rows(ids, vectors)
    dealt = [dict.fromkeys(parts.held(12, 5, server), server) for server in range(5)]
    given = [
        parts.write_table(folder, rows.stretches(), RULES[rule], own, width=width, shards=12) for own in dealt
    ]
    paths = [folder / name for name in files.names(folder)]
    assert [parts.shard(path.name) for path in paths] == list(range(12))
    found = parts.Rows.whole(parts.read_rows(paths, width, rule), width)
    assert np.array_equal(found.ids, ids)
    assert np.array_equal(found.vectors, vectors)
    some = parts.Rows.whole(given, width)
    assert {key % 12 for key in some.ids.tolist()} == set(range(12)), "of each shard"
    assert np.array_equal(some.vectors, vectors[np.searchsorted(ids, some.ids)])
    names = [path.name for path in parts.of_servers(folder, range(1, 2))]
    assert names == [f"part-001-{shard:05d}" for shard in range(3, 6)]
    lines = gzip.decompress((folder / names[1]).read_bytes()).splitlines()
    assert [int(line.split()[0]) for line in lines] == [key for key in ids.tolist() if key % 12 == 4]
    assert {len(line.split()) for line in lines} == {
        6 + width + parts.state(rule, 1) + parts.state(rule, width - 1)
    }


def test_any_number_of_servers_deals_out_every_shard_once() -> None:
    for servers in range(1, 70):
        own = [parts.held(parts.shards(servers), servers, server) for server in range(servers)]
        assert [shard for each in own for shard in each] == list(range(parts.shards(servers)))
        assert all(own), "a server without a shard reads beyond its files"
    assert {parts.shards(servers) for servers in (1, 2, 3, 4, 6, 10, 30)} == {60}
    assert not parts.suits(60, 11)


def test_rows_of_a_plain_array_leave_out_padding_and_what_was_never_trained() -> None:
    table = np.array([[5, 5], [0, 0], [1, 0]], np.float32)
    found = parts.Rows.held(table)
    assert found.ids.tolist() == [2]
    assert found.vectors.tolist() == [[1, 0]]


def test_what_is_read_back_is_told_by_size_sum_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "part-000-00000"
    path.write_bytes(gzip.compress(WIDE + YOUNG * 3 + WIDE.replace(b"16 ", b"32 ", 1)))
    part = parts.read_back(path, 3)
    assert (part.size, part.sha256) == (path.stat().st_size, files.sha256_file(path))
    assert sorted(part.rows) == [16, 32], "the first and the last row"
    assert parts.read_back(path, 0).rows == {}
    empty = tmp_path / "part-000-00001"
    empty.write_bytes(gzip.compress(b""))
    assert parts.read_back(empty, 3).rows == {}


@pytest.mark.parametrize("broken", ["cut", "flipped", "not gzip", "nothing"])
def test_a_torn_part_is_told_by_its_name(tmp_path: Path, broken: str) -> None:
    lines = b"".join(b"%d 0 0 1 1 0 0.%d 1 2 0.81 0.998\n" % (n, n) for n in range(2000))
    data = bytearray(gzip.compress(lines))
    if broken == "flipped":
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "part-001-00004"
    path.write_bytes(
        {"cut": bytes(data[:-20]), "flipped": bytes(data), "not gzip": lines, "nothing": b""}[broken]
    )
    with pytest.raises(DataError, match=r"part-001-00004 is torn|no row of"):
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
