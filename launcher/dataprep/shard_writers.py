"""Hash and write several files in threads, while the calling thread splits lines.

Hashing and writing release the interpreter's lock, so that they run in parallel to the splitting.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from launcher.io.files import storage_errors

THREADS = 2  # more threads than this wait for each other
MAX_PENDING = 2  # batches that may wait for one thread: limits the memory
FLUSH_BYTES = 16 << 20  # after so many bytes the disk starts to write, which shortens the last fsync
_WAIT_SECONDS = 1.0
T = TypeVar("T")


class _OutputFile:
    """Writes one file and calculates its sha256."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb", buffering=1 << 16)
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.flushed = 0

    def write(self, data: bytes) -> bool:
        """Append `data`. Return True each time FLUSH_BYTES more were written: the caller then calls `sync_flushed`."""
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
        """Wait until the flushed bytes are on the disk; `finish` reports an error of the disk.

        Runs in a thread of its own, while the caller's thread continues to `write`.
        """
        with contextlib.suppress(OSError, ValueError):  # the last fsync reports the error with its reason
            os.fdatasync(self.file.fileno())

    def finish(self) -> dict[str, Any]:
        with storage_errors(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        return {"bytes": self.bytes, "sha256": self.sha256.hexdigest()}


class FileWriters:
    """Writes to several files at once, each file in the order of its data."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Create the files at `paths`. Raises `StorageError`."""
        _raise_open_file_limit(len(paths))
        self._files: list[_OutputFile] = []
        with contextlib.ExitStack() as undo, storage_errors(paths[0]):
            for path in paths:
                self._files.append(_OutputFile(path))
                undo.callback(self._files[-1].file.close)
            undo.pop_all()
        count = min(THREADS, len(paths))
        # One executor for each thread: a file always belongs to the same thread, which keeps its order.
        self._pools = [ThreadPoolExecutor(1, thread_name_prefix=f"writer-{k}") for k in range(count)]
        self._pending: list[deque[Future[None]]] = [deque() for _ in range(count)]
        self._syncs = ThreadPoolExecutor(1, thread_name_prefix="syncer")

    def put(self, pieces: Sequence[bytes], wait: Callable[[], None] = lambda: None) -> None:
        """Append one piece, possibly empty, to each file.

        `wait` is called about once a second while the disk is slower than the caller; it may raise.

        Raises:
            StorageError: an earlier piece could not be written, for example because the disk is full.
        """
        for thread, pending in enumerate(self._pending):
            while len(pending) >= MAX_PENDING:
                self._await_oldest(pending, wait)
            pending.append(self._pools[thread].submit(self._write, thread, pieces))

    def finish(self, wait: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Wait until every file is on the disk (fsync); return {"bytes", "sha256"} of each.

        Raises:
            StorageError: a file could not be written.
        """
        for pending in self._pending:
            while pending:
                self._await_oldest(pending, wait)
        threads = len(self._pools)
        last = deque(self._pools[n % threads].submit(file.finish) for n, file in enumerate(self._files))
        written = []
        while last:
            written.append(self._await_oldest(last, wait))
        self._shut_down()
        return written

    def abort(self) -> None:
        """Stop the threads without writing the pending pieces, and close the files."""
        self._shut_down()
        for each in self._files:
            with contextlib.suppress(OSError):
                each.file.close()

    def _shut_down(self) -> None:
        for pool in (*self._pools, self._syncs):
            pool.shutdown(cancel_futures=True)

    @staticmethod
    def _await_oldest(pending: deque[Future[T]], wait: Callable[[], None]) -> T:
        while True:
            try:
                result = pending[0].result(_WAIT_SECONDS)
            except TimeoutError as error:
                # Either a thread's own error, or nothing is finished yet; it may finish at this moment.
                if pending[0].done() and pending[0].exception() is error:
                    raise
                wait()
            else:
                pending.popleft()
                return result

    def _write(self, thread: int, pieces: Sequence[bytes]) -> None:
        for n in range(thread, len(self._files), len(self._pools)):
            if pieces[n] and self._files[n].write(pieces[n]):
                self._syncs.submit(self._files[n].sync_flushed)


def _raise_open_file_limit(count: int) -> None:
    """Raise this process's soft limit of open files for `count` more files, up to its hard limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 100
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
