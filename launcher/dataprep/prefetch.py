"""Run an iterator in a thread, a bounded number of items ahead of its consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from launcher.dataprep.byte_streams import BLOCK, BlockReader, ClosableStream

T = TypeVar("T")
_WAIT_SECONDS = 0.5


class Prefetch(Generic[T]):
    """Iterates over the items of another iterator, which a thread produces in advance."""

    def __init__(self, items: Iterator[T], ahead: int, wait: Callable[[], None] = lambda: None) -> None:
        """Start the thread, which produces at most `ahead` items before the consumer takes them.

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
        """Queue an item, or the error that ends the items. Return False when the consumer has called `close`."""
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
        """Return the next item. Raises what the other iterator raised."""
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


class ReadAhead(BlockReader):
    """Reads a slow stream in a thread, some blocks ahead of the reader."""

    def __init__(self, stream: ClosableStream, blocks: int = 8) -> None:
        self._stream = stream
        self._ahead = Prefetch(iter(lambda: stream.read(BLOCK), b""), blocks)
        super().__init__(self._ahead)

    def close(self) -> None:
        """Stop the thread, and close the stream."""
        self._ahead.close()
        self._stream.close()
