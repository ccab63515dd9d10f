"""Convert staged text to record files, in parallel: parse each row once with the program's parse().

The launcher runs this module as a helper process (launcher/io/helper_protocol.py) after staging, but not for a small
shard (CONVERT_BYTES in launcher/runtimes/fleet.py). A trainer that finds no records converts the text itself. Records
are used again as long as text, program, options and side tables are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from launcher.dataprep.csv_records import RowPlaces
from launcher.dataprep.prepared_data import has_record_batches
from launcher.errors import DataError, SettingsError, UnfitError
from launcher.io import cgroup_memory, files
from launcher.io.helper_protocol import main
from launcher.trainer import program_loader, record_files
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import RecordFile, Records, parse_chunks, record_dtype
from launcher.trainer.training_log import ReportTimer

PROCESS_BYTES = 200 << 20
"""Memory that one parsing process may need, in bytes: the records of a file twice, and the program's own data."""
CHECKSUMS = "sums.json"
"""Name of a file that staging writes next to the staged files. It has the checksums of the sources that staging copied
into each file: {file name: [{"bytes", "sha256"} of each source, in order]}. If a file is not listed there, this module
computes its sha256."""
RANGE_BYTES = 32 << 20
"""Bytes of text that one process parses at a time. Ranges of a fixed size can be chosen without reading the text."""
SAMPLE_BYTES = 1 << 20
"""Bytes at the beginning of the text from which the number of rows is estimated."""

Report = Callable[[str], None]


class _RangePlaces(RowPlaces):
    """Describes rows of a part of a text file in messages. The part begins at byte `start`.

    To describe a row, it counts the rows before the part, so that the message has the row's number in the file.
    """

    def __init__(self, name: str, text: Path, start: int) -> None:
        super().__init__(name)
        self._text, self._start = text, start

    def describe(self, row: int) -> str:
        with self._text.open("rb") as file:
            while file.tell() < self._start:
                file.readline()
                row += 1
        return super().describe(row)


def read_range(text: Path, start: int) -> Iterator[str]:
    """Yield the lines that begin in the RANGE_BYTES from byte `start` on. Bytes that are not UTF-8 are escaped."""
    with text.open("rb") as file:
        if start:  # skip the rest of a line that begins before `start`
            file.seek(start - 1)
            file.readline()
        at = file.tell()
        for line in file:
            if at >= start + RANGE_BYTES:
                return
            at += len(line)
            yield line.decode("utf-8", "surrogateescape")


def _batch_chunks(
    text: Path, name: str, program: TrainingProgram, start: int
) -> Iterator[tuple[NDArray[Any], int]]:
    """Convert a range of a shard in chunks. Yield each chunk's records and its number of skipped rows.

    The shard has Arrow record batches instead of lines of text. The program's parse_columns() converts the rows. If the
    program has no such function, its parse() converts the rows one by one.

    Args:
        text: the file of the shard.
        name: name of the file for messages.
        program: the training program.
        start: the byte at which the range of RANGE_BYTES begins.
    """
    from launcher.dataprep import parquet_rows

    places, first = RowPlaces(f"{name} (from byte {start})"), 1
    chunk = record_files.rows_per_file(record_dtype(program.inputs))
    for rows in parquet_rows.regroup(parquet_rows.read_shard(text, start, start + RANGE_BYTES), chunk):
        if hasattr(program.module, "parse_columns"):
            columns = parquet_rows.column_arrays(rows)
            yield record_files.parse_columns(columns, rows.num_rows, program, places, first)
        else:
            yield record_files.parse_records(parquet_rows.row_dicts(rows), program, places, first)
        first += rows.num_rows


def _convert_range(  # noqa: PLR0917
    text: Path, name: str, program: TrainingProgram, folder: Path, has_batches: bool, start: int
) -> tuple[list[RecordFile], int]:
    """Parse the range of the text from byte `start` on. Return its record files and the number of skipped rows.

    `has_batches` says whether the file has Arrow record batches instead of lines of text.
    """
    written, skipped = [], 0
    with files.storage_errors(text):
        chunks: Iterator[tuple[NDArray[Any], int]]
        if has_batches:
            chunks = _batch_chunks(text, name, program, start)
        else:
            chunks = parse_chunks(read_range(text, start), program, _RangePlaces(name, text, start))
        for number, (found, left_out) in enumerate(chunks):
            skipped += left_out
            if len(found):
                file_name = f"{start // RANGE_BYTES:05d}-{number}"
                written.append(record_files.write_record_file(folder, file_name, found))
    return written, skipped


