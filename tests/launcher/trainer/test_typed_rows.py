"""Rows of Parquet files in programs: parse() and parse_columns() on the same rows, and errors that name the data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launcher.dataprep import parquet_rows
from launcher.dataprep.csv_records import RowPlaces
from launcher.errors import DataError, SettingsError
from launcher.program import real_number, whole_number
from launcher.trainer import record_files, trial_data

from .conftest import STUBS, load, write_program

PROGRAM = (
    STUBS
    + """
COLUMNS = ("label", "age", "ids")
TYPED = True
def inputs(job): return {"label": Real(), "age": Real(), "ids": Ids(2)}
def parse(row, job):
    return {**row, "age": np.log1p(row["age"])} if row["age"] >= 0 else None
def parse_columns(columns, job):
    keep = columns["age"] >= 0
    ids = [ids for ids, kept in zip(columns["ids"], keep) if kept]
    return {"label": columns["label"][keep], "age": np.log1p(columns["age"][keep]), "ids": ids}
"""
)
FORM = trial_data.RowFormat("parquet")
LARGE = 2**60  # the next number is an equal float


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return write_program(tmp_path / "own", PROGRAM)


def rows(count: int = 1200, **changes: Any) -> pa.Table:
    """Return a table; every tenth age is negative, and 32 bits are not enough for exact logarithms."""
    ages = [-1.0 if number % 10 == 9 else number / 7 for number in range(count)]
    columns = {
        "label": [number % 2 for number in range(count)],
        "age": pa.array(ages, pa.float32()),
        "ids": [[LARGE, number] for number in range(count)],
    }
    return pa.table({**columns, **changes})


def check(path: Path, table: pa.Table) -> None:
    file = path.parent / "in.parquet"
    pq.write_table(table, file, row_group_size=100)
    trial_data.check_parse_columns(load(path), file, FORM)


def test_parse_and_parse_columns_are_compared_on_the_first_rows_of_several_row_groups(path: Path) -> None:
    check(path, rows())
    late = [[LARGE, number] for number in range(1200)]
    late[950] = [1, 2]
    path.write_text(
        PROGRAM.replace('"ids": ids}', '"ids": [[3, 2] if list(one) == [1, 2] else one for one in ids]}')
    )
    with pytest.raises(
        DataError, match=r"returned \[3, 2\] for input ids of usable row 856, but .* \[1, 2\]"
    ):
        check(path, rows(ids=late))
    late[950], late[1100] = [LARGE, 950], [1, 2]
    check(path, rows(ids=late))  # only CHECKED_ROWS are read
    check(path, rows(0))


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('columns["age"] >= 0', 'columns["age"] > 0', DataError,
         r"returned 899 of the first 1000 rows of \S+in\.parquet, but parse\(\) returned 900\. Fix: "),
        ('for ids, kept', 'for ids, kept in []] + [[ids[0] + 1, ids[1]] for ids, kept', DataError,
         rf"returned \[{LARGE + 1}, 0\] for input ids of usable row 1, but parse\(\) returned \[{LARGE}, 0\]"),
        ("    keep = ", "    raise ValueError('no such age')\n    keep = ", DataError,
         r"rows 1 to 1000 of \S+in\.parquet: parse_columns\(\) of \S+/own/trainer_config\.py: no such age "
         r"\(trainer_config\.py:\d+: `raise .*`\)\. Fix: correct the rows, or parse_columns\(\)"),
        ("    keep = ", "    1 // 0\n    keep = ", SettingsError, r"failed in parse_columns\(\) on rows 1 to 1000"),
    ],
    ids=["other rows", "one id", "rejected", "bug"],
)  # fmt: skip
def test_a_parse_columns_that_differs_or_fails_is_reported(
    path: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    path.write_text(PROGRAM.replace(old, new))
    with pytest.raises(error, match=message):
        check(path, rows())


@pytest.mark.parametrize("function", ["parse", "parse_columns"])
def test_columns_are_taken_by_name_or_all_by_their_position(path: Path, function: str) -> None:
    program, places = load(path), RowPlaces("f")

    def records(table: pa.Table) -> list[Any]:
        [batch] = table.to_batches()
        if function == "parse":
            found, _ = record_files.parse_records(parquet_rows.row_dicts(batch), program, places)
        else:
            columns = parquet_rows.column_arrays(batch)
            found, _ = record_files.parse_columns(columns, batch.num_rows, program, places)
        return found["ids"].tolist()

    expected = [[LARGE, number] for number in range(3)]
    assert records(rows(3)) == expected
    assert (
        records(rows(3).append_column("more", [[1, 2, 3]]).select(["more", "ids", "age", "label"]))
        == expected
    )
    assert records(rows(3).rename_columns(["a", "b", "c"])) == expected
    with pytest.raises(
        DataError, match=r"f has the 4 columns label, a, ids, more, but .* reads 3: label, age, ids"
    ):
        records(rows(3).append_column("more", [[1, 2, 3]]).rename_columns(["label", "a", "ids", "more"]))


def test_a_message_shows_that_a_long_row_is_cut_and_names_the_column_that_is_no_text(path: Path) -> None:
    program, long = load(path), {"label": 1, "age": "x" * 300, "ids": [1]}
    with pytest.raises(SettingsError, match=r"The row: \{'label': 1, 'age': 'x+…\. Fix: "):
        record_files.parse_records([long], program, RowPlaces("f"))
    with pytest.raises(DataError, match=r"f, row 1: .*input age: it is NaN.*float32\. Fix: "):
        record_files.parse_records([{**long, "age": float("inf")}], program, RowPlaces("f"))
    path.write_text(PROGRAM.replace("TYPED = True", ""))
    with pytest.raises(DataError, match=r"column ids of f has list values, which are no text"):
        record_files.parse_records([long], load(path), RowPlaces("f"))


def test_rows_become_dicts_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "DICT_ROWS", 3)
    table = pa.table({"a": range(8), "b": [None, *"bcdefgh"]})
    [batch] = table.to_batches()
    sizes: list[int] = []
    keep = parquet_rows._values
    monkeypatch.setattr(parquet_rows, "_values", lambda column: sizes.append(len(column)) or keep(column))
    found = parquet_rows.row_dicts(batch)
    assert next(found) == {"a": 0, "b": ""}
    assert sizes == [3, 3], "the values of other slices are no Python objects yet"
    assert [row["a"] for row in found] == list(range(1, 8))


@pytest.mark.parametrize("value", [7.5, "7.5", float("nan"), "", None, 10])
def test_a_value_that_is_no_whole_number_of_the_range_is_rejected(value: object) -> None:
    assert [whole_number({"n": good}, "n", 0, 9) for good in (7, 7.0, "7", True)] == [7, 7, 7, 1]
    with pytest.raises(ValueError, match=r"column n is .*, but must be a whole number from 0 to 9"):
        whole_number({"n": value}, "n", 0, 9)
    assert real_number({"n": 7.5}, "n", 0, 9) == 7.5
