"""Tests of `find_row`, which finds the source's file and row of a line of a shard or of the test set."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.dataprep import row_origins
from launcher.dataprep.csv_records import split_fields
from tests.launcher.dataprep.conftest import Pod

PLAIN = [b"%d the text" % number for number in range(1000)]


def check_all(pod: Pod, places_of: dict[bytes, str], shards: int = 3) -> None:
    """Assert that `find_row` returns `places_of[line]` for each line of all shards and of the test set."""
    rows = json.loads((pod.job / "rows.json").read_text())
    manifest = json.loads((pod.job / "manifest.json").read_text())
    assert manifest["rows"]["bytes"] == (pod.job / "rows.json").stat().st_size
    seen = 0
    for shard in range(shards):
        folder = pod.job / str(shard) / "data"
        lines = b"".join(path.read_bytes() for path in sorted(folder.glob("train*.txt"))).split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            assert row_origins.find_row(rows, shard, number) == places_of[line]
        seen += len(lines)
        with pytest.raises(LookupError):
            row_origins.find_row(rows, shard, len(lines) + 1)
    for number, line in enumerate(pod.test(), 1):
        assert row_origins.find_row(rows, None, number) == places_of[line]
    assert seen + len(pod.test()) == len(places_of)


@pytest.mark.parametrize(
    ("values", "part_bytes"),
    [
        ({}, None),
        ({"TEST_FRACTION": 0.2, "SEED": "5"}, None),
        ({"TEST_FRACTION": 0.2, "TEST_ROWS": "30"}, None),  # most of what was held out is trained on
        ({"TEST_FRACTION": 0.2, "TEST_ROWS": "30"}, 2000),  # in several parts
        ({"TEST_FRACTION": 0.2}, 2000),
    ],
)
def test_every_line_of_a_file_has_its_row(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], part_bytes: int | None
) -> None:
    monkeypatch.setattr("launcher.dataprep.splitting.STEP", 64)
    pod.source(b"\n".join(PLAIN))
    pod.prepare(part_bytes=part_bytes, **values)
    check_all(pod, {line: f"file://in.txt, row {row}" for row, line in enumerate(PLAIN, 1)})


def test_every_line_of_a_folder_and_of_a_test_file_has_its_file_and_row(pod: Pod) -> None:
    for name, lines in (("a", PLAIN[:500]), ("b", PLAIN[500:900]), ("test", PLAIN[900:])):
        folder = pod.storage / "sources" / ("test" if name == "test" else "in")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_bytes(b"\n".join(lines))
    pod.environ["PADDLE_LAUNCHER_DATA_SOURCE"] = "file://in"
    pod.prepare(part_bytes=2000, TEST_SOURCE="file://test")
    known = {line: f"file://in/a.txt, row {row}" for row, line in enumerate(PLAIN[:500], 1)}
    known |= {line: f"file://in/b.txt, row {row}" for row, line in enumerate(PLAIN[500:900], 1)}
    check_all(
        pod, known | {line: f"file://test/test.txt, row {row}" for row, line in enumerate(PLAIN[900:], 1)}
    )


def test_a_file_that_is_also_the_test_set_has_its_rows_in_both(pod: Pod) -> None:
    pod.source(b"\n".join(PLAIN))
    pod.prepare(TEST_SOURCE="file://in.txt")
    rows = json.loads((pod.job / "rows.json").read_text())
    assert [row_origins.find_row(rows, None, row) for row in (1, 1000)] == [
        "file://in.txt, row 1",
        "file://in.txt, row 1000",
    ]


@pytest.mark.parametrize(("jumps", "last"), [(row_origins.MAX_JUMPS, 200), (3, 50)])
def test_a_csv_record_has_its_number_and_its_first_line(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, jumps: int, last: int
) -> None:
    """Records 1, 21, 41, 51 do not start on the line after the one before; with 3 stored, 51 has no line."""
    monkeypatch.setattr(row_origins, "MAX_JUMPS", jumps)
    text, known, line = "id,text\n", {}, 2
    for row in range(1, 201):
        known[row] = f"file://in.csv, row {row}" + (f" (line {line})" if row <= last else "")
        more = "" if row % 20 else "\n\n"
        record = f'{row},"so{more}"\n' + ("" if row % 50 else "\n")  # a blank line
        text += record
        line += record.count("\n")
    pod.source(text.encode(), "in.csv")
    pod.prepare(FORMAT="csv", TEST_FRACTION=0.1)
    rows = json.loads((pod.job / "rows.json").read_text())
    found = {
        int(split_fields(line.decode())[0]): row_origins.find_row(rows, shard, number)
        for shard in range(3)
        for number, line in enumerate(pod.lines(shard), 1)
    }
    assert len(found) == 180
    assert found == {row: known[row] for row in found}