class _CopyCheck:
    """Compares a text with the checksums of the files that staging copied into it, to detect a faulty disk.

    Each range is read just after the parsing process has read it. So the text comes from the kernel's page cache, and
    not from the disk again.

    Args:
        text: the file with the text.
        copied: {"bytes", "sha256"} of each file that staging copied into the text, in order.
    """

    def __init__(self, text: Path, copied: list[dict[str, Any]]) -> None:
        self._text, self._copied = text, list(copied)
        self._position = self._start = 0
        self._digest = hashlib.sha256()

    def read_to(self, end: int) -> None:
        """Continue to read the text up to byte `end`, and compare each part that is complete with its checksum.

        Raises:
            UnfitError: a part of the text differs from the file that staging copied.
        """
        with files.storage_errors(self._text), self._text.open("rb") as file:
            file.seek(self._position)
            while self._copied and self._position < end:
                last = self._start + self._copied[0]["bytes"]
                block = file.read(min(files.BLOCK, min(last, end) - self._position))
                self._digest.update(block)
                self._position += len(block)
                if self._position < last and block:
                    continue
                if self._digest.hexdigest() != self._copied.pop(0)["sha256"]:
                    raise UnfitError(
                        f"{self._text} does not read back as it was copied: this pod's own disk is faulty. Fix: if "
                        "this repeats, delete the pod, so that it may run on another node."
                    )
                self._start, self._digest = self._position, hashlib.sha256()

    @contextlib.contextmanager
    def completed(self) -> Iterator[None]:
        """At the end of the `with` block, read the text to its end, and check that it is as it was copied.

        This happens also if the block has rejected a row, because a faulty disk may have changed this row. If the disk
        is faulty, `UnfitError` replaces the error about the row.

        Raises:
            UnfitError: see `read_to`.
        """
        try:
            yield
        except (DataError, SettingsError):
            self.read_to(sys.maxsize)
            raise
        self.read_to(sys.maxsize)


_convert: Callable[[int], tuple[list[RecordFile], int]] | None = None
"""The function that the parsing processes call with the start of a range. The processes are forked, so they have this
variable. It cannot be sent to them, because the user's module cannot be pickled."""


def _convert_in_process(start: int) -> tuple[list[RecordFile], int]:
    assert _convert is not None  # noqa: S101 - set before the processes are forked
    return _convert(start)


def convert_text(
    program: TrainingProgram,
    text: Path,
    name: str,
    folder: Path,
    *,
    report: Report = lambda _: None,
    check: Callable[[], None] = lambda: None,
    processes: int | None = None,
) -> Records:
    """Return the records of a text file. Parse the file if `folder` does not already have its records.

    The records in `folder` are used again if text, program, options and side tables have not changed since the records
    were written. Otherwise the folder is deleted and written again.

    Args:
        program: the training program.
        text: the text file. Its folder may have a file CHECKSUMS of staging.
        name: name of the text file for messages.
        folder: folder of the records.
        report: called now and then with a text about the progress.
        check: called now and then without arguments. If it raises an error, the conversion stops with this error.
        processes: number of parsing processes; None to choose it by cores and memory.

    Raises:
        DataError: the file is missing, a row is invalid (the message has file, row and column), or no row is usable.
        SettingsError: parse(), parse_columns() or check_labels() of the program failed.
        StorageError: the disk has not enough free space (checked before parsing), or cannot be written.
        UnfitError: a parsing process was killed, or the text differs from the files that staging copied.
    """
    dtype = record_dtype(program.inputs)
    checksums = files.read_json(text.parent / CHECKSUMS) or {}
    with files.storage_errors(text):
        if not text.is_file():
            raise DataError(
                f"{text} is missing: the data Job did not write it, or it was not staged. Fix: start the run "
                "again with another runId"
            )
        copied = checksums.get(text.name) or []
        key = _origin_digest(program, copied or files.sha256_file(text, check))
        size = text.stat().st_size
    found = Records.open(folder, dtype, key)
    if found is not None:
        report(f"{name}: using {found.rows:,} rows that were parsed before")
        return found
    with files.storage_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    has_batches = has_record_batches(text)
    rows = _estimate_rows(text, size, has_batches)
    what = f"parsing {name} (about {rows:,} rows of {dtype.itemsize} bytes each)"
    files.require_space(folder, rows * dtype.itemsize, what, files.ENLARGE_WORK_VOLUME)
    began, timer = time.monotonic(), ReportTimer()
    written: list[RecordFile] = []
    done = skipped = 0
    starts = range(0, size, RANGE_BYTES)
    converts = partial(_convert_range, text, name, program, folder, has_batches)
    converted = _convert_ranges(converts, name, starts, processes or _process_count(len(starts)))
    copy_check = _CopyCheck(text, copied)
    with contextlib.closing(converted), copy_check.completed():
        for start, (parts, left_out) in zip(starts, converted, strict=True):
            check()
            copy_check.read_to(start + RANGE_BYTES)
            written += parts
            skipped += left_out
            done = sum(file.rows for file in written) + skipped
            seconds, share = time.monotonic() - began, min(1.0, (start + RANGE_BYTES) / size)
            if timer.due():
                report(
                    f"parsing {name}: {share:.0%} ({done:,} rows), {done / seconds:,.0f} rows/s, about "
                    f"{seconds / share - seconds:.0f} s left"
                )
    finished = record_files.finish_records(program, folder, written, name, skipped)
    finished.write_index(key)
    seconds = time.monotonic() - began
    report(f"{name}: parsed {done:,} rows in {seconds:.1f} s ({done / max(seconds, 1e-9):,.0f} rows/s)")
    return finished


