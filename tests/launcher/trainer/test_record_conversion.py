"""Tests of converting text to record files, and of reading these in a seeded order."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.dataprep.csv_records import RowPlaces
from launcher.errors import DataError, SettingsError, StorageError, UnfitError
from launcher.io import files
from launcher.trainer import conversion, record_files, trial_data
from launcher.trainer.record_files import Arrays
from tests.launcher.dataprep.conftest import make_pod
from tests.launcher.supervisor.failing_calls import fail_calls

from .conftest import STUBS, load, write_program

PROGRAM = (
    STUBS
    + """
COLUMNS = ("number", "ids")
LABEL = "number"
OPTIONS = {"skip": -1}
def inputs(job): return {"ids": Ids(3), "number": Real()}
def parse(row, job):
    if int(row["number"]) == job.options["skip"]:
        return None
    return {"ids": [int(each) for each in row["ids"].split()], "number": float(row["number"])}
"""
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(record_files, "FILE_ROWS", 100)
    return write_program(tmp_path / "own", PROGRAM)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each process parse 500 bytes of text at a time."""
    monkeypatch.setattr(conversion, "RANGE_BYTES", 500)


def write(folder: Path, rows: int, extra: Iterable[str] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    text = folder / "train.txt"
    lines = [f"{i}\t{i} {i + 1}" for i in range(rows)]
    text.write_text("".join(f"{line}\n" for line in [*lines, *extra]))
    return text


def made(
    path: Path, tmp_path: Path, rows: int, processes: int = 1, *arguments: str, extra: Iterable[str] = ()
) -> record_files.Records:
    text = write(tmp_path / "data", rows, extra)
    return conversion.convert_text(load(path, *arguments), text, "f", tmp_path / "rec", processes=processes)


def numbers(batches: Iterable[Arrays]) -> list[list[int]]:
    return [batch["number"][:, 0].astype(int).tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def test_batches_have_every_row_once_and_sizes_differ_by_at_most_one(path: Path, tmp_path: Path) -> None:
    data = made(path, tmp_path, 1037)
    found = numbers(data.batches(50, (1, 0, 0)))
    assert data.rows == 1037
    assert len(list((tmp_path / "rec").glob("*.rec"))) == 11
    assert {len(batch) for batch in found} == {20, 21}
    assert sorted(flat(found)) == list(range(1037))


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(path: Path, tmp_path: Path) -> None:
    data = made(path, tmp_path, 1037)
    one, same, other = (numbers(data.batches(50, seed)) for seed in ((1, 0), (1, 0), (1, 1)))
    assert one == same
    assert one != other
    ahead = [b for batch in one[:10] for b in batch]
    assert len({n // 100 for n in ahead}) == record_files.WINDOW_FILES, (
        "the first batches mix a window's files"
    )


@pytest.mark.parametrize("done", [0, 1, 19, 20, 21, 49, 50])
def test_batches_after_the_first_done_ones_are_the_same_as_in_a_full_pass(
    path: Path, tmp_path: Path, done: int
) -> None:
    data = made(path, tmp_path, 1037)
    intact = numbers(data.batches(50, (3, 1)))
    assert numbers(data.batches(50, (3, 1), done)) == intact[done:]


def test_files_of_skipped_batches_are_not_mapped(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made(path, tmp_path, 1000)
    mapped: list[str] = []
    keep = record_files.Records._map
    monkeypatch.setattr(
        record_files.Records, "_map", lambda s, part: mapped.append(part.name) or keep(s, part)
    )
    next(data.batches(10, (1,), 9))
    assert len(mapped) <= record_files.WINDOW_FILES


def test_exactly_one_batch_is_read_ahead(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, keep, read = made(path, tmp_path, 100), record_files.split_inputs, threading.Semaphore(0)

    def split(raw: Any) -> Arrays:
        read.release()
        return keep(raw)

    monkeypatch.setattr(record_files, "split_inputs", split)
    batches = data.batches(10, (1,))
    next(batches)
    assert read.acquire(timeout=10)
    assert read.acquire(timeout=10), "the second batch, which was not requested yet"
    assert not read.acquire(timeout=0.1), "and no third one"


def test_a_rank_with_fewer_rows_than_steps_repeats_rows(path: Path, tmp_path: Path) -> None:
    data = made(path, tmp_path, 3)
    found = numbers(data.batches(8, (1,)))
    assert [len(batch) for batch in found] == [1] * 8
    assert {n for batch in found for n in batch} == {0, 1, 2}
    assert numbers(data.batches(8, (1,), 5)) == found[5:]


def test_blocks_have_the_values_and_the_order_of_the_text(path: Path, tmp_path: Path) -> None:
    data = made(path, tmp_path, 250, extra=[f"250\t{2**64 - 1} {2**63} 5"])
    blocks = list(data.blocks(60))
    assert [len(block["number"]) for block in blocks] == [60, 40, 60, 40, 51]
    ids = np.concatenate([block["ids"] for block in blocks])
    assert ids.dtype == np.int64
    expected = [*([i, i + 1, 0] for i in range(250)), [2**64 - 1, 2**63, 5]]
    assert ids.view(np.uint64).tolist() == expected, "all 64 bits are kept"
    assert (data.read_input("ids") == ids).all()
    assert flat(numbers(data.blocks(60, 90, 210))) == list(range(90, 210))


@pytest.mark.usefixtures("small_ranges")
def test_several_processes_write_the_same_files_as_one(path: Path, tmp_path: Path) -> None:
    made(path, tmp_path, 1037, 1, "--skip=150")
    alone = {p.name: p.read_bytes() for p in (tmp_path / "rec").iterdir()}
    for file in (tmp_path / "rec").iterdir():
        file.unlink()
    data = made(path, tmp_path, 1037, 3, "--skip=150")
    assert {p.name: p.read_bytes() for p in (tmp_path / "rec").iterdir()} == alone
    assert (data.rows, data.skipped) == (1036, 1)
    assert len(alone) > 20, "files of many ranges"


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 50, 1000])
def test_each_line_is_in_one_range_wherever_the_ranges_end(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(conversion, "RANGE_BYTES", size)
    text = write(tmp_path / "data", 101)
    for content in (text.read_bytes(), text.read_bytes().removesuffix(b"\n")):
        text.write_bytes(content)
        data = conversion.convert_text(load(path), text, "f", tmp_path / "rec", processes=1)
        assert flat(numbers(data.blocks(1000))) == list(range(101))


def write_checksums(text: Path, size: int) -> None:
    """Write sums.json as staging does for a text that it copied from two files, the first one of `size` bytes."""
    content = text.read_bytes()
    copied = [
        {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}
        for part in (content[:size], content[size:])
    ]
    (text.parent / conversion.CHECKSUMS).write_text(json.dumps({text.name: copied}))


def test_a_text_with_checksums_of_staging_is_not_hashed_before_it_is_parsed(
    path: Path, tmp_path: Path
) -> None:
    text = write(tmp_path / "data", 500)
    write_checksums(text, 2000)
    with fail_calls("open", "*/train.txt") as opened:
        conversion.convert_text(load(path), text, "f", tmp_path / "rec", processes=1)
    assert opened.hits == 5, (
        "to see its form, to estimate the rows, to parse the only range, and twice to compare the bytes just read"
    )


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("size", [0, 499, 500, 501, 2000])
@pytest.mark.parametrize(
    "damage", [(b"\n90\t", b"\n91\t"), (b"\n90\t", b"\nxx\t"), (b"300\t300 301\n", b""), (b"x", b"")]
)
def test_a_text_that_does_not_read_back_as_it_was_copied_is_a_fault_of_the_pods_disk(
    path: Path, tmp_path: Path, size: int, damage: tuple[bytes, bytes]
) -> None:
    """In turn: a row with another number, a row that cannot be parsed, a truncated text, an intact one."""
    text = write(tmp_path / "data", 301)
    write_checksums(text, size)
    intact = text.read_bytes()
    text.write_bytes(intact.replace(*damage))
    for processes in (1, 2):
        if text.read_bytes() == intact:
            conversion.convert_text(load(path), text, "f", tmp_path / "rec", processes=processes)
            continue
        with pytest.raises(UnfitError, match=r"train\.txt does not read back as it was copied: .* Fix: if"):
            conversion.convert_text(load(path), text, "f", tmp_path / "rec", processes=processes)
        assert not (tmp_path / "rec" / "index.json").exists()


def test_rows_are_parsed_again_only_after_a_change_of_text_program_or_options(
    path: Path, tmp_path: Path
) -> None:
    def times(*arguments: str) -> int:
        text = tmp_path / "data" / "train.txt"
        reports: list[str] = []
        conversion.convert_text(load(path, *arguments), text, "f", tmp_path / "rec", report=reports.append)
        return len([line for line in reports if "parsed 10" in line])

    write(tmp_path / "data", 103)
    assert [times(), times(), times("--skip=5"), times("--skip=5")] == [1, 0, 1, 0]
    write(tmp_path / "data", 104)
    assert [times(), times()] == [1, 0]
    path.write_text(PROGRAM + "\n# another\n")
    assert [times(), times()] == [1, 0]
    (tmp_path / "rec" / "00000-0.rec").unlink()
    assert times() == 1, "a record file was removed"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("7\t-1", r"input ids: .*-1 is not an id: ids are whole numbers from 0 to 2\*\*64-1"),
        ("7\t18446744073709551616", r"input ids: .*18446744073709551616 is not an id"),
        ("7\t1 2 3 4", r"4 ids, but Ids\(3\) takes at most 3 per row\. .*Ids\(3, cut=True\) for the first"),
        ("7", r"has 1 columns, but the program trainer_config\.py reads 2: number, ids"),
        ("nan\t1", r"cannot convert float NaN|invalid literal"),
        ("7\tx", r"invalid literal for int"),
        ("7\\q\t1", r"'\\\\q' is not an escape"),
    ],
)
@pytest.mark.usefixtures("small_ranges")
def test_the_message_about_the_first_invalid_row_has_its_file_and_row_number(
    path: Path, tmp_path: Path, line: str, why: str
) -> None:
    for processes in (1, 2):
        with pytest.raises(DataError, match=rf"f, row 151[: ].*{why}"):
            made(path, tmp_path, 150, processes, extra=[line, *(f"{i}\t1" for i in range(300)), "last\t1"])
        assert not (tmp_path / "rec" / "index.json").exists()


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("processes", [1, 2])
def test_an_invalid_csv_row_is_reported_by_its_line_where_the_file_is_read_and_by_its_text_everywhere(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """The row is record 234 on line 335: the header and 100 records of two lines precede it."""
    monkeypatch.setattr(conversion, "_process_count", lambda _: processes)
    form = trial_data.RowFormat("csv")
    pod = make_pod(tmp_path / "storage")
    more = dict.fromkeys(range(100), "\n")
    rows = [f'{number},"{more.get(number, "")}{number}"\n' for number in range(1000)]
    rows[233] = "233,x\n"
    pod.source(("number,ids\n" + "".join(rows)).encode(), "rows.csv")
    pod.prepare(FORMAT="csv", TEST_FRACTION=0.1)
    rows_csv, program = tmp_path / "storage" / "sources" / "rows.csv", load(path)
    messages = []
    with pytest.raises(DataError) as error:
        trial_data.write_records(program, rows_csv, form, tmp_path / "try", 0.0)
    messages.append(str(error.value))
    found = RowPlaces("rows.csv")
    first = list(trial_data.read_rows(rows_csv, form, found, 300))
    with pytest.raises(DataError) as error:
        record_files.parse_records(first, program, found)
    messages.append(str(error.value))
    for shard in range(3):
        data = tmp_path / f"work-{shard}"
        shutil.copytree(pod.job / str(shard) / "data", data)
        shutil.copy(pod.job / "test.txt", data)
        try:
            conversion.convert_staged(program, data, tmp_path / f"records-{shard}", shard)
        except DataError as error:
            messages.append(str(error))
    tried, checked, *cluster = messages
    assert tried.startswith(f"{rows_csv}, row 234 (line 335): ")
    assert checked.startswith("rows.csv, row 234 (line 335): ")
    assert cluster
    for message in cluster:
        found_row = re.match(r"(\d/data/train\.txt|test\.txt), row (\d+): ", message)
        assert found_row, message
        shard = (pod.job / found_row[1]).read_text().split("\n")
        assert shard[int(found_row[2]) - 1] == "233\tx"
    assert all(r"The row: '233\tx'" in message for message in messages)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ('float("inf" if row["number"] == "7" else 1)', DataError,
         r"f, row 8: .*input number: it is NaN, infinite, or too large for float32\. The row: '7\\t7 8'\. Fix: "),
        ('1 // (7 - int(row["number"]))', SettingsError,
         r"parse\(\) on f, row 8.* at trainer_config\.py:\d+: `.*`: ZeroDivi"),
    ],
)  # fmt: skip
def test_a_fault_of_parse_is_reported_with_the_row(
    path: Path, tmp_path: Path, code: str, error: type[Exception], message: str
) -> None:
    path.write_text(PROGRAM.replace('float(row["number"])', code))
    with pytest.raises(error, match=message):
        made(path, tmp_path, 300, 2)


def test_a_file_whose_rows_are_all_skipped_is_rejected(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f: the program .* cannot use any row .* skipped all 1 rows"):
        made(path, tmp_path, 1, 1, "--skip=0")
    with pytest.raises(DataError, match=r"f has no rows\. Fix: "):
        made(path, tmp_path, 0)


def test_too_few_usable_rows_are_reported_with_their_number(path: Path, tmp_path: Path) -> None:
    """Regression: the message said that parse() had skipped 0 of 0 rows."""
    text, form = write(tmp_path / "data", 1), trial_data.RowFormat()
    few = r"its 1 usable rows are too few: none became part of the test set.*Fix: "
    with pytest.raises(DataError, match=few):
        trial_data.write_records(load(path), text, form, tmp_path / "try", 0.01)
    with pytest.raises(DataError, match=r"skipped all 1 rows"):
        trial_data.first_usable_row(load(path, "--skip=0"), text, form)


def test_a_fault_in_the_first_usable_row_is_reported_with_its_number(path: Path, tmp_path: Path) -> None:
    path.write_text(
        PROGRAM.replace('"ids": [int(each) for each in row["ids"].split()]', '"ids": (-1 for _ in "a")')
    )
    text = tmp_path / "rows"
    text.write_text("1\t2\n1\t2\n7\t3\n")
    with pytest.raises(DataError, match=r"row 3: .*-1 is not an id"):
        trial_data.first_usable_row(load(path, "--skip=1"), text, trial_data.RowFormat())


def test_a_disk_with_too_little_space_is_rejected_before_a_row_is_parsed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(PROGRAM.replace("def parse(row, job):", "def parse(row, job):\n    raise SystemExit"))
    monkeypatch.setattr(files, "free_bytes", lambda _: 1000)
    with pytest.raises(
        StorageError,
        match=r"parsing f \(about 1,000 rows of 28 bytes each\): 28,000 bytes are needed, but 1,000 are free",
    ):
        made(path, tmp_path, 1000)


def test_a_damaged_record_file_is_detected_and_written_again_at_the_next_start(
    path: Path, tmp_path: Path
) -> None:
    data = made(path, tmp_path, 250)
    file = tmp_path / "rec" / "00000-1.rec"
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    with pytest.raises(UnfitError, match=r"00000-1\.rec does not read back"):
        list(data.batches(5, (1,)))
    assert flat(numbers(made(path, tmp_path, 250).blocks(1000))) == list(range(250))


def test_records_with_a_damaged_index_are_written_again(path: Path, tmp_path: Path) -> None:
    made(path, tmp_path, 250)
    index = tmp_path / "rec" / "index.json"
    for old, new in ((b'"rows"', b'"rowt"'), (b'"crc32"', b'"crc33"'), (b'"rows": 1', b'"rows": 9')):
        intact = index.read_bytes()
        index.write_bytes(intact.replace(old, new, 1))
        assert index.read_bytes() != intact
        assert flat(numbers(made(path, tmp_path, 250).blocks(1000))) == list(range(250))


def test_check_labels_gets_the_labels_of_all_record_files(path: Path, tmp_path: Path) -> None:
    path.write_text(
        PROGRAM + "def check_labels(labels):\n"
        "    raise ValueError(f'{labels.shape} {labels.dtype} {labels.min()} {labels.max()}')\n"
    )
    with pytest.raises(DataError, match=r"f: \(250, 1\) float32 0\.0 249\.0"):
        made(path, tmp_path, 250)
    assert not (tmp_path / "rec" / "index.json").exists()
    path.write_text(PROGRAM + "def check_labels(labels): labels.nothing\n")
    with pytest.raises(
        SettingsError, match=r"failed in check_labels\(\) at trainer_config.py:\d+: .* Attribute"
    ):
        made(path, tmp_path, 250)
