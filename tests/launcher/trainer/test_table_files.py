"""Tests of reading and writing the files in which servers save tables, without Paddle."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from launcher.errors import DataError, SettingsError
from launcher.io import files
from launcher.trainer import server_tables
from launcher.trainer.server_tables import OptimizerRule, RowShape

FILE, ADAM = Path("table.gz"), RowShape(3, "adam")
WIDE = b"16 0 0 8.8 88 0 -0.0846907 8.34727 170.871 0.478297 0.993021 -0.105741 0.25 1 2 3 4 0.53 0.99\n"
WITHOUT_VECTOR = b"7 0 0 1 1 0 0.5 1 2 0.81 0.998\n"


def test_parse_rows_returns_the_servers_values_and_zeros_for_a_row_without_vector() -> None:
    ids, vectors = server_tables.parse_rows(FILE, [WIDE, WITHOUT_VECTOR], ADAM)
    assert ids.tolist() == [16, 7]
    assert vectors.tolist() == np.array([[-0.0846907, -0.105741, 0.25], [0.5, 0, 0]], np.float32).tolist()
    narrow = server_tables.parse_rows(FILE, [WITHOUT_VECTOR], RowShape(1, "adam"))
    assert narrow.vectors.tolist() == [[0.5]]
    with pytest.raises(
        DataError, match=r"^table\.gz has a damaged line, which is not an id and the numbers of a row"
    ):
        server_tables.parse_rows(FILE, [b"16 0 0\n"], ADAM)


RULES = {
    "adam": OptimizerRule("adam", 0.1, 0.9, 0.999, 1e-8),
    "sgd": OptimizerRule("sgd", 0.1),
    "adagrad": OptimizerRule("adagrad", 0.1, initial=0.1),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width", [1, 4])
def test_a_written_table_reads_back_exactly_and_each_server_finds_its_shards(
    tmp_path: Path, rule: str, width: int
) -> None:
    ids = np.array([*range(1, 100), 2**63, 2**64 - 1], np.uint64)
    vectors = np.random.default_rng(1).normal(size=(len(ids), width)).astype(np.float32)
    folder, rows, shape = tmp_path / "000", server_tables.TableRows(ids, vectors), RowShape(width, rule)
    owners = [dict.fromkeys(server_tables.shards_of_server(12, 5, server), server) for server in range(5)]
    given = [
        server_tables.write_table(folder, rows.chunks(), shape, RULES[rule], own, shards=12) for own in owners
    ]
    paths = [folder / name for name in files.list_names(folder)]
    assert [server_tables.shard_of(path.name) for path in paths] == list(range(12))
    found = server_tables.TableRows.concatenate(server_tables.read_rows(paths, shape), width)
    assert np.array_equal(found.ids, ids)
    assert np.array_equal(found.vectors, vectors)
    samples = server_tables.TableRows.concatenate(given, width)
    assert {key % 12 for key in samples.ids.tolist()} == set(range(12)), "one row of each shard"
    assert np.array_equal(samples.vectors, vectors[np.searchsorted(ids, samples.ids)])
    names = [path.name for path in server_tables.files_of_servers(folder, range(1, 2))]
    assert names == [f"part-001-{shard:05d}" for shard in range(3, 6)]
    lines = gzip.decompress((folder / names[1]).read_bytes()).splitlines()
    assert [int(line.split()[0]) for line in lines] == [key for key in ids.tolist() if key % 12 == 4]
    size = {"adam": 3 * width + 2 + 2, "sgd": width, "adagrad": 2 * width}[rule]
    assert {len(line.split()) for line in lines} == {6 + size}


def test_every_shard_is_assigned_once_for_any_number_of_servers() -> None:
    for servers in range(1, 70):
        own = [
            server_tables.shards_of_server(server_tables.choose_shard_count(servers), servers, server)
            for server in range(servers)
        ]
        assert [shard for each in own for shard in each] == list(
            range(server_tables.choose_shard_count(servers))
        )
        assert all(own), "a server without a shard reads beyond its files"
    assert {server_tables.choose_shard_count(servers) for servers in (1, 2, 3, 4, 6, 10, 30)} == {60}
    assert not server_tables.every_server_has_shards(60, 11)


def test_the_shards_of_an_elastic_run_suffice_for_all_its_numbers_of_servers() -> None:
    shards = server_tables.choose_shard_count(16, range(8, 17))
    assert all(server_tables.every_server_has_shards(shards, servers) for servers in range(8, 17))
    assert shards == 157
    assert server_tables.choose_shard_count(4, range(2, 11)) == 60


def test_usable_ports_nums_are_only_those_that_the_trainers_can_reach() -> None:
    assert server_tables.usable_ports_nums(60, 8) == [1]
    assert server_tables.usable_ports_nums(10, 1) == [1, 2, 3, 4, 5, 10]
    assert server_tables.usable_ports_nums(60, 61) == []


@pytest.mark.parametrize("block", [files.BLOCK, 250], ids=["one block", "blocks of 3 rows"])
def test_read_table_file_returns_size_sha256_ids_and_three_sample_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Regression: which rows of a block were samples depended on Python's hash randomisation."""
    monkeypatch.setattr(files, "BLOCK", block)
    path = tmp_path / "part-000-00000"
    path.write_bytes(gzip.compress(b"".join(WIDE.replace(b"16 ", b"%d " % n, 1) for n in range(1, 22))))
    found, samples, ids = server_tables.read_table_file(path, ADAM)
    assert (found.bytes, found.sha256) == (path.stat().st_size, files.sha256_file(path))
    assert ids.tolist() == list(range(1, 22))
    assert samples.ids.tolist() == [1, 11, 21], "the first, the middle and the last row"
    _, samples, ids = server_tables.read_table_file(path, None)
    assert (samples.ids.tolist(), ids.tolist()) == ([], [])
    empty = tmp_path / "part-000-00001"
    empty.write_bytes(gzip.compress(b""))
    assert len(server_tables.read_table_file(empty, ADAM)[1].ids) == 0