def _estimate_rows(text: Path, size: int, has_batches: bool) -> int:
    if has_batches:
        from launcher.dataprep import parquet_rows

        return parquet_rows.estimate_rows(text)
    with files.storage_errors(text), text.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
    return -(-size * max(1, sample.count(b"\n")) // len(sample)) if sample else 0


def _origin_digest(program: TrainingProgram, text: str | list[dict[str, Any]]) -> str:
    """Return a digest of everything that the records depend on: the text, the program, its options and side tables.

    `text` is the sha256 of the text file, or the entry of the text file in CHECKSUMS.
    """
    about = {
        "text": text,
        "program": files.folder_sha256(program.path.parent),
        "config": program.path.name,
        "options": {key: repr(value) for key, value in program.job.options.items()},
        "tables": {name: files.sha256_file(path) for name, path in program.job.tables.items()},
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _process_count(ranges: int) -> int:
    """Return how many parsing processes to start: at least 1, and at most one for each core and each of the `ranges`.

    Also, all processes together get at most a quarter of the memory, with PROCESS_BYTES for each.
    """
    fit = cgroup_memory.usable_bytes() // 4 // PROCESS_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit, ranges))


def _convert_ranges(
    converts: Callable[[int], tuple[list[RecordFile], int]], name: str, starts: range, processes: int
) -> Generator[tuple[list[RecordFile], int], None, None]:
    """Call `converts` with the start of each range. Yield the results in the order of the ranges.

    With more than one process the ranges are parsed in parallel, in forked processes. Because of the order, the error
    for the first invalid row of the text is raised, even if a later range fails earlier.

    Args:
        converts: parses a range, see `_convert_range`. Its errors are raised.
        name: name of the text file for messages.
        starts: the start of each range in bytes.
        processes: number of processes.

    Raises:
        UnfitError: a process was killed.
    """
    global _convert  # noqa: PLW0603 - see there
    if processes == 1 or len(starts) < 2:
        yield from map(converts, starts)
        return
    _convert = converts
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"))
    try:
        yield from pool.map(_convert_in_process, starts)
    except BrokenProcessPool as error:
        raise UnfitError(
            f"a process that parsed {name} was killed, most likely because the pod's memory is too "
            f"small for {processes} of them. Fix: increase resources.limits.memory."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        _convert = None


def convert_staged(
    program: TrainingProgram,
    data: Path,
    folder: Path,
    rank: int,
    *,
    report: Report = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Records, Records | None]:
    """Convert a staged shard, and the test set if it was staged, to records.

    Each of the two files is converted by `convert_text`, which uses earlier records again. This function raises the
    same errors.

    Args:
        program: the training program.
        data: folder of the staged files train.txt and test.txt.
        folder: folder of the records. Its subfolders train and test get the records of the two files.
        rank: number of the shard, for its name in messages.
        report: called now and then with a text about the progress.
        check: called now and then without arguments. If it raises an error, the conversion stops with this error.

    Returns:
        (records of the shard, records of the test set). The second one is None if the test set was not staged.
    """

    def convert_one(kind: str, name: str) -> Records:
        return convert_text(program, data / f"{kind}.txt", name, folder / kind, report=report, check=check)

    shard = convert_one("train", f"{rank}/data/train.txt")
    return shard, convert_one("test", "test.txt") if (data / "test.txt").is_file() else None


def convert(request: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a pod's staged files to records. The launcher starts a helper process that calls this function.

    `request` comes from `FleetRuntime.conversion`. The result is empty.
    """
    data = Path(request["data"])
    program = program_loader.load_program(Path(request["config"]), data / "tables", tuple(request["options"]))
    report = partial(print, flush=True)  # the process's log
    convert_staged(program, data, Path(request["records"]), request["rank"], report=report)
    return {}


if __name__ == "__main__":
    main(convert)
