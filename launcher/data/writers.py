"""Threads that hash and write the shards, so that this runs beside the cutting of lines."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.files import storage

THREADS = (
    2  # hashing and writing let go of the interpreter's lock; more threads than this wait for each other
)
QUEUED = 2  # batches of pieces that may wait for a thread: bounds the memory
FLUSH = 16 << 20  # bytes of a file after which the disk is told to begin, so that the last fsync is short


@dataclass(frozen=True)
class Written:
    """A file that is on the disk."""

    bytes: int
    sha256: str


class _Sink:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb", buffering=1 << 16)
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.flushed = 0

    def write(self, piece: bytes) -> None:
        self.sha256.update(piece)
        self.file.write(piece)
        self.bytes += len(piece)

    def sync(self) -> None:
        """Waits until what was written is on the disk; called beside the writing, without its lock."""
        with contextlib.suppress(OSError, ValueError):  # told again, with its reason, by the last fsync
            os.fdatasync(self.file.fileno())

    def finish(self) -> Written:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return Written(self.bytes, self.sha256.hexdigest())


class Writers:
    """Writes pieces to files, each file in the order of its pieces."""

    def __init__(self, paths: Sequence[Path]) -> None:
        _allow_files(len(paths))
        self._paths = paths
        self._sinks: list[_Sink] = []
        self._error: BaseException | None = None
        self._written: dict[int, Written] = {}
        with contextlib.ExitStack() as undo, storage(paths[0]):
            for path in paths:
                self._sinks.append(_Sink(path))
                undo.callback(self._sinks[-1].file.close)
            undo.pop_all()
        count = min(THREADS, len(paths))
        self._queues: list[queue.Queue[Sequence[bytes] | None]] = [queue.Queue(QUEUED) for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(k,), name=f"writer-{k}", daemon=True)
            for k in range(count)
        ]
        self._syncs: queue.SimpleQueue[_Sink | None] = queue.SimpleQueue()
        syncer = threading.Thread(target=self._sync, name="syncer", daemon=True)
        for thread in (*self._threads, syncer):
            thread.start()

    def put(self, pieces: Sequence[bytes], wait: Callable[[], None] = lambda: None) -> None:
        """One piece a file, in the files' order; raises what a thread met (`StorageError` for a full disk).

        `wait` is called about once a second while the disk is behind.
        """
        for waiting in self._queues:
            while True:
                self._raise()
                try:
                    waiting.put(pieces, timeout=1.0)
                    break
                except queue.Full:
                    wait()

    def finish(self, wait: Callable[[], None] = lambda: None) -> list[Written]:
        """Waits until all is on the disk (fsync)."""
        for waiting in self._queues:
            while True:
                try:
                    waiting.put(None, timeout=1.0)
                    break
                except queue.Full:
                    wait()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(1.0)
                wait()
        self._syncs.put(None)
        self._raise()
        return [self._written[i] for i in range(len(self._sinks))]

    def abort(self) -> None:
        """Ends the threads without writing what still waits."""
        if self._error is None:
            self._error = RuntimeError("the preparation ended before")
        for waiting, thread in zip(self._queues, self._threads, strict=True):
            while thread.is_alive():
                with contextlib.suppress(queue.Full):
                    waiting.put(None, timeout=0.1)
                thread.join(0.1)
        self._syncs.put(None)
        for sink in self._sinks:
            with contextlib.suppress(OSError):
                sink.file.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _sync(self) -> None:
        while (sink := self._syncs.get()) is not None:
            if self._error is None:
                sink.sync()

    def _run(self, first: int) -> None:
        mine = range(first, len(self._sinks), len(self._queues))
        while (pieces := self._queues[first].get()) is not None:
            for i in mine:
                if self._error is not None:
                    break  # the queue is still emptied, so that nobody waits for ever
                if pieces[i]:
                    self._guard(i, pieces[i])
        for i in mine:
            if self._error is None:
                self._guard(i, None)

    def _guard(self, i: int, piece: bytes | None) -> None:
        try:
            with storage(self._paths[i]):
                if piece is None:
                    self._written[i] = self._sinks[i].finish()
                else:
                    sink = self._sinks[i]
                    sink.write(piece)
                    if sink.bytes - sink.flushed >= FLUSH:
                        sink.file.flush()
                        sink.flushed = sink.bytes
                        self._syncs.put(sink)
        except BaseException as error:
            self._error = error


def _allow_files(count: int) -> None:
    """Many shards are many open files: the process's soft limit is lifted to what it may have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 100
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
