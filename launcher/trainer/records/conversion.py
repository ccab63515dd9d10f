"""Convert staged text to record files: every row goes through the program's parse() once, in parallel.

The launcher runs it as a helper process (launcher/io/helper_protocol.py) after staging. A trainer that finds
no records converts the text itself. Records are reused as long as text, program, options and side tables are
the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from launcher.dataprep.csv_records import RowPlaces
from launcher.errors import DataError, UnfitError
from launcher.io import cgroup_memory, disk_space, files
from launcher.io.helper_protocol import main
from launcher.trainer import program_loader
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.records import record_files
from launcher.trainer.records.record_files import RecordFile, Records
from launcher.trainer.records.row_parsing import parse_records, record_dtype
from launcher.trainer.training_log import ReportTimer

PROCESS_BYTES = 200 << 20
"""Memory that one parsing process may need: a file's records twice, and what the program itself holds."""
CHECKSUMS = "sums.json"
"""Name of the file in which staging writes the sha256 of the files next to it, by file name. The sha256 of other
files is computed here."""

Report = Callable[[str], None]


def _convert_range(
    text: Path, name: str, program: TrainingProgram, folder: Path, part: TextRange
) -> tuple[RecordFile, int]:
    """Parse the lines of `part` to one record file. Return the file and the number of skipped rows."""
    with files.storage_errors(text):
        found, skipped = parse_records(part.read_lines(text), program, RowPlaces(name), part.first)
    return record_files.write_record_file(folder, part.number, found), skipped


_convert: Callable[[TextRange], tuple[RecordFile, int]] | None = None
"""What the parsing processes call. They are forked and read it here, since the user's module cannot be pickled."""


def _convert_in_process(part: TextRange) -> tuple[RecordFile, int]:
    assert _convert is not None  # noqa: S101 - set before the processes are forked
    return _convert(part)


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
    """Return the records of a text file: those in `folder` if they are up to date, else new ones.

    Args:
        name: the file in messages.
        check: called now and then; may raise to stop.
        processes: parsing processes; None to choose by cores and memory.

    Raises:
        DataError: a row is invalid (the message has file, row and column), or there is no usable row.
        StorageError: the disk has not enough free space; raised before anything is parsed.
        UnfitError: a parsing process was killed.
    """
    dtype = record_dtype(program.inputs)
    checksums = files.read_json(text.parent / CHECKSUMS) or {}
    with files.storage_errors(text):
        if not text.is_file():
            raise DataError(
                f"{text} is missing: the data Job did not write it, or it was not staged. Fix: start the run "
                "again with another runId"
            )
        key = _origin_digest(program, checksums.get(text.name) or files.sha256_file(text, check))
    found = Records.open(folder, dtype, key)
    if found is not None:
        report(f"{name}: using {found.rows:,} rows that were parsed before")
        return found
    with files.storage_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        parts = list(divide_text(text, record_files.rows_per_file(dtype), check))
    rows = sum(part.rows for part in parts)
    what = f"parsing {name} ({rows:,} rows of {dtype.itemsize} bytes each)"
    disk_space.require_space(folder, rows * dtype.itemsize, what, disk_space.ENLARGE_WORK_VOLUME)
    began = time.monotonic()
    written: list[RecordFile] = []
    skipped = 0
    converts = partial(_convert_range, text, name, program, folder)
    converted = _convert_parts(converts, name, parts, processes or _process_count(len(parts)))
    with contextlib.closing(converted):
        timer = ReportTimer()
        for file, left_out in converted:
            check()
            skipped += left_out
            if file.rows:
                written.append(file)
            if timer.due():
                done = sum(f.rows for f in written) + skipped
                report(_progress(name, done, rows, time.monotonic() - began))
    records = record_files.finish_records(program, folder, written, name, skipped)
    records.write_index(key)
    seconds = time.monotonic() - began
    report(f"{name}: parsed {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 1e-9):,.0f} rows/s)")
    return records


