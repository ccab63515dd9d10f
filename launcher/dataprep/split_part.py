"""Split one part of a source: write each line to the file of a shard or of the test set. Combine all parts at the end.

A part is read once, in constant memory. One thread reads and hashes the source, the calling thread splits the lines,
and another thread hashes and writes the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from launcher.dataprep import sources, text_lines
from launcher.dataprep.archives import SourceFile
from launcher.dataprep.byte_streams import BLOCK, Prefetch
from launcher.dataprep.csv_records import RowPlaces
from launcher.dataprep.prepared_data import LIST
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.row_splitters import LineSplitter, is_in_test_set
from launcher.errors import DataError
from launcher.io.files import fsync_dir, fsync_tree, require_space, storage_errors, write_atomically
from launcher.io.thread_jobs import await_future
from launcher.paths import DataPaths
from launcher.settings import DataSettings

_AHEAD = 4  # blocks of lines that may wait between the reading thread and the splitting thread
_BATCH_BYTES = 2 << 20  # bytes that are given to the writing thread at once
_MAX_PENDING = 2  # batches that may wait for the writing thread; this limits the memory
_SYNC_THREADS = 2
FLUSH_BYTES = 16 << 20  # after so many bytes the disk starts to write them, which shortens the last fsync
_READER_SECONDS = 2.0  # longest wait for the reading thread, which may hang in a network call


def _batches(rows: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Join pieces of data for the same file, so that writes are fewer and larger.

    Each element of `rows`, and each yielded batch, has one piece for each file. A batch has about _BATCH_BYTES bytes.
    """
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
    """Splits the rows of one part of the source into shards and a test set.

    It writes `<shard>/train.txt`, `test.txt` and `tables/` below `folder`, which no other part uses.
    """

    def __init__(self, part: sources.PlannedPart, folder: Path) -> None:
        self._part, self._folder, self._reader = part, folder, sources.PartReader(part, folder)
        settings, self._progress = part.source.settings, part.source.progress
        self._settings = settings
        self._stop = threading.Event()
        self._tables: list[dict[str, Any]] = []
        self._column_types: list[str] = []
        self._csv = text_lines.CsvReader(
            settings.delimiter, settings.header, settings.columns, settings.quoting
        )

    def run(self) -> dict[str, Any]:
        """Read the part once and write its files.

        All lines of data.testSource are held out for the test set, and a fraction of the lines of other sources. If
        more lines are held out than the part may give to the test set, the shards get the rest. The rest of
        data.testSource is left out.

        Returns:
            The part's marker, which is the content of the JSON file that records that the part is finished:
            {"lines": [number of lines of each shard], "files": [{"bytes", "sha256"} of each shard],
            "test": {"lines", "bytes", "sha256"}, "tables": [{"name", "bytes", "sha256"}],
            "sha256": sha256 of the part, "header": [column names], "columns": number of columns,
            "spanning": [number of records of tab-separated text that span lines, where the first one is]}.

        Raises:
            DataError: the source is damaged, has an invalid row or another sha256 than data.sha256, or cannot be read.
            StorageError, StorageFailedError: the shared storage failed.
            DeadlineError: the deadline of the data Job has passed.
        """
        settings, number = self._settings, self._part.number
        kind = LineSplitter
        if settings.format == "parquet":
            from launcher.dataprep.parquet_rows import ParquetSplitter as kind  # noqa: N813 - loads pyarrow
        count = settings.split_count if number is not None else 0
        splitter = kind(settings.seed, count, settings.test_fraction, number or 0)
        shards = [self._folder / str(i) for i in range(count)]
        with storage_errors(self._folder):
            for shard in shards:
                shard.mkdir()
        held = self._folder / "held.tmp"
        writers = FileWriters([*(shard / "train.txt" for shard in shards), self._folder / "test.txt"])
        blocks = Prefetch(self._read(), _AHEAD, self._progress.report)
        try:
            with storage_errors(held), held.open("wb") as file:
                for batch in _batches(self._split(splitter, blocks, file.write)):
                    writers.put(batch, self._progress.report)
            check_sha256(settings, self._reader.hexdigest())
            test_rows = min(splitter.held, self._part.test_rows)
            self._write_test_set(splitter, writers, held, test_rows)
            written = writers.finish(lambda: self._progress.report("writing the last lines to the storage"))
        finally:
            self._stop.set()
            writers.close()
            blocks.close(_READER_SECONDS)
            held.unlink(missing_ok=True)
        return {
            "lines": splitter.lines,
            "files": written[:-1],
            "test": {"lines": test_rows, **written[-1]},
            "tables": sorted(self._tables, key=lambda table: str(table["name"])),
            "sha256": self._reader.hexdigest(),
            "header": self._column_types or self._csv.names,
            "columns": len(self._column_types) or self._csv.width,
            "spanning": [self._csv.spanning, self._csv.first_spanning],
        }

    def _split(
        self, splitter: LineSplitter, blocks: Iterator[Any], hold: Callable[[bytes], object]
    ) -> Iterator[list[bytes]]:
        """Yield one piece of train lines for each output file, from each block; call `hold` with the held-out lines.

        The last output file is the test set; this method yields an empty piece for it.
        """
        for block in blocks:
            train, test = splitter.split(block)
            hold(test)
            self._progress.lines = sum(splitter.lines) + splitter.held
            yield [*train, b""]
            self._progress.report()

    def _write_test_set(self, splitter: LineSplitter, writers: FileWriters, held: Path, wanted: int) -> None:
        """Write `wanted` of the held-out lines, evenly spread, to the test set, and the others to the shards.

        `held` is the file with all held-out lines. If there are no shards, because the source is data.testSource, the
        other lines are left out.
        """
        first = 0
        with storage_errors(held):
            for rows in splitter.read_back(held):
                chosen = is_in_test_set(first, len(rows), wanted, splitter.held)
                first += len(rows)
                test = splitter.piece(splitter.select(rows, np.flatnonzero(chosen)))
                train = splitter.assign(splitter.select(rows, np.flatnonzero(~chosen)))
                writers.put([*train, test], self._progress.report)
                self._progress.report("writing the test set")

    def _read(self) -> Iterator[Any]:
        """Yield blocks of complete lines, or record batches, and copy side tables. Runs in the reading thread."""
        if self._settings.format == "parquet":
            from launcher.dataprep.parquet_rows import ParquetReader

            reader = ParquetReader(self._settings.columns)
            for path, name, begin, end in self._reader.seekable_files():
                require_space(self._folder, end - begin, "the shards and the test set")
                yield from reader.batches(path, name, begin, end)
            self._column_types = reader.names
            return
        for found in self._reader.files():
            if found.size is not None:
                what = f"the table {found.table}" if found.table else "the shards and the test set"
                require_space(self._folder, found.size, what)
            if found.table:
                self._copy_table(found)
            else:
                yield from self._read_text(found)
            if self._stop.is_set():
                return

    def _read_text(self, text: SourceFile) -> Iterator[bytes]:
        is_csv = self._settings.format == "csv"
        blocks = text_lines.line_blocks(text.stream, text.name, self._settings.encoding, crlf=is_csv)
        return self._csv.line_blocks(blocks, RowPlaces(text.name)) if is_csv else blocks

    def _copy_table(self, table: SourceFile) -> None:
        target = self._folder / "tables" / table.table
        with storage_errors(target):
            target.parent.mkdir(exist_ok=True)
        blocks = iter(lambda: b"" if self._stop.is_set() else table.stream.read(BLOCK), b"")
        self._tables.append({"name": table.table, **write_file(target, blocks)})


