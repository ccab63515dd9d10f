"""Streams of a source's bytes: count and hash them, read ahead in a thread, and resume after a broken connection."""

from __future__ import annotations

import hashlib
import io
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError
from launcher.io.files import storage_errors
from launcher.io.retry import Retry, TransientError
from launcher.log import log

BLOCK = 1 << 20
"""Bytes that are read at once."""


@dataclass
class OpenObject:
    """One object of a source, such as an S3 object, whose content is open for reading."""

    blocks: Iterator[bytes]
    total: int | None
    """Size of the complete object in bytes; None when it is unknown."""
    close: Callable[[], None]
    """Closes the file or the connection."""


@dataclass
class RemoteBody:
    """The body of a server's response, which is being read. Its first byte is byte `offset` of the source."""

    read: Callable[[int], bytes]
    """Returns at most the given number of bytes; returns no bytes only at the end."""
    errors: tuple[type[Exception], ...]
    """Exceptions that `read` raises when the connection breaks."""
    offset: int
    total: int | None
    """Size of the complete source in bytes; None when the server does not send it."""
    version: str
    """Identifies the content (a strong ETag or a date); empty when the server sends neither."""
    close: Callable[[], None]


OpenAt = Callable[[int, str], RemoteBody]
"""A function that connects to a source, and returns the response.

Its arguments are the number of the first byte that is wanted, and the `RemoteBody.version` that the stream has from
earlier responses (empty in the first call). The response starts at the wanted byte. It starts at byte 0 if the server
cannot start elsewhere, or if the content has another version now. The function raises `TransientError` for an error
after which a retry may help, and `DataError` or `UnfitError` for others.
"""


class ResumingStream:
    """Reads a source over a network, and connects again when the connection breaks.

    After a break the stream continues at the same byte if the server supports that. If the server sends the source from
    its start, the stream skips the bytes that were already read, and checks that their sha256 is the same as before.
    """

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        open_at: OpenAt,
        retry: Retry,
        progress: DataProgress,
        digest: hashlib._Hash,
        begin: int = 0,
    ) -> None:
        """Connect, and set `total`, the size of the source in bytes (None if the server does not send the size).

        Args:
            name: name of the source for messages.
            open_at: connects, and returns the response from a certain byte on.
            retry: waits after a temporary error; raises `DataError` after too many errors.
            progress: the stream adds the read bytes to its counter, and calls its `report` before it connects.
            digest: updated with all bytes that are read. After a break, a server that cannot start at any byte sends
                the source from its start again. Then the stream compares the bytes up to the break with `digest`. So
                for such a server `digest` must be new, and nothing else may update it.
            begin: the first byte to read. It must be 0 if the server cannot start at any byte.

        Raises:
            DataError: the source cannot be read.
            UnfitError: the source is in S3, and this pod has no credentials.
            DeadlineError: the deadline of `progress` has passed.
        """
        self._name, self._open, self._retry, self._progress = name, open_at, retry, progress
        self._digest = digest
        self._body: RemoteBody | None = None
        self._version = ""
        self.position = begin
        self.total: int | None = None
        self._start()

    def _start(self) -> None:
        """Connect if the stream is not connected."""
        while self._body is None:
            self._progress.report("connecting")
            try:
                self._connect()
            except TransientError as error:
                self.close()
                self._retry.wait_or_raise(self._name, error)

    def blocks(self) -> Iterator[bytes]:
        """Yield the source from `begin` on, in blocks.

        Raises:
            DataError: the source changed, all tries failed, or the server rejects a new connection.
            UnfitError, DeadlineError: as the constructor, for a new connection.
        """
        while True:
            self._start()
            try:
                data = self._receive(BLOCK)
                if not data and self.total is not None and self.position < self.total:
                    raise TransientError(  # noqa: TRY301
                        f"the connection ended after {self.position} of {self.total} bytes"
                    )
            except TransientError as error:
                self.close()
                self._retry.wait_or_raise(self._name, error)
                continue
            if not data:
                return
            self._retry.reset()
            self.position += len(data)
            self._digest.update(data)
            self._progress.read += len(data)
            yield data

    def _receive(self, size: int) -> bytes:
        assert self._body is not None  # noqa: S101 - `start` has set it
        try:
            return self._body.read(size)
        except self._body.errors as error:
            raise TransientError(f"the connection broke ({str(error) or type(error).__name__})") from error

    def _connect(self) -> None:
        body = self._open(self.position, self._version)
        self._body = body
        if self._version and body.version and body.version != self._version:
            if body.offset:
                raise self._changed_error()
            self._version = body.version  # `_read_over` finds out whether the content is the same
        if body.offset != self.position:
            self._read_over()
        if self.total is not None and body.total not in (None, self.total):
            raise self._changed_error()
        self.total = body.total if self.total is None else self.total
        self._version = self._version or body.version

    def _read_over(self) -> None:
        """Skip the first `position` bytes of a response that starts at byte 0.

        Raises:
            DataError: the skipped bytes have another sha256 than the bytes that were read before the break.
            TransientError: the connection broke again.
        """
        log.info(
            "%s: the server sends the source from its start; skipping %d bytes that were already read",
            self._name,
            self.position,
        )
        seen, left = hashlib.sha256(), self.position
        while left:
            data = self._receive(min(BLOCK, left))
            if not data:
                raise TransientError(f"the connection ended {left} bytes too early")
            seen.update(data)
            left -= len(data)
        if seen.digest() != self._digest.digest():
            raise self._changed_error()

    def _changed_error(self) -> DataError:
        return DataError(
            f"{self._name} changed while it was read: the connection broke after {self.position} bytes, and "
            "the server now has other content. Fix: use a source that does not change, set data.sha256, and "
            "start the run again with another runId."
        )

    def close(self) -> None:
        """Close the connection; the next block opens it again."""
        if self._body is not None:
            self._body.close()
            self._body = None


