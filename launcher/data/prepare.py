"""`python -m launcher prepare`: the data Job.

Source → parts → runs of lines → one piece a shard → files in `.<digest>.tmp/` → final names → manifest.
One pass, in constant memory: a thread reads and hashes the source, this one cuts and deals the lines, two
threads hash and write. Nothing gets its final name before the whole source was read and its sha256 holds. The
result is decided by the source's bytes and the settings alone.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.data import source as sources
from launcher.data import text
from launcher.data.archive import Part
from launcher.data.deal import Split
from launcher.data.progress import Progress
from launcher.data.publish import (
    is_published,
    make_job_folder,
    one_at_a_time,
    publish,
    remove,
    remove_leftovers,
)
from launcher.data.space import require_space
from launcher.data.stream import BLOCK
from launcher.data.writers import Writers, Written
from launcher.errors import DataError, LauncherError, StoppedError
from launcher.files import copy_file, fsync_tree, storage, write_json, write_whole
from launcher.gang.log import begin, log
from launcher.retry import Retry
from launcher.settings import DataSettings

MANIFEST_VERSION = 1
_QUEUED = 4  # runs of lines between the reading thread and the dealing one
_BATCH = 2 << 20  # bytes given to the writing threads at once
_SWITCH_SECONDS = 0.0005  # else a thread that comes back from a hash waits 5 ms for the interpreter's lock


def main(settings: DataSettings, *, retry: Retry | None = None, chunk: int = text.CHUNK) -> int:
    """Prepares the data, or finds that it was done; returns 0.

    Raises a `LauncherError` whose reason is also in `data-failed.json` then (but for a signal, after which
    the Job may well start again). `retry` and `chunk` (bytes read at once) are for tests; the result depends
    on neither.
    """
    begin("prepare", settings.log_format)
    progress = Progress(settings.deadline_seconds)
    try:
        with _signals():
            make_job_folder(settings.layout)
            sources.check(settings)
            with one_at_a_time(settings.layout, progress):
                published = is_published(settings)
                with storage(settings.layout.data_failed):
                    settings.layout.data_failed.unlink(missing_ok=True)
                if published:
                    log.info("the data %s is there already: nothing to do", settings.data_digest)
                    remove_leftovers(settings.layout)
                    return 0
                remove(settings.layout.data_tmp(settings.data_digest))
                remove_leftovers(settings.layout)
                _prepare(settings, progress, retry or Retry(), chunk)
    except StoppedError:
        raise
    except LauncherError as error:
        _leave_reason(settings, str(error))
        raise
    except Exception as error:
        log.exception("a fault of the launcher itself")
        reason = f"the preparation met what it does not know ({type(error).__name__}: {error})"
        _leave_reason(settings, reason)
        raise LauncherError(f"{reason}; the pod's log has the whole trace.") from error
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise `StoppedError` here, once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)  # a second one must not break the clean-up
        raise StoppedError(f"told to stop ({signal.Signals(number).name}); nothing was published")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _leave_reason(settings: DataSettings, reason: str) -> None:
    failed = {
        "dataDigest": settings.data_digest,
        "reason": reason,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        write_json(settings.layout.data_failed, failed)
    except (LauncherError, OSError) as error:
        log.info("the reason could not be left in %s: %s", settings.layout.data_failed, error)


def _prepare(settings: DataSettings, progress: Progress, retry: Retry, chunk: int) -> None:
    tmp = settings.layout.data_tmp(settings.data_digest)
    with storage(tmp):
        (tmp / "shards").mkdir(parents=True)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        tools = sources.Tools(settings, tmp, progress, retry, require_space)
        source = sources.open_source(tools)
        try:
            manifest = _Preparation(settings, tmp, progress, source, chunk).run()
        finally:
            source.close()
        publish(tmp, settings.layout, settings.split_count, manifest)
    finally:
        sys.setswitchinterval(before)
        remove(tmp)
    log.info(
        "done in %.1f s: %d train lines in %d shards, %d test lines, sha256 %s",
        progress.clock() - progress.started,
        manifest["lines"],
        settings.split_count,
        manifest["test"]["lines"],
        manifest["sha256"],
    )


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


class _Preparation:
    """One run from an open source to a whole `tmp` and its manifest."""

    def __init__(
        self, settings: DataSettings, tmp: Path, progress: Progress, source: sources.Source, chunk: int
    ) -> None:
        self._settings, self._tmp, self._progress = settings, tmp, progress
        self._source, self._chunk = source, chunk
        self._runs: queue.Queue[bytes | BaseException | None] = queue.Queue(_QUEUED)
        self._stop = threading.Event()
        self._tables: list[dict[str, Any]] = []
        self._csv = text.Csv(settings.delimiter, settings.header, settings.columns)

    def run(self) -> dict[str, Any]:
        """The manifest. Raises `DataError`, `StorageError` or what else went wrong in any of the threads."""
        shards = self._settings.split_count
        folders = [self._tmp / "shards" / str(i) for i in range(shards)]
        with storage(self._tmp):
            for folder in folders:
                folder.mkdir()
        split = Split(self._settings.seed, shards, self._settings.test_fraction)
        writers = Writers([*(folder / "train.txt" for folder in folders), folders[0] / "test.txt"])
        reader = threading.Thread(target=self._read, name="reader", daemon=True)
        try:
            reader.start()
            for pieces in _batches(split.pieces(run) for run in self._received()):
                writers.put(pieces, self._progress.tick)
                self._progress.lines = sum(split.lines)
                self._progress.tick()
            self._verify(split)
            written = writers.finish(lambda: self._progress.tick("writing the last of it to the storage"))
        except BaseException:
            self._stop.set()
            writers.abort()
            reader.join(2.0)  # one that hangs in a network call ends with the process
            raise
        self._finish_folders(folders, written[-1])
        return self._manifest(split, written)

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
            copies = 1 + settings.test_fraction * (settings.split_count - 1)
            require_space(self._tmp, int(part.size * copies), "the shards and a copy of the test set in each")
        is_csv = settings.format == "csv"
        runs = text.segments(part.stream, part.name, settings.encoding, crlf=is_csv, chunk=self._chunk)
        if is_csv:
            runs = self._csv.segments(runs, part.name)
        for run in runs:
            self._send(run)
            if self._stop.is_set():
                return

    def _copy_table(self, part: Part) -> None:
        target = self._tmp / "tables" / part.table
        if part.size is not None:
            require_space(self._tmp, part.size, f"the table {part.table}")
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
        self._tables.append({"name": part.table, "bytes": written.bytes, "sha256": written.sha256})

    def _verify(self, split: Split) -> None:
        settings, found = self._settings, self._source.hexdigest()
        name = sources.shown(settings.source)
        if settings.sha256 and found != settings.sha256:
            raise DataError(
                f"{name}: sha256 is {found}, but data.sha256 says {settings.sha256}: this is not the data "
                "that was meant, or it was changed on the way; nothing was published. Set data.sha256 to "
                "the first if you trust it, or mend data.source."
            )
        *train, test = split.lines
        if sum(train) < settings.split_count:
            raise DataError(
                f"{name} has {sum(train)} train lines ({test} more were held out for the test), fewer "
                f"than the {settings.split_count} shards: a shard would be empty and its trainer hang. "
                f"Set trainers (and data.splitCount) to at most {sum(train)}, or name more data."
            )
        if settings.test_fraction and not test:
            raise DataError(
                f"{name} has only {sum(train)} lines: data.testFraction {settings.test_fraction} holds "
                "out none of them, and there would be no test set. Set data.testFraction to 0.5, or to 0 "
                "for none."
            )

    def _finish_folders(self, folders: list[Path], test: Written) -> None:
        """Lists, and the test set in every folder."""
        first = folders[0] / "test.txt"
        require_space(self._tmp, test.bytes * (len(folders) - 1), "a copy of the test set in each shard")
        for folder in folders:
            if folder is not folders[0]:
                self._progress.tick("copying the test set")
                _, digest = copy_file(first, folder / "test.txt", self._progress.tick)
                if digest != test.sha256:
                    raise DataError(f"{first} does not read back as it was written: the storage is faulty.")
            write_whole(folder / "train.list", "data/train.txt\n")
            write_whole(folder / "test.list", "data/test.txt\n" if test.bytes else "")
            fsync_tree(folder)

    def _manifest(self, split: Split, written: list[Written]) -> dict[str, Any]:
        settings = self._settings
        *train_lines, test_lines = split.lines
        *train, test = written
        return {
            "version": MANIFEST_VERSION,
            "dataDigest": settings.data_digest,
            "source": sources.shown(settings.source),
            "sha256": self._source.hexdigest(),
            "member": settings.member,
            "format": settings.format,
            "seed": settings.seed,
            "testFraction": settings.test_fraction,
            "splitCount": settings.split_count,
            "lines": sum(train_lines),
            "shards": [
                {"index": i, "lines": lines, "bytes": file.bytes, "sha256": file.sha256}
                for i, (lines, file) in enumerate(zip(train_lines, train, strict=True))
            ],
            "test": {"lines": test_lines, "bytes": test.bytes, "sha256": test.sha256},
            "tables": sorted(self._tables, key=lambda table: str(table["name"])),
        }
