"""One part of a source: its lines are dealt to a file a shard, and some are held out for the test.

One pass, in constant memory: a thread reads and hashes the source, this one cuts and deals the lines, two
threads hash and write. The result is decided by the source's bytes and the settings alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.data import source as sources
from launcher.data import text
from launcher.data.archive import Part
from launcher.data.deal import Split, is_taken
from launcher.data.places import Places
from launcher.data.progress import Progress
from launcher.data.space import require_space
from launcher.data.stream import BLOCK
from launcher.data.writers import Writers, Written
from launcher.errors import DataError
from launcher.files import storage
from launcher.settings import DataSettings

_QUEUED = 4  # runs of lines between the reading thread and the dealing one
_BATCH = 2 << 20  # bytes given to the writing threads at once


def _batches(rows: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Joins the pieces of several runs, file by file, so that the writing threads are called rarely."""
    waiting: list[list[bytes]] = []
    size = 0
    for pieces in rows:
        waiting.append(pieces)
        size += sum(map(len, pieces))
        if size >= _BATCH:
            yield list(map(b"".join, zip(*waiting, strict=True)))
            waiting, size = [], 0
    if waiting:
        yield list(map(b"".join, zip(*waiting, strict=True)))


class PartJob:
    """From an open source to `folder/<shard>/train.txt`, `folder/test.txt` and `folder/tables/`."""

    def __init__(
        self, settings: DataSettings, folder: Path, progress: Progress, source: sources.Source, chunk: int
    ) -> None:
        self._settings, self._folder, self._progress = settings, folder, progress
        self._source, self._chunk = source, chunk
        self._runs: queue.Queue[bytes | BaseException | None] = queue.Queue(_QUEUED)
        self._stop = threading.Event()
        self._tables: list[dict[str, Any]] = []
        self._objects: list[Places] = []
        self._csv = text.Csv(settings.delimiter, settings.header, settings.columns)

    def run(self, number: int, test_rows: int) -> dict[str, Any]:
        """Makes part `number`, of which at most `test_rows` lines are for the test; the rest is trained on.

        Returns {"lines": of each shard, "files": [{"bytes", "sha256"}], "test": {"lines", "bytes", "sha256"},
        "tables", "sha256": of the source, "header", "columns", "objects":
        [[name, records, jumps]] of the text}. Raises `DataError`, `StorageError` or what
        else went wrong in any of the threads.
        """
        settings = self._settings
        split = Split(settings.seed, settings.split_count, settings.test_fraction, number)
        return self._make(split, test_rows)

    def run_test(self, test_rows: int) -> dict[str, Any]:
        """Makes the test set of data.testSource: at most `test_rows` lines of it, spread over all of it."""
        return self._make(None, test_rows)

    def _make(self, split: Split | None, test_rows: int) -> dict[str, Any]:
        shards = [self._folder / str(i) for i in range(self._settings.split_count)] if split else []
        with storage(self._folder):
            for shard in shards:
                shard.mkdir(parents=True)
            self._folder.mkdir(parents=True, exist_ok=True)
        held = self._folder / "held.tmp"
        writers = Writers([*(shard / "train.txt" for shard in shards), self._folder / "test.txt"])
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        try:
            reader.start()
            with storage(held), held.open("wb") as file:
                count = self._deal(split, writers, file.write)
            self._check_sum()
            self._settle(split, writers, held, count, min(count, test_rows))
            written = writers.finish(lambda: self._progress.tick("writing the last of it to the storage"))
        except BaseException:
            self._stop.set()
            writers.abort()
            reader.join(2.0)  # one that hangs in a network call ends with the process
            raise
        finally:
            held.unlink(missing_ok=True)
        *train, test = written
        return {
            "lines": split.lines if split else [],
            "files": [_about(file) for file in train],
            "test": {"lines": min(count, test_rows), **_about(test)},
            "tables": sorted(self._tables, key=lambda table: str(table["name"])),
            "sha256": self._source.hexdigest(),
            "header": self._csv.names,
            "columns": self._csv.width,
            "objects": [[found.name, found.count, found.jumps] for found in self._objects],
        }

    def _deal(self, split: Split | None, writers: Writers, hold: Any) -> int:
        """Gives all lines to the writers, and what is held out to `hold`. Returns how many lines that is."""
        count = 0

        def pieces() -> Iterator[list[bytes]]:
            nonlocal count
            for run in self._received():
                if split is None:
                    hold(run)
                    count += run.count(b"\n")
                    self._progress.lines = count
                    yield [b""]
                else:
                    train, test = split.pieces(run)
                    hold(test)
                    self._progress.lines = sum(split.lines) + split.held
                    yield [*train, b""]
                self._progress.tick()

        for batch in _batches(pieces()):
            writers.put(batch, self._progress.tick)
        return split.held if split else count

    def _settle(self, split: Split | None, writers: Writers, held: Path, count: int, wanted: int) -> None:
        """The test set is `wanted` of the held lines, evenly spread; the others are trained on after all."""
        first = 0
        with storage(held), held.open("rb") as file:
            while lines := file.readlines(text.CHUNK):
                taken = is_taken(first, len(lines), wanted, count)
                first += len(lines)
                test = b"".join(line for line, take in zip(lines, taken, strict=True) if take)
                if split is None:
                    pieces = []
                else:
                    rest = [line[:-1] for line, take in zip(lines, taken, strict=True) if not take]
                    pieces = split.deal(rest)
                writers.put([*pieces, test], self._progress.tick)
                self._progress.tick("dealing the test set")

    def _received(self) -> Iterator[bytes]:
        while True:
            try:
                item = self._runs.get(timeout=1.0)
            except queue.Empty:
                self._progress.tick()
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _send(self, item: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._runs.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def _read(self) -> None:
        """The reading thread."""
        try:
            for part in self._source.parts():
                if self._stop.is_set():
                    return
                if part.table:
                    self._copy_table(part)
                else:
                    self._read_text(part)
            self._send(None)
        except BaseException as error:
            self._send(error)

    def _read_text(self, part: Part) -> None:
        settings = self._settings
        if part.size is not None:
            require_space(self._folder, part.size, "the shards and the test set")
        is_csv = settings.format == "csv"
        found = Places(part.object or part.name)
        self._objects.append(found)
        runs = text.segments(
            part.stream,
            part.name,
            settings.encoding,
            crlf=is_csv,
            chunk=self._chunk,
            found=None if is_csv else found,
        )
        if is_csv:
            runs = self._csv.segments(runs, part.name, found)
        for run in runs:
            self._send(run)
            if self._stop.is_set():
                return

    def _copy_table(self, part: Part) -> None:
        target = self._folder / "tables" / part.table
        if part.size is not None:
            require_space(self._folder, part.size, f"the table {part.table}")
        with storage(target):
            target.parent.mkdir(exist_ok=True)
        writers = Writers([target])
        try:
            while data := part.stream.read(BLOCK):
                writers.put([data])
                if self._stop.is_set():
                    break
            (written,) = writers.finish()
        except BaseException:
            writers.abort()
            raise
        self._tables.append({"name": part.table, **_about(written)})

    def _check_sum(self) -> None:
        settings = self._settings
        if not settings.sha256:
            return
        found = self._source.hexdigest()
        if found != settings.sha256:
            raise DataError(
                f"{sources.shown(settings.source)}: sha256 is {found}, but data.sha256 says "
                f"{settings.sha256}: this is not the data that was meant, or it was changed on the way; "
                "nothing was published. Set data.sha256 to the first if you trust it, or mend data.source."
            )


def _about(written: Written) -> dict[str, Any]:
    return {"bytes": written.bytes, "sha256": written.sha256}