@pytest.mark.parametrize("broken", ["cut", "flipped", "not gzip", "nothing"])
def test_a_damaged_table_file_is_an_error_with_its_name(tmp_path: Path, broken: str) -> None:
    lines = b"".join(b"%d 0 0 1 1 0 0.%d 1 2 0.81 0.998\n" % (n, n) for n in range(2000))
    data = bytearray(gzip.compress(lines))
    if broken == "flipped":
        data[len(data) // 2] ^= 0xFF
    path = tmp_path / "part-001-00004"
    path.write_bytes(
        {"cut": bytes(data[:-20]), "flipped": bytes(data), "not gzip": lines, "nothing": b""}[broken]
    )
    with pytest.raises(DataError, match=r"part-001-00004 is truncated|not a row of"):
        server_tables.read_table_file(path, RowShape(1, "adam"))


def test_values_differ_accepts_six_digits_but_not_four() -> None:
    value = np.array([-0.105741, 1e-9, 12345.6], np.float32)
    assert not server_tables.values_differ(np.array([float(f"{v:.6g}") for v in value]), value)
    assert server_tables.values_differ(np.array([float(f"{v:.4g}") for v in value]), value)
    assert server_tables.values_differ(np.zeros(2), np.zeros(3))


def test_server_of_returns_the_number_in_a_file_name() -> None:
    assert server_tables.server_of("tables/000/part-012-00048.gz") == 12
    assert server_tables.server_of("tables/001/part-1000.gz") == 1000
    assert server_tables.server_of("tables/001/part-012.npz") == 12
    assert server_tables.server_of("params.npz") is None


@pytest.mark.parametrize("total", [1, 2, 5, 20])
@pytest.mark.parametrize("saved_by", [1, 2, 3, 5])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_dense_parameters_of_any_number_of_servers_can_be_read_by_any_other_number(
    tmp_path: Path, total: int, saved_by: int, servers: int
) -> None:
    def parts(count: int) -> list[range]:
        each = total // count + 1
        return [range(total)[n * each : (n + 1) * each] for n in range(count)]

    folder, numbers = tmp_path / "pass-00000/tables/001", np.arange(total, dtype=np.float32)
    folder.mkdir(parents=True)
    once = {"Beta1Pow": np.float32([0.5])}
    for server, part in enumerate(parts(saved_by)):
        own = numbers[part.start : part.stop]
        np.savez(folder / server_tables.dense_file(server), Param=own, Moment1=own + 100, **once)
    names = ["Param", "Moment1", *once]
    found = [
        server_tables.read_dense(folder, names, total, saved_by, part) for part in parts(servers) if part
    ]
    assert np.concatenate([each["Param"] for each in found]).tolist() == numbers.tolist()
    assert np.concatenate([each["Moment1"] for each in found]).tolist() == (numbers + 100).tolist()
    assert all(each["Beta1Pow"].tolist() == [0.5] for each in found)
    for wrong in ((["Param"], total), (names, total + 30)):
        with pytest.raises(
            SettingsError, match=r"^training cannot resume from pass-00000: .*startFromScratch"
        ):
            server_tables.read_dense(folder, *wrong, saved_by, range(1))


def test_shard_of_knows_text_and_binary_files_of_shards() -> None:
    assert server_tables.shard_of("tables/003/shard-00041.rows") == 41
    assert server_tables.shard_of("tables/003/part-000-00041") == 41
    assert server_tables.shard_of("tables/004/part-000.gz") is None
