"""Split one part of a source: each line goes to one shard's file, or is held out for the test set.

One pass over the source in constant memory: a thread reads and hashes the source, the calling thread splits
lines, two threads hash and write. The result depends on the source's bytes and the settings alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.dataprep import source as sources
from launcher.dataprep import text_lines
from launcher.dataprep.archives import SourceFile
from launcher.dataprep.byte_streams import BLOCK
from launcher.dataprep.csv_records import RowPlaces
from launcher.dataprep.multi_file_source import PartSource
from launcher.dataprep.prefetch import Prefetch
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.shard_writers import FileWriters
from launcher.dataprep.splitting import LineSplitter, is_in_test_set
from launcher.errors import DataError
from launcher.io.disk_space import require_space
from launcher.io.files import storage_errors
from launcher.settings import DataSettings

_AHEAD = 4  # blocks of lines between the reading thread and the splitting one
_BATCH_BYTES = 2 << 20  # given to the writing threads at once
_READER_SECONDS = 2.0  # a reader that hangs in a network call ends with the process


def _batches(rows: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Join the pieces of several `rows` (one piece for each file) to one, so that writes are fewer and larger."""
    waiting: list[list[bytes]] = []
    size = 0
    for pieces in rows:
        waiting.append(pieces)
        size += sum(map(len, pieces))
        if size >= _BATCH_BYTES:
            yield list(map(b"".join, zip(*waiting, strict=True)))
            waiting, size = [], 0
    if waiting:
        yield list(map(b"".join, zip(*waiting, strict=True)))