def check_sha256(settings: DataSettings, found: str) -> None:
    """Raise `DataError` if data.sha256 is set, and differs from `found`, the sha256 of the source."""
    if settings.sha256 and found != settings.sha256:
        raise DataError(
            f"data.sha256 is {settings.sha256}, but {sources.source_name(settings)} has {found}: "
            "the file is another one, or it was changed on the way. Nothing was published. Fix: correct "
            "data.source, or set data.sha256 to the second value if you trust this file."
        )


class _OutputFile:
    """Writes one file and calculates its sha256."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb", buffering=1 << 16)
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.flushed = 0

    def write(self, data: bytes) -> bool:
        """Append `data`. Return whether FLUSH_BYTES were written since the last flush, and were flushed now.

        In this case the caller must call `sync_flushed`.
        """
        with storage_errors(self.path):
            self.sha256.update(data)
            self.file.write(data)
            self.bytes += len(data)
            if self.bytes - self.flushed < FLUSH_BYTES:
                return False
            self.file.flush()
            self.flushed = self.bytes
            return True

    def sync_flushed(self) -> None:
        """Wait until the flushed bytes are on the disk. This method ignores errors, because `finish` reports them.

        It runs in another thread than `write`, so that writing continues meanwhile.
        """
        with contextlib.suppress(OSError, ValueError):  # the last fsync reports the error with its reason
            os.fdatasync(self.file.fileno())

    def finish(self) -> dict[str, Any]:
        with storage_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        return {"bytes": self.bytes, "sha256": self.sha256.hexdigest()}


def write_file(path: Path, blocks: Iterable[bytes]) -> dict[str, Any]:
    """Write `blocks` to a file, wait until the file is on the disk (fsync), and return {"bytes", "sha256"}.

    Raises:
        StorageError, StorageFailedError: the file cannot be written.
    """
    with storage_errors(path):
        output = _OutputFile(path)
        with contextlib.closing(output.file):
            for block in blocks:
                output.write(block)
            return output.finish()


class FileWriters:
    """Appends pieces of data to several files, and hashes them, in another thread.

    Hashing and writing release Python's global lock (GIL), so the caller can split the next lines at the same time.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Create the files at `paths`. Raise `StorageError` if a file cannot be created."""
        _raise_open_file_limit(len(paths))
        self._files: list[_OutputFile] = []
        with contextlib.ExitStack() as undo, storage_errors(paths[0]):
            for path in paths:
                self._files.append(_OutputFile(path))
                undo.callback(self._files[-1].file.close)
            undo.pop_all()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._syncs = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="syncer")
        self._pending: deque[Future[None]] = deque()

    def put(self, pieces: Sequence[bytes], wait: Callable[[], None]) -> None:
        """Append one piece to each file; the writing thread does so later. `pieces` has the order of the files.

        A piece may be empty. If too many pieces wait to be written, this method waits; meanwhile it calls `wait` about
        once a second, and `wait` may raise.

        Raises:
            StorageError: an earlier piece could not be written, for example because the disk is full.
        """
        while len(self._pending) >= _MAX_PENDING:
            await_future(self._pending.popleft(), wait)
        self._pending.append(self._writer.submit(self._write, pieces))

    def finish(self, wait: Callable[[], None]) -> list[dict[str, Any]]:
        """Wait until every file is on the disk (fsync); return {"bytes", "sha256"} of each file.

        Meanwhile this method calls `wait` about once a second; `wait` may raise.

        Raises:
            StorageError: a file could not be written.
        """
        for pending in self._pending:
            await_future(pending, wait)
        last = [self._syncs.submit(file.finish) for file in self._files]
        return [await_future(one, wait) for one in last]

    def close(self) -> None:
        """Stop the threads, and close the files. Pieces that are not written yet are dropped."""
        for pool in (self._writer, self._syncs):
            pool.shutdown(cancel_futures=True)
        for each in self._files:
            with contextlib.suppress(OSError):
                each.file.close()

    def _write(self, pieces: Sequence[bytes]) -> None:
        for file, piece in zip(self._files, pieces, strict=True):
            if piece and file.write(piece):
                self._syncs.submit(file.sync_flushed)


