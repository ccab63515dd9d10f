"""Text to records, once: every row goes through the program's parse(), in as many processes as fit.

    python -m launcher.worker.convert '{"data", "config", "options": […], "records", "rank": 0, "test": true}'

is what the launcher runs while it stages (launcher/runtimes/fleet.py); a trainer that finds no records makes
them by itself. Records are kept for as long as text, program, options and side tables stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.data import places
from launcher.errors import EXIT_GANG, EXIT_OK, DataError, LauncherError, StorageError, UnfitError
from launcher.worker import program as programs
from launcher.worker import samples
from launcher.worker.program import Program
from launcher.worker.records import INDEX, VERSION, Part, Records, rows_a_file

BLOCK = 4 << 20
SAY_SECONDS = 5.0
PROCESS_BYTES = 200 << 20
"""What one parsing process may need: a file's records twice, and what the program itself holds."""
SUMS = "sums.json"
"""What staging found out of the files beside it: name → sha256. What it does not name is hashed here."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stretch:
    """The rows of the text that become one file."""

    number: int
    offset: int
    bytes: int
    first: int
    """Its first row, from 1."""
    rows: int


@dataclass(frozen=True)
class _Work:
    """What the parsing processes share; they are forked and find it here."""

    text: Path
    name: str
    program: Program
    folder: Path
    place: samples.Place | None

    def do(self, stretch: Stretch) -> tuple[Part, int]:
        """Makes one file. Returns it and how many rows were skipped."""
        with files.storage(self.text):
            found, skipped = samples.records(
                self._lines(stretch), self.name, self.program, stretch.first, self.place
            )
        path = self.folder / f"{stretch.number:05d}.rec"
        raw = found.view(np.uint8).data
        with files.storage(path):
            path.write_bytes(raw)
        return Part(path.name, len(found), found.nbytes, zlib.crc32(raw)), skipped

    def _lines(self, stretch: Stretch) -> Iterator[str]:
        with self.text.open("rb") as file:
            file.seek(stretch.offset)
            for _ in range(stretch.rows):
                yield file.readline().decode("utf-8", "surrogateescape")


_work: _Work | None = None


def _do(stretch: Stretch) -> tuple[Part, int]:
    assert _work is not None  # noqa: S101 - set before the processes are forked
    return _work.do(stretch)


def prepare(
    program: Program,
    text: Path,
    folder: Path,
    name: str,
    *,
    place: samples.Place | None = None,
    say: Say = lambda _: None,
    check: Callable[[], None] = lambda: None,
    processes: int | None = None,
) -> Records:
    """The records of `text` in `folder`: those that are there, or new ones.

    `name` stands for the text in messages, `place` for a row of it; `check` is called now and then, and may
    raise to end it. Raises `DataError` (file, row, column), `StorageError` before anything is parsed when the
    disk cannot hold them, and `UnfitError` when a parsing process was killed.
    """
    row = samples.row_type(program.inputs)
    known = files.read_json(text.parent / SUMS) or {}
    with files.storage(text):
        if not text.is_file():
            raise DataError(f"there is no {text}: the data Job has not written it, or it was not staged")
        key = _key(program, known.get(text.name) or files.sha256_file(text, check))
    found = Records.open(folder, row, key)
    if found is not None:
        say(f"{name}: {found.rows:,} rows were parsed before")
        return found
    with files.storage(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        stretches = list(_stretches(text, rows_a_file(row), check))
    rows = sum(stretch.rows for stretch in stretches)
    _check_space(folder, name, rows, row.itemsize)
    work = _Work(text, name, program, folder, place)
    began = time.monotonic()
    parts: list[Part] = []
    skipped = 0
    with contextlib.closing(_done(work, stretches, processes or _processes(len(stretches)))) as done:
        say_at = began + SAY_SECONDS
        for part, left_out in done:
            check()
            skipped += left_out
            if part.rows:
                parts.append(part)
            now = time.monotonic()
            if now >= say_at:
                say_at = now + SAY_SECONDS
                say(_progress(name, sum(p.rows for p in parts) + skipped, rows, now - began))
    if not parts:
        raise samples.no_rows(name, program, rows)
    _check_labels(folder, name, program, row, parts)
    index = {"version": VERSION, "key": key, "skipped": skipped, "files": [asdict(part) for part in parts]}
    files.write_json(folder / INDEX, files.sealed(index))
    seconds = time.monotonic() - began
    say(f"{name}: parsed {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 1e-9):,.0f} a second)")
    return Records(folder, row, tuple(parts), skipped)


def _progress(name: str, done: int, rows: int, seconds: float) -> str:
    speed = done / seconds
    return (
        f"parsing {name}: {100 * done / rows:.0f} % ({done:,} of {rows:,} rows), {speed:,.0f} rows/s, about "
        f"{(rows - done) / speed:.0f} s left"
    )


def _key(program: Program, text: str) -> str:
    """Digest of all that decides the records."""
    about = {
        "text": text,
        "program": files.folder_sha256(program.path.parent),
        "config": program.path.name,
        "options": {key: repr(value) for key, value in program.job.options.items()},
        "tables": {name: files.sha256_file(path) for name, path in program.job.tables.items()},
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _stretches(text: Path, rows: int, check: Callable[[], None]) -> Iterator[Stretch]:
    """Cuts the text into stretches of `rows` lines, the last one shorter."""
    number = offset = at = first = lines = 0
    last = b"\n"
    with text.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            check()
            ends: NDArray[np.int64] | None = None
            count = int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            while lines + count - first >= rows:
                if ends is None:
                    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                end = at + int(ends[first + rows - lines - 1]) + 1
                yield Stretch(number, offset, end - offset, first + 1, rows)
                number, offset, first = number + 1, end, first + rows
            lines += count
            at += len(block)
            last = block[-1:]
    if at > offset:
        yield Stretch(number, offset, at - offset, first + 1, lines - first + (last != b"\n"))


def _check_space(folder: Path, name: str, rows: int, row: int) -> None:
    free = files.free_bytes(folder)
    if rows * row > free:
        raise StorageError(
            f"the records of {name} need {rows * row:,} bytes ({rows:,} rows of {row}), but {folder} has "
            f"only {free:,} free. Give the pods' work volume (an emptyDir) more room, or use more trainers."
        )


def _processes(stretches: int) -> int:
    """As many as there are cores and files, as long as a quarter of this pod's memory holds them."""
    fit = _memory() // 4 // PROCESS_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fit, stretches))