class PartSplitter:
    """Splits the rows of one part of the source, or of the complete source, into shards and a test set.

    Writes `<shard>/train.txt`, `test.txt` and `tables/` below `folder`, which is the part's own folder.
    """

    def __init__(
        self,
        settings: DataSettings,
        folder: Path,
        progress: DataProgress,
        source: sources.SingleFileSource | PartSource,
    ) -> None:
        self._settings, self._folder, self._progress, self._source = settings, folder, progress, source
        self._stop = threading.Event()
        self._tables: list[dict[str, Any]] = []
        self._csv = text_lines.CsvReader(
            settings.delimiter, settings.header, settings.columns, settings.quoting
        )

    def run(self, number: int | None, test_rows: int) -> dict[str, Any]:
        """Read the source once and write its files.

        Args:
            number: the part's number; None: the source is data.testSource, and all of it is for the test set.
            test_rows: the test set has at most so many lines of this part, spread over it; the other lines
                are trained on (or, of data.testSource, left out).

        Returns:
            The part's marker, the content of the JSON file that records that the part is finished:
            {"lines": for each shard, "files": [{"bytes", "sha256"}] for each shard,
            "test": {"lines", "bytes", "sha256"}, "tables": [{"name", "bytes", "sha256"}],
            "sha256": of the source, "header", "columns",
            "spanning": [records of tab-separated text that span lines, where the first one is]}.

        Raises:
            DataError: the source is damaged, or has an invalid row.
            StorageError: the shared storage failed.
        """
        settings = self._settings
        splitter = None
        if number is not None:
            splitter = LineSplitter(settings.seed, settings.split_count, settings.test_fraction, number)
        shards = [self._folder / str(i) for i in range(settings.split_count)] if splitter else []
        with storage_errors(self._folder):
            for shard in shards:
                shard.mkdir(parents=True)
            self._folder.mkdir(parents=True, exist_ok=True)
        held = self._folder / "held.tmp"
        writers = FileWriters([*(shard / "train.txt" for shard in shards), self._folder / "test.txt"])
        blocks = Prefetch(self._read(), _AHEAD, self._progress.report)
        try:
            with storage_errors(held), held.open("wb") as file:
                count = self._split(splitter, blocks, writers, file.write)
            self._check_sha256()
            self._write_test_set(splitter, writers, held, count, min(count, test_rows))
            written = writers.finish(lambda: self._progress.report("writing the last lines to the storage"))
        except BaseException:
            self._stop.set()
            writers.abort()
            blocks.close(_READER_SECONDS)
            raise
        finally:
            held.unlink(missing_ok=True)
        return {
            "lines": splitter.lines if splitter else [],
            "files": written[:-1],
            "test": {"lines": min(count, test_rows), **written[-1]},
            "tables": sorted(self._tables, key=lambda table: str(table["name"])),
            "sha256": self._source.hexdigest(),
            "header": self._csv.names,
            "columns": self._csv.width,
            "spanning": [self._csv.spanning, self._csv.first_spanning],
        }

    def _split(
        self,
        splitter: LineSplitter | None,
        blocks: Iterator[bytes],
        writers: FileWriters,
        hold: Callable[[bytes], object],
    ) -> int:
        """Give train lines to `writers` and held-out lines to `hold`; return the number of held-out lines."""
        count = 0

        def pieces() -> Iterator[list[bytes]]:
            nonlocal count
            for block in blocks:
                if splitter is None:
                    hold(block)
                    count += block.count(b"\n")
                    self._progress.lines = count
                    yield [b""]
                else:
                    train, test = splitter.split(block)
                    hold(test)
                    self._progress.lines = sum(splitter.lines) + splitter.held
                    yield [*train, b""]
                self._progress.report()

        for batch in _batches(pieces()):
            writers.put(batch, self._progress.report)
        return splitter.held if splitter else count

    def _write_test_set(
        self, splitter: LineSplitter | None, writers: FileWriters, held: Path, count: int, wanted: int
    ) -> None:
        """Write `wanted` of the `count` held-out lines, evenly spread, to the test set.

        The other lines are trained on, or left out if there is no `splitter` (the source is data.testSource).
        """
        first = 0
        with storage_errors(held), held.open("rb") as file:
            while lines := file.readlines(text_lines.CHUNK):
                chosen = is_in_test_set(first, len(lines), wanted, count)
                first += len(lines)
                test = b"".join(line for line, take in zip(lines, chosen, strict=True) if take)
                pieces = []
                if splitter is not None:
                    rest = [line[:-1] for line, take in zip(lines, chosen, strict=True) if not take]
                    pieces = splitter.assign(rest)
                writers.put([*pieces, test], self._progress.report)
                self._progress.report("writing the test set")

    def _read(self) -> Iterator[bytes]:
        """Yield blocks of complete lines; write side tables. Runs in the reading thread."""
        for found in self._source.files():
            if found.table:
                self._copy_table(found)
            else:
                yield from self._read_text(found)
            if self._stop.is_set():
                return

    def _read_text(self, text: SourceFile) -> Iterator[bytes]:
        settings = self._settings
        if text.size is not None:
            require_space(self._folder, text.size, "the shards and the test set")
        is_csv = settings.format == "csv"
        blocks = text_lines.line_blocks(text.stream, text.name, settings.encoding, crlf=is_csv)
        return self._csv.line_blocks(blocks, RowPlaces(text.name)) if is_csv else blocks

    def _copy_table(self, table: SourceFile) -> None:
        target = self._folder / "tables" / table.table
        if table.size is not None:
            require_space(self._folder, table.size, f"the table {table.table}")
        with storage_errors(target):
            target.parent.mkdir(exist_ok=True)
        writers = FileWriters([target])
        try:
            while data := table.stream.read(BLOCK):
                writers.put([data])
                if self._stop.is_set():
                    break
            (written,) = writers.finish()
        except BaseException:
            writers.abort()
            raise
        self._tables.append({"name": table.table, **written})

    def _check_sha256(self) -> None:
        settings = self._settings
        if not settings.sha256:
            return
        found = self._source.hexdigest()
        if found != settings.sha256:
            raise DataError(
                f"data.sha256 is {settings.sha256}, but {sources.source_name(settings)} has {found}: "
                "the file is another one, or it was changed on the way. Nothing was published. Fix: correct "
                "data.source, or set data.sha256 to the second value if you trust this file."
            )