def file_blocks(
    path: Path, progress: DataProgress, digest: hashlib._Hash, begin: int
) -> Generator[bytes, None, None]:
    """Yield the content of a file of the shared storage from the byte `begin` on, in blocks.

    This function adds the bytes to the counter of `progress`, and updates `digest` with them.

    Raises:
        StorageError, StorageFailedError: the file cannot be read.
        FileNotFoundError: the file is absent.
    """
    with storage_errors(path), path.open("rb", buffering=0) as file:
        file.seek(begin)
        while data := file.read(BLOCK):
            digest.update(data)
            progress.read += len(data)
            yield data


class _BlockFile(io.RawIOBase):
    """Adapts an iterator of blocks to the interface of Python's files."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        """Fill `buffer`, and return the number of bytes; less than the complete buffer is filled only at the end.

        Python would allow to return fewer bytes earlier, but then `peek` of a `BufferedReader` would return too few.
        """
        view, filled = memoryview(cast("bytearray", buffer)).cast("B"), 0
        while filled < len(view):
            while not self._rest:
                if (block := next(self._blocks, None)) is None:
                    return filled
                self._rest = memoryview(block)
            part = self._rest[: len(view) - filled]
            view[filled : filled + len(part)] = part
            filled, self._rest = filled + len(part), self._rest[len(part) :]
        return filled


def buffered(blocks: Iterator[bytes]) -> io.BufferedReader:
    """Return a file object whose content is all blocks, one after the other.

    Its methods raise the errors of the iterator. Before the first `read`, `peek` returns the first BLOCK bytes.
    """
    return io.BufferedReader(_BlockFile(blocks), BLOCK)


T = TypeVar("T")
_WAIT_SECONDS = 0.5


class Prefetch(Generic[T]):
    """Iterates over the items of another iterator, which a thread produces in advance."""

    def __init__(self, items: Iterator[T], ahead: int, wait: Callable[[], None] = lambda: None) -> None:
        """Start the thread, which keeps at most `ahead` items ready for the consumer.

        `wait` is called about twice a second while the consumer waits for an item; it may raise.
        """
        self._items, self._wait = items, wait
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(ahead)
        self._end: BaseException | None = None
        self._closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put((item, None)):
                    return
        except BaseException as error:
            self._put((None, error))
        else:
            self._put((None, StopIteration()))

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        """Queue `entry`, which is an item or the error that ends the iteration.

        Return False, without queueing, once the consumer has called `close`.
        """
        while not self._closed.is_set():
            try:
                self._ready.put(entry, timeout=_WAIT_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Return the next item; raise the error that the other iterator raised."""
        while self._end is None:
            try:
                item, self._end = self._ready.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                self._wait()
                continue
            if self._end is None:
                return item  # type: ignore[return-value]  # an entry without an end has an item
        raise self._end

    def close(self, seconds: float | None = None) -> None:
        """Stop the thread, and wait at most `seconds` until it has ended (None: without a limit)."""
        self._closed.set()
        self.thread.join(seconds)
