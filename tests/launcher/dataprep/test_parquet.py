"""Data from Parquet and Arrow files: columns by name, types, the same split as csv, and errors for damaged files."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.dataprep import parquet_rows
from launcher.errors import DataError, SettingsError

from .conftest import Pod

ROWS = 1000
COLUMNS: dict[str, Any] = {
    "label": pa.array([number % 2 for number in range(ROWS)], pa.int8()),
    "count": pa.array([None if number % 7 == 0 else number for number in range(ROWS)], pa.int32()),
    "city": pa.array([f"city {number}" for number in range(ROWS)]).dictionary_encode(),
    "words": pa.array([[number, number + 1] for number in range(ROWS)]),
    "unused": pa.array([0.5] * ROWS),
}


def written(first: int = 0, count: int = ROWS, form: str = "parquet", **changes: Any) -> bytes:
    """Return a file with some rows of COLUMNS."""
    table = pa.table({**COLUMNS, **changes}).slice(first, count)
    file = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, file, row_group_size=100, compression="none", use_dictionary=False)
    else:
        new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
        with new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    return file.getvalue()


def saved(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def twice() -> bytes:
    return saved(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))


def columnless() -> bytes:
    return saved(pa.table({}))


def rows_of(pod: Pod, *parts: str) -> list[dict[str, Any]]:
    """Return the rows of one file of the prepared data, or of all files of a shard, in order."""
    path = pod.job.joinpath(*parts)
    files = sorted(path.glob("train*.txt")) if path.is_dir() else [path]
    return [row for file in files for batch in parquet_rows.read_shard(file) for row in batch.to_pylist()]


def labels(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (str(row["city"]) for row in rows)


def test_rows_are_split_as_those_of_csv_with_their_types(pod: Pod) -> None:
    pod.source(written(), "in.parquet")
    chosen = {
        "format": "parquet",
        "columns": ["city", "label", "count", "words"],
        "split_count": 3,
        "test_fraction": 0.1,
    }
    manifest = pod.prepare(**chosen)
    shards = [rows_of(pod, str(shard), "data", "train.txt") for shard in range(3)]
    test = rows_of(pod, "test.txt")
    assert shards[0][0].keys() == {"city", "label", "count", "words"}
    by_city = {row["city"]: row for shard in (*shards, test) for row in shard}
    assert by_city["city 14"] == {"city": "city 14", "label": 0, "count": None, "words": [14, 15]}
    assert len(by_city) == ROWS and manifest["lines"] == sum(map(len, shards)) and len(test) == 100

    text = "city,label\n" + "".join(f"city {number},{number % 2}\n" for number in range(ROWS))
    pod.source(text.encode(), "in.csv")
    pod.prepare(format="csv", split_count=3, test_fraction=0.1, data_digest="ofcsv")
    csv = [[line.split(b"\t")[0].decode() for line in pod.lines(shard)] for shard in range(3)]
    assert csv == [list(labels(shard)) for shard in shards]


@pytest.mark.parametrize("form", ["parquet", "stream", "file"])
def test_a_folder_of_files_is_read_and_row_groups_are_divided_between_parts(pod: Pod, form: str) -> None:
    contents = {f"{n}.x": written(n * 500, 500, form) for n in range(2)}
    pod.environ["source"] = pod.folder({**contents, "_SUCCESS": b""})
    size = len(contents["0.x"])
    manifest = pod.prepare(format="parquet", columns=["city"], split_count=2, part_bytes=size // 3 + 1)
    parts = range(manifest["shards"][0]["parts"])
    lines = [len(rows_of(pod, "0", "data", f"train-{part:05d}.txt")) for part in parts]
    filled = len(lines) - lines.count(0)
    assert len(parts) >= 6 and filled > 4 if form == "parquet" else filled == 2, "only Parquet has row groups"
    found = [row for shard in range(2) for row in rows_of(pod, str(shard), "data")]
    assert sorted(labels(found + rows_of(pod, "test.txt"))) == sorted(f"city {n}" for n in range(ROWS))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_(pa.string_view()),
        pa.large_list(pa.dictionary(pa.int32(), pa.string())),
        pa.large_list(pa.string()),
    ],
    ids=str,
)
def test_types_as_polars_writes_them_are_split(pod: Pod, kind: pa.DataType) -> None:
    texts = [f"city {number}" if kind == pa.string_view() else [f"city {number}"] for number in range(ROWS)]
    pod.source(written(city=pa.array(texts, kind), form="file"), "in.arrow")
    pod.prepare(format="parquet", split_count=1, test_fraction=0.1)
    found = [
        row["city"] for name in ("0/data/train.txt", "test.txt") for row in rows_of(pod, *name.split("/"))
    ]
    assert sorted(found) == sorted(texts)


def test_times_in_nanoseconds_become_objects_of_python() -> None:
    numbers = pa.array([1_577_836_800_000_001_001, None])
    zone = numbers.cast(pa.timestamp("ns", "UTC"))
    columns = [zone, numbers.cast(pa.timestamp("ns")), numbers.cast(pa.duration("ns"))]
    [first, second] = parquet_rows.row_dicts(pa.RecordBatch.from_arrays(columns, names=["a", "b", "c"]))
    assert (first["a"].isoformat(), second) == (
        "2020-01-01T00:00:00.000001+00:00",
        {"a": "", "b": "", "c": ""},
    )


def test_columns_are_chosen_by_index(pod: Pod) -> None:
    pod.source(written(), "in.parquet")
    pod.prepare(format="parquet", columns=[2, 0], split_count=1)
    assert rows_of(pod, "0", "data", "train.txt")[3] == {"city": "city 3", "label": 1}


def test_whole_numbers_that_would_lose_digits_are_an_error() -> None:
    column = pa.array([2**60 + 1, None])
    with pytest.raises(DataError, match=r"column a has missing values, and numbers beyond 2\*\*53"):
        parquet_rows.column_arrays(pa.RecordBatch.from_arrays([column], names=["a"]))
    kept = parquet_rows.column_arrays(pa.RecordBatch.from_arrays([column[:1]], names=["a"]))
    assert kept["a"].tolist() == [2**60 + 1]


def test_a_test_source_of_its_own_is_read(pod: Pod) -> None:
    pod.source(written(900, 100), "test.parquet")
    pod.source(written(0, 900), "in.parquet")
    pod.prepare(format="parquet", split_count=1, test_source="file://test.parquet", test_rows=10)
    assert len(rows_of(pod, "test.txt")) == 10
    assert len(rows_of(pod, "0", "data", "train.txt")) == 900


@pytest.mark.parametrize(
    ("content", "settings", "texts"),
    [
        (b"a,b\n1,2\n", {}, ["neither a Parquet nor an Arrow file", "data.format"]),
        (written()[:-40], {}, ["in.parquet is damaged", "complete file"]),
        (written().replace(b"city 7", b"\xff" * 6), {}, ["in.parquet is damaged"]),
        (written(), {"columns": ["town"]}, ["'town'", "label, count, city"]),
        (written(), {"columns": [7]}, ["column 7", "label, count, city"]),
        (written(), {"columns": ["city", 2]}, ["column 'city' exactly once"]),
        (twice(), {}, ["column 'a' exactly once"]),
        (columnless(), {}, ["has no columns"]),
        (written(form="stream")[:5000], {}, ["in.parquet is damaged"]),
    ],
    ids=["text", "cut", "changed", "name", "index", "same", "twice", "none", "stream"],
)
def test_a_file_that_cannot_be_read_is_one_error(
    pod: Pod, content: bytes, settings: dict[str, Any], texts: list[str]
) -> None:
    pod.source(content, "in.parquet")
    with pytest.raises(DataError, match="Fix: ") as error:
        pod.prepare(format="parquet", **settings)
    assert [text for text in texts if text not in str(error.value)] == []


def test_files_with_other_types_are_rejected(pod: Pod) -> None:
    other = written(label=pa.array(["text"] * ROWS))
    pod.environ["source"] = pod.folder({"a.parquet": written(), "b.parquet": other})
    with pytest.raises(DataError, match=r"b.parquet has other columns .*label \(string\).*label \(int8\)"):
        pod.prepare(format="parquet")
    with pytest.raises(DataError, match=r"b.parquet .*label \(string\)"):
        pod.prepare(format="parquet", part_bytes=len(other), run_id="again")


def test_a_row_group_larger_than_the_memory_is_an_error(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows.cgroup_memory, "usable_bytes", lambda: 1000)
    pod.source(written(), "in.parquet")
    with pytest.raises(DataError, match=r"row group 0 has .*data\.resources\.limits\.memory"):
        pod.prepare(format="parquet")


def test_record_batches_are_grouped_again() -> None:
    batches = pa.table({"x": np.arange(100)}).to_batches(max_chunksize=7)
    found = list(parquet_rows.regroup(batches, 30))
    assert [len(batch) for batch in found] == [30, 30, 30, 10]
    assert pa.Table.from_batches(found)["x"].to_pylist() == list(range(100))


def test_an_image_without_pyarrow_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "launcher.dataprep.parquet_rows")
    with pytest.raises(SettingsError, match=r"pyarrow cannot be loaded here.*Fix: pip install pyarrow"):
        importlib.import_module("launcher.dataprep.parquet_rows")