def _raise_open_file_limit(count: int) -> None:
    """Raise this process's soft limit of open files, up to its hard limit, so that it can open `count` more files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 100
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def assemble_shards(
    settings: DataSettings,
    work: DataPaths,
    markers: list[dict[str, Any]],
    tests: list[Path],
    progress: DataProgress,
) -> dict[str, Any]:
    """Complete the shards and the test set in the folder `work`; return the manifest's fields about them.

    Args:
        settings: the settings of this pod.
        work: the folder in which the pods of this data Job work.
        markers: what `PartSplitter.run` returned for each part of the source. The last marker is the one of
            data.testSource, if this is set.
        tests: the files with the parts' test lines, in the same order. They are joined to the test set.
        progress: enforces the deadline.

    Raises:
        DataError: the data cannot be trained on, for example because it has fewer lines than shards.
        StorageError, StorageFailedError: the shared storage failed.
        DeadlineError: the deadline of the data Job has passed.
    """
    parts = [marker for marker in markers if marker["lines"]]
    lines = [sum(counts) for counts in zip(*(part["lines"] for part in parts), strict=True)]
    held = sum(marker["test"]["lines"] for marker in markers)
    if spanning := [marker["spanning"] for marker in markers if marker["spanning"][0]]:
        text_lines.warn_of_quotes(sum(count for count, _ in spanning), spanning[0][1])
    _check_lines(settings, lines, held, [sum(part["lines"]) for part in parts])
    _check_columns(settings, markers)
    test = _join_files(tests, work.test, progress)
    shards = []
    for index, count in enumerate(lines):
        progress.report("completing the shards")
        files = [part["files"][index] for part in parts]
        entry = {"index": index, "lines": count, "bytes": sum(file["bytes"] for file in files)}
        folder = work.shard(index)
        if len(parts) == 1:
            entry["sha256"] = files[0]["sha256"]
        else:
            named = [{"name": shard_file_name(i, len(parts)), **file} for i, file in enumerate(files)]
            content = json.dumps({"files": named}).encode()
            write_atomically(folder / LIST, content)
            entry |= {"parts": len(parts), "sha256": hashlib.sha256(content).hexdigest()}
        write_atomically(folder / "train.list", "data/train.txt\n")
        write_atomically(folder / "test.list", "data/test.txt\n" if test["bytes"] else "")
        with storage_errors(folder):
            fsync_dir(folder)
        shards.append(entry)
    if work.tables.is_dir():
        with storage_errors(work.tables):
            fsync_tree(work.tables)
    sums = [part["sha256"] for part in parts]
    return {
        "sha256": sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest(),
        "member": settings.member,
        "seed": settings.seed,
        "testFraction": settings.test_fraction,
        "testSource": sources.display_name(settings.test_source),
        "testRows": settings.test_rows,
        "splitCount": settings.split_count,
        "lines": sum(lines),
        "shards": shards,
        "test": {"lines": held, **test},
        "tables": [table for part in parts for table in part["tables"]],
    }


def shard_file_name(part: int, parts: int) -> str:
    """Return the name of the file with the rows of one part of the source. All shards' folders use the same name.

    A part is a set of files, or a range of bytes, of the source. `part` is the number of the part, from 0, and `parts`
    the number of parts.
    """
    return "train.txt" if parts == 1 else f"train-{part:05d}.txt"


def _join_files(paths: list[Path], target: Path, progress: DataProgress) -> dict[str, Any]:
    """Write the content of the files `paths`, one after the other, to `target`; return its {"bytes", "sha256"}."""

    def blocks() -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    progress.report("joining the test sets of all parts")
                    yield block

    return write_file(target, blocks())


def _check_lines(settings: DataSettings, lines: list[int], held: int, parts: list[int]) -> None:
    """Raise `DataError` when a shard would be empty, or when the settings require a test set and it would be empty.

    `lines` has the number of train lines of each shard, and `parts` the number of train lines of each part of the
    source. `held` is the number of lines of the test set.
    """
    name, train = sources.source_name(settings), sum(lines)
    if train >= settings.split_count and min(lines) == 0:
        raise DataError(
            f"data.source {name} has {train} train lines in {len(parts)} parts, but shard {lines.index(0)} of "
            f"{settings.split_count} got none: the lines of each part are distributed to the shards separately. "
            f"Fix: set trainers (and data.splitCount) to at most {max(parts)}, the lines of the largest part, or set "
            "data.source to a source with more rows."
        )
    if train < settings.split_count:
        fewer = f"set trainers (and data.splitCount) to at most {train}, or " if train else ""
        raise DataError(
            f"data.source {name} has {train} train lines ({held} more are held out for the test), fewer than "
            f"the {settings.split_count} shards: a trainer without lines would hang. Fix: {fewer}set data.source "
            "to a source with more rows."
        )
    if settings.test_source and not held:
        raise DataError(
            f"data.testSource {sources.display_name(settings.test_source)} has no line. Fix: set it to a file with "
            "rows, or leave it empty to hold out a part of the data."
        )
    if settings.test_fraction and not held:
        raise DataError(
            f"data.testFraction {settings.test_fraction} holds out none of the {train} lines of {name}, so that "
            "there would be no test set. Fix: set data.testFraction to 0.5, or to 0 for no test set."
        )


def _check_columns(settings: DataSettings, markers: list[dict[str, Any]]) -> None:
    """Raise `DataError` if two parts have different columns.

    Two files of one part are not compared here, because the reader of the part has compared them. The columns of csv
    files may differ if data.columns has names and no numbers, because columns are then found by their names.
    """
    by_name = settings.columns and all(isinstance(column, str) for column in settings.columns)
    if by_name and settings.format != "parquet":
        return
    first = markers[0]
    for marker in markers:
        same = marker["header"] == first["header"] and marker["columns"] == first["columns"]
        if not same and marker["columns"]:
            raise DataError(
                f"{marker['name']} has the header {marker['header'][:20]} and {marker['columns']} columns, but "
                f"{first['name']} {first['header'][:20]} and {first['columns']}. Fix: give all objects the same "
                "columns in the same order, or list names in data.columns."
            )
