"""Tests of the binary files of table rows, without Paddle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from launcher.errors import DataError
from launcher.io import files
from launcher.trainer import row_files
from launcher.trainer.row_files import HEADER
from launcher.trainer.server_tables import FIRST_WEIGHT, OptimizerRule, RowShape, TableRows

SHARDS, SHARD = 12, 5
ADAM = RowShape(4, "adam")
LONG = np.arange(1, 100, dtype=np.uint64) * np.uint64(SHARDS) + np.uint64(SHARD)
SHORT = LONG[-20:] + np.uint64(SHARDS * 1000)


def values(ids: np.ndarray, columns: int) -> np.ndarray:
    return np.random.default_rng(len(ids)).normal(size=(len(ids), columns)).astype(np.float32)


def write(folder: Path, shape: RowShape = ADAM) -> Path:
    """Write a file with rows of both kinds, the longer ones in two chunks."""
    path = folder / row_files.file_name("words", SHARD)
    path.parent.mkdir(parents=True)
    long, short = (values(ids, columns) for ids, columns in zip((LONG, SHORT), shape.columns, strict=True))
    written = row_files.write_shard(
        path, shape, SHARD, SHARDS, [(LONG, [long[:60], long[60:]]), (SHORT, [short])]
    )
    assert (written.bytes, written.sha256) == (path.stat().st_size, files.sha256_file(path))
    return path


def read(path: Path, shape: RowShape = ADAM, shards: int = SHARDS) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(row_files.read_shard(path, shape, shards, files.sha256_file(path)))


@pytest.mark.parametrize("shape", [ADAM, RowShape(1, "adam"), RowShape(16, "sgd"), RowShape(3, "adagrad")])
def test_rows_of_both_kinds_read_back_exactly(tmp_path: Path, shape: RowShape) -> None:
    path = write(tmp_path, shape)
    [(ids, long), (late, short)] = read(path, shape)
    assert (ids.tolist(), late.tolist()) == (LONG.tolist(), SHORT.tolist())
    assert np.array_equal(long, values(LONG, shape.columns[0]))
    assert np.array_equal(short, values(SHORT, shape.columns[1]))
    rows = TableRows.concatenate(row_files.read_rows([(path, None)], shape, SHARDS), shape.width)
    assert rows.vectors.shape == (119, shape.width)
    assert np.array_equal(rows.vectors[-20:, 0], short[:, FIRST_WEIGHT])
    assert not rows.vectors[-20:, 1:].any(), "a row without a vector has zeros, as the servers answer"


def test_the_documented_offsets_are_those_of_the_file(tmp_path: Path) -> None:
    """A user reads the file with numpy alone."""
    path = write(tmp_path)
    header = np.fromfile(path, HEADER, 1)[0]
    assert HEADER.itemsize == 64
    assert (header["magic"], header["width"], header["rule"]) == (b"PT-ROWS", 4, b"adam")
    long, short = header["rows"].tolist()
    columns = int(header["columns"][0])
    assert np.array_equal(np.fromfile(path, "<u8", long, offset=64), LONG)
    found = np.fromfile(path, "<f4", long * columns, offset=64 + 8 * (long + short)).reshape(long, columns)
    assert np.array_equal(found, values(LONG, columns))


def test_new_rows_have_the_optimizers_state_before_its_first_step() -> None:
    vectors = values(LONG, 4)
    rows = ADAM.fresh(vectors, OptimizerRule("adam", 0.1, 0.9, 0.99, 1e-8))
    assert np.array_equal(ADAM.vectors(rows), vectors)
    assert rows[0, [8, 9, -2, -1]].tolist() == np.array([0.9, 0.99, 0.9, 0.99], np.float32).tolist()
    assert np.count_nonzero(rows[0]) == 4 + 4
    assert (
        RowShape(4, "sgd").fresh(vectors, OptimizerRule("sgd", 0.1)).shape[1] == RowShape(4, "sgd").columns[0]
    )


def set_header(**fields: object) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        header = np.frombuffer(content, HEADER, 1).copy()
        for key, value in fields.items():
            header[key] = value
        content[: HEADER.itemsize] = header.tobytes()

    return change


def repeat_id(content: bytearray) -> None:
    content[72:80] = content[64:72]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.clear(), "truncated: it has 0 bytes"),
        (lambda content: content.pop(), "but its header describes"),
        (lambda content: content.append(0), "but its header describes"),
        (set_header(magic=b"PK"), "not a file of rows"),
        (set_header(version=2), "not a file of rows of version 1: .* version 2"),
        (set_header(rows=[2**63, 2**63]), "but its header describes"),
        (set_header(rows=[2**61, 0]), "but its header describes"),
        (set_header(columns=[0, 0]), "must have those of"),
        (set_header(width=0), "must have those of"),
        (set_header(width=2**32 - 1), "must have those of"),
        (set_header(width=5), "must have those of"),
        (set_header(rule=b"sgd"), "must have those of"),
        (set_header(rule=b"\xff"), "must have those of"),
        (set_header(shard=6), "shard 6 of 12"),
        (set_header(shards=0), "shard 5 of 0"),
        (repeat_id, "not ascending"),
    ],
)
def test_a_damaged_file_is_one_error_before_memory_is_reserved(
    tmp_path: Path, change: Callable[[bytearray], None], reason: str
) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read(path)


def test_other_bytes_than_were_saved_are_found_by_sha256_and_ids_by_their_checksum(tmp_path: Path) -> None:
    path = write(tmp_path)
    saved, content = files.sha256_file(path), path.read_bytes()
    assert [ids.tolist() for ids in row_files.map_ids(path, ADAM, verify=True)] == [
        LONG.tolist(),
        SHORT.tolist(),
    ]
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"shard-00005.rows has changed since it was saved"):
        list(row_files.read_shard(path, ADAM, SHARDS, saved))
    row_files.map_ids(path, ADAM, verify=True)
    path.write_bytes(content[:64] + bytes([content[64] ^ 1]) + content[65:])
    row_files.map_ids(path, ADAM, verify=False)
    with pytest.raises(DataError, match=r"the ids in shard-00005.rows have changed"):
        row_files.map_ids(path, ADAM, verify=True)
