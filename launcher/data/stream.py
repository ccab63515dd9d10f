"""Bytes of a source, read once: counted, hashed, and taken up again where a connection broke."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.data.progress import Progress
from launcher.errors import DataError
from launcher.reporting.log import log
from launcher.retry import Retry, TransientError

BLOCK = 1 << 20


class Readable(Protocol):
    """The one method of a file that everything here needs."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass
class Body:
    """An open answer, which begins at byte `offset` of the source."""

    readable: Readable
    offset: int
    total: int | None
    """Bytes of the whole source, when the server says so."""
    version: str
    """What names these bytes (an ETag or a date); empty when the server gives none."""
    close: Callable[[], None]


class Open(Protocol):
    """Opens a source at a byte; raises `TransientError` where another try may help, else `DataError`."""

    def __call__(self, offset: int, version: str, /) -> Body: ...


class ResumingStream:
    """A source over a network, which may break at any byte.

    After a break it goes on at the same byte where the server allows; where it sends all again, the bytes
    already used are read over and must have the same sha256. Raises `DataError` when they have not, or when
    the tries are used up.
    """

    def __init__(  # noqa: PLR0917 - what a stream is made of
        self,
        name: str,
        open_at: Open,
        retry: Retry,
        progress: Progress,
        also: hashlib._Hash | None = None,
        begin: int = 0,
    ) -> None:
        """`begin`: the first byte that is wanted, of a server that gives any."""
        self._name, self._open, self._retry, self._progress = name, open_at, retry, progress
        self._also = also  # a sha256 over several streams
        self._body: Body | None = None
        self._version = ""
        self._sha256 = hashlib.sha256()
        self.position = begin
        self.total: int | None = None

    def start(self) -> None:
        """Opens the source, so that `total` is known."""
        while self._body is None:
            self._progress.tick("connecting")
            try:
                self._connect()
            except TransientError as error:
                self._retry.failed(self._name, error)

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes (all that is left by default); empty only at the end of the source."""
        if size < 0:
            return b"".join(iter(lambda: self.read(BLOCK), b""))
        while True:
            self.start()
            try:
                data = self._receive(size)
            except TransientError as error:
                self._drop()
                self._retry.failed(self._name, error)
                continue
            if data:
                self._retry.moved()
                self.position += len(data)
                self._sha256.update(data)
                if self._also is not None:
                    self._also.update(data)
                self._progress.read += len(data)
            return data

    def hexdigest(self) -> str:
        """The sha256 of all that was read."""
        return self._sha256.hexdigest()

    def _receive(self, size: int) -> bytes:
        assert self._body is not None  # noqa: S101 - `start` has just set it
        data = self._body.readable.read(size)
        if not data and self.total is not None and self.position < self.total:
            raise TransientError(f"the connection ended after {self.position} of {self.total} bytes")
        return data

    def _connect(self) -> None:
        body = self._open(self.position, self._version)
        self._body = body
        if self._version and body.version and body.version != self._version:
            if body.offset:
                raise self._changed()
            self._version = body.version  # the bytes decide, below
        if body.offset != self.position:
            self._read_over(body)
        if body.total is not None:
            self.total = body.total
        self._version = self._version or body.version

    def _read_over(self, body: Body) -> None:
        """Brings an answer that begins at 0 to `position`."""
        log.info("%s: the server sends all again; %d bytes are read over", self._name, self.position)
        seen, left = hashlib.sha256(), self.position
        try:
            while left:
                data = body.readable.read(min(BLOCK, left))
                if not data:
                    raise TransientError(f"the connection ended {left} bytes before the place to go on")  # noqa: TRY301
                seen.update(data)
                left -= len(data)
        except TransientError:
            self._drop()
            raise
        if seen.digest() != self._sha256.digest():
            raise self._changed()

    def _changed(self) -> DataError:
        return DataError(
            f"{self._name} changed while it was read: after {self.position} bytes the connection broke, "
            "and what the server has now is something else. Start the Job again; name a source that does "
            "not change, and set data.sha256."
        )

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        """Ends the connection."""
        self._drop()


class FileStream:
    """A file of the shared volume."""

    def __init__(
        self, path: Path, progress: Progress, also: hashlib._Hash | None = None, begin: int = 0
    ) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        self._file.seek(begin)
        self._sha256 = also or hashlib.sha256()
        self._progress = progress
        self.total: int | None = path.stat().st_size

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; empty only at the end of the file."""
        data = self._file.read(size)
        self._sha256.update(data)
        self._progress.read += len(data)
        return data

    def hexdigest(self) -> str:
        """The sha256 of all that was read."""
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Ahead:
    """Reads a slow stream from a thread, some blocks ahead of who uses it."""

    def __init__(self, stream: Readable, blocks: int = 8) -> None:
        self._stream = stream
        self._blocks: queue.Queue[bytes | BaseException] = queue.Queue(blocks)
        self._rest = memoryview(b"")
        self._end: bytes | BaseException | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        item: bytes | BaseException = b"-"
        while item and isinstance(item, bytes):
            try:
                item = self._stream.read(BLOCK)
            except BaseException as error:
                item = error
            while not self._closed.is_set():
                try:
                    self._blocks.put(item, timeout=0.2)
                except queue.Full:
                    continue
                break
            if self._closed.is_set():
                return

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; empty only at the end. Raises what the thread met."""
        if not self._rest:
            item = self._end if self._end is not None else self._blocks.get()
            if isinstance(item, BaseException) or not item:
                self._end = item
                if isinstance(item, BaseException):
                    raise item
            self._rest = memoryview(item)
        size = len(self._rest) if size < 0 else size
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data

    def close(self) -> None:
        """Ends the thread; the stream may then be closed."""
        self._closed.set()
        self._thread.join()


class Peeked:
    """A stream whose first bytes may be looked at before they are read."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._head = b""

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, or all that there are, without taking them."""
        while len(self._head) < size and (data := self._stream.read(size - len(self._head))):
            self._head += data
        return self._head[:size]

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes."""
        if self._head:
            size = len(self._head) if size < 0 else size
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._stream.read(size)