def _memory() -> int:
    """Bytes that this pod may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text("ascii")))
    return min(limits)


def _done(work: _Work, stretches: list[Stretch], processes: int) -> Generator[tuple[Part, int], None, None]:
    """Each stretch's file, in order; so the first bad row is the one that is told."""
    global _work  # noqa: PLW0603 - how forked processes get what cannot be pickled: the person's module
    if processes == 1 or len(stretches) < 2:
        yield from map(work.do, stretches)
        return
    _work = work
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"))
    try:
        yield from pool.map(_do, stretches)
    except BrokenProcessPool as error:
        raise UnfitError(
            f"a process that parsed {work.name} was killed, most likely because the pod's memory is too "
            f"small for {processes} of them. Raise resources.limits.memory."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        _work = None


def _check_labels(folder: Path, name: str, program: Program, row: np.dtype[Any], parts: list[Part]) -> None:
    """Lets the program's own `check_labels(labels)` judge all labels of a file. Raises `DataError`."""
    judge = getattr(program.module, "check_labels", None)
    if judge is None:
        return
    path = folder / "labels.tmp"
    with files.storage(path), path.open("wb") as file:
        for part in parts:
            mapped = np.memmap(folder / part.name, row, mode="r")
            file.write(np.ascontiguousarray(mapped[program.label]).data)
    try:
        label = row[program.label]
        judge(np.memmap(path, label.base, mode="r").reshape(-1, *label.shape))
    except ValueError as error:
        raise DataError(f"{name}: {error}") from error
    finally:
        path.unlink()


def staged(
    program: Program,
    data: Path,
    folder: Path,
    rank: int,
    *,
    test: bool,
    say: Say = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[Records]:
    """The records of a staged shard, and of the test set behind them with `test`."""
    names = {"train": f"{rank}/data/train.txt", **({"test": "test.txt"} if test else {})}
    return [
        prepare(
            program,
            data / f"{kind}.txt",
            folder / kind,
            name,
            place=partial(_place, data, name, rank if kind == "train" else None),
            say=say,
            check=check,
        )
        for kind, name in names.items()
    ]


def _place(data: Path, name: str, shard: int | None, row: int) -> str:
    """A row of a staged file as the source has it; as the file has it where no data Job said more."""
    with contextlib.suppress(LauncherError, LookupError, TypeError, ValueError):
        if rows := files.read_json(data / "rows.json"):
            return places.find(rows, shard, row)
    return f"{name}, row {row}"


def _end_with_launcher() -> None:
    """When the launcher is gone, so is this process (the leader of its group), and those that it made."""
    launcher = os.getppid()

    def wait() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(argument: str) -> int:
    """What the module's docstring says; returns the exit code."""
    told = json.loads(argument)
    _end_with_launcher()
    try:
        data = Path(told["data"])
        program = programs.load(Path(told["config"]), data / "tables", tuple(told["options"]))
        say = lambda text: print(text, flush=True)  # noqa: E731, T201 - the process' log is its only voice
        staged(program, data, Path(told["records"]), told["rank"], test=told["test"], say=say)
    except LauncherError as error:
        print(f"\nerror: {error}", flush=True)  # noqa: T201
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return EXIT_GANG
    return EXIT_OK


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
