"""What `python -m launcher try` does: a program on a file of rows, in this one process, without a cluster."""

from __future__ import annotations

import gzip
import itertools
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.data import archive, fields, text
from launcher.data.places import Places
from launcher.data.stream import Peeked, Readable
from launcher.errors import DataError, SettingsError
from launcher.worker import samples
from launcher.worker.books import Pace
from launcher.worker.program import Program
from launcher.worker.records import Part, Records, rows_a_file

Say = Callable[[str], None]
CONFIG = "trainer_config.py"
OWN = Path(__file__).parent.parent / "programs"
"""The programs that come with the launcher."""


@dataclass(frozen=True)
class Form:
    """How a file is written: as the `data` values of the chart have it."""

    csv: bool = False
    delimiter: str = ","
    header: bool = True
    columns: tuple[str | int, ...] = ()
    encoding: str = "utf-8"


def config(given: Path) -> Path:
    """The program's file: `given`, or trainer_config.py in that folder or in the one so called of ours.

    Raises `SettingsError`.
    """
    places = [given, given / CONFIG, OWN / given, OWN / given / CONFIG]
    for place in places:
        if place.is_file():
            return place.resolve()
    ours = ", ".join(sorted(path.parent.name for path in OWN.glob(f"*/{CONFIG}")))
    raise SettingsError(
        f"there is no program {given}: neither a file, nor a folder with a {CONFIG}. "
        f"Those that come with the launcher: {ours}."
    )


def lines(
    file: Path, form: Form, found: Places | None = None, limit: int | None = None, say: Say | None = None
) -> Iterator[str]:
    """The rows of a file, plain or .gz, as a data Job passes them on, counted in `found`.

    `limit`: at most so many rows. `say` is told how far the caller got, now and then. Raises `DataError`.
    """
    try:
        with file.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
            rows = _rows(cast("Readable", stream), str(file), form, found or Places(str(file)))
            size, began, pace = max(1, file.stat().st_size), time.monotonic(), Pace()
            for count, row in enumerate(itertools.islice(rows, limit), 1):
                yield row
                if say is not None and pace.due():
                    share = max(raw.tell() / size, count / limit if limit else 0.0)
                    rate = count / max(time.monotonic() - began, 1e-9)
                    say(f"{file.name}: {count:,} rows parsed, {share:.0%}, {rate:,.0f} rows/s")
    except FileNotFoundError:
        raise DataError(f"there is no file {file}. Name one that is there with --data or --test.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file} is no whole gzip file ({error}). Bring it again.") from error


def _rows(stream: Readable, name: str, form: Form, found: Places) -> Iterator[str]:
    runs = text.segments(stream, name, form.encoding, crlf=form.csv)
    if form.csv:
        runs = text.Csv(form.delimiter, form.header, form.columns).segments(runs, name, found)
    for run in runs:
        yield from run.decode("utf-8", "surrogateescape").split("\n")[:-1]


def begin(
    file: Path, form: Form, places: Places, rows: int, *, member: str, tables: Sequence[str], into: Path
) -> list[str]:
    """The first rows of a source as a data Job reads it, plain, compressed or in an archive.

    Their places are put into `places`, the side tables into the folder `into`. Raises `DataError`.
    """
    found: list[str] = []
    into.mkdir(parents=True, exist_ok=True)
    for part in _parts(file, member, tables):
        if part.table:
            with (into / part.table).open("wb") as copy:
                shutil.copyfileobj(cast("IO[bytes]", part.stream), copy)
        else:
            places.name = part.name
            found = list(itertools.islice(_rows(part.stream, part.name, form, places), rows))
            if not tables:
                break
    return found


def _parts(file: Path, member: str, tables: Sequence[str]) -> Iterator[archive.Part]:
    with file.open("rb") as stream:
        peeked = Peeked(cast("Readable", stream))
        if not member:
            yield archive.whole(peeked, file.name, None)
        elif archive.is_zip(peeked):
            yield from archive.zip_parts(file, file.name, member, tables)
        else:
            yield from archive.tar_parts(peeked, file.name, member, tables)


@dataclass
class _Writer:
    """Records on their way to a folder."""

    folder: Path
    row: np.dtype[Any]
    parts: list[Part] = field(default_factory=list)
    labels: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, found: NDArray[Any], label: str) -> None:
        """One more file."""
        if not len(found):
            return
        raw = found.tobytes()
        path = self.folder / f"{len(self.parts):05d}.rec"
        with files.storage(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        self.parts.append(Part(path.name, len(found), len(raw), zlib.crc32(raw)))
        self.labels.append(found[label].copy())

    def close(self, program: Program, name: str, skipped: int) -> Records:
        """All of it; the program's own check_labels() has seen the labels. Raises `DataError`."""
        if not self.parts:
            raise samples.no_rows(name, program, skipped)
        judge = getattr(program.module, "check_labels", None)
        if judge is not None:
            try:
                judge(np.concatenate(self.labels))
            except ValueError as error:
                raise DataError(f"{name}: {error}") from error
        return Records(self.folder, self.row, tuple(self.parts), skipped)


def records(
    program: Program,
    file: Path,
    form: Form,
    folder: Path,
    held_out: float,
    *,
    limit: int | None = None,
    say: Say | None = None,
) -> dict[str, Records]:
    """A file's rows to train with, `train`, and those that the dice hold out, `test`.

    `held_out`: the share of rows; with 0 or 1 there is only one of both. `limit` and `say`: as of `lines`.
    Raises `DataError` that names row and column.
    """
    row = samples.row_type(program.inputs)
    names = [name for name, share in (("train", 1 - held_out), ("test", held_out)) if share]
    writers = {name: _Writer(folder / name, row) for name in names}
    dice = np.random.default_rng(int(program.worker_options["seed"]))
    places = Places(str(file))
    rows = lines(file, form, places, limit, say)
    read = skipped = 0
    while True:
        chunk = itertools.islice(rows, rows_a_file(row))
        found, left_out = samples.records(chunk, str(file), program, read + 1, places.place)
        if not len(found) + left_out:
            break
        read, skipped = read + len(found) + left_out, skipped + left_out
        tested = dice.random(len(found)) < held_out
        for name, writer in writers.items():
            writer.add(found[tested if name == "test" else ~tested], program.label)
    return {name: writer.close(program, str(file), skipped) for name, writer in writers.items()}


def first_row(program: Program, file: Path, form: Form) -> dict[str, str]:
    """The columns of a file's first row that the program uses."""
    for line in lines(file, form):
        if len(samples.records([line], str(file), program)[0]):
            return dict(zip(program.columns, fields(line), strict=True))
    raise samples.no_rows(str(file), program, 0)