def _progress(name: str, done: int, rows: int, seconds: float) -> str:
    speed = done / seconds
    return (
        f"parsing {name}: {100 * done / rows:.0f} % ({done:,} of {rows:,} rows), {speed:,.0f} rows/s, about "
        f"{(rows - done) / speed:.0f} s left"
    )


def _origin_digest(program: TrainingProgram, text: str) -> str:
    """Return the digest of all that the records are made from. `text`: sha256 of the text file."""
    about = {
        "text": text,
        "program": files.folder_sha256(program.path.parent),
        "config": program.path.name,
        "options": {key: repr(value) for key, value in program.job.options.items()},
        "tables": {name: files.sha256_file(path) for name, path in program.job.tables.items()},
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _process_count(files_to_write: int) -> int:
    """Return how many processes to start.

    That is at most one per core, one per file, and as many as fit into a quarter of the memory, but at least one.
    """
    fit = cgroup_memory.usable_bytes() // 4 // PROCESS_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit, files_to_write))


def _convert_parts(
    converts: Callable[[TextRange], tuple[RecordFile, int]], name: str, parts: list[TextRange], processes: int
) -> Generator[tuple[RecordFile, int], None, None]:
    """Yield what `converts` returns for each range, in order, so that the first invalid row is reported."""
    global _convert  # noqa: PLW0603 - see there
    if processes == 1 or len(parts) < 2:
        yield from map(converts, parts)
        return
    _convert = converts
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"))
    try:
        yield from pool.map(_convert_in_process, parts)
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
    test: bool,
    report: Report = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[Records]:
    """Convert a staged shard and, with `test`, the test set to records.

    Args:
        data: folder of the staged files.
        folder: folder for the records, which are written to train/ and test/ in it.
        report: called now and then with the progress.
        check: called now and then; raises if the conversion must stop.

    Returns:
        [records of the shard], or [records of the shard, records of the test set].
    """
    names = {"train": f"{rank}/data/train.txt"} | ({"test": "test.txt"} if test else {})
    return [
        convert_text(program, data / f"{kind}.txt", name, folder / kind, report=report, check=check)
        for kind, name in names.items()
    ]


def convert(request: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a pod's staged shard to records, in the helper process that the launcher started for it.

    `FleetRuntime.conversion` makes the request.
    """
    data = Path(request["data"])
    program = program_loader.load_program(Path(request["config"]), data / "tables", tuple(request["options"]))
    report = partial(print, flush=True)  # the process's log
    convert_staged(
        program, data, Path(request["records"]), request["rank"], test=request["test"], report=report
    )
    return {}


BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class TextRange:
    """Refers to consecutive lines of a text file."""

    number: int
    """Counts the ranges, from 0."""
    offset: int
    """Position in bytes of the first line."""
    first: int
    """Row number of the first line, from 1."""
    rows: int

    def read_lines(self, text: Path) -> Iterator[str]:
        """Yield the lines of this range, with their newlines. Bytes that are not UTF-8 are escaped."""
        with text.open("rb") as file:
            file.seek(self.offset)
            for _ in range(self.rows):
                yield file.readline().decode("utf-8", "surrogateescape")


def divide_text(text: Path, rows: int, check: Callable[[], None]) -> Iterator[TextRange]:
    """Yield ranges of `rows` lines; the last one may be shorter. `check` may raise to stop."""
    number = offset = at = first = lines = 0
    last = b"\n"
    with text.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            check()
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            while lines + len(ends) - first >= rows:
                end = at + int(ends[first + rows - lines - 1]) + 1
                yield TextRange(number, offset, first + 1, rows)
                number, offset, first = number + 1, end, first + rows
            lines += len(ends)
            at += len(block)
            last = block[-1:]
    if at > offset:
        yield TextRange(number, offset, first + 1, lines - first + (last != b"\n"))


if __name__ == "__main__":
    main(convert)
