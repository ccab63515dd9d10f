"""Run code that blocks in threads, waits and sleeps on a virtual clock: one thread at a time, in a fixed order.

`VirtualClock` hands a baton from thread to thread. A thread that waits passes it to the thread, or runs the
callback, that is due next, so nothing waits in real time and equal inputs give equal runs. `TIME`, `THREADING`
and `SimpleQueue` have the interface of the standard library's; outside of a simulation they behave like these.
A thread belongs to an owner (`SimulatedPod`): its threads wait while it is frozen and end when it is dead, and
its `clock_offset` is how many seconds its clock is ahead.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

EPOCH = 1.8e9  # Unix time at the start of a simulation


class ThreadKilledError(BaseException):
    """Ends a thread whose owner is dead. Not an Exception, so that no `except Exception` stops it."""


_here = threading.local()  # .clock: the clock of the simulation that this operating system thread runs


class _Worker(threading.Thread):
    """An operating system thread that runs the functions of one `Thread` after the other."""

    idle: ClassVar[list[_Worker]] = []
    thread: Thread

    def __init__(self) -> None:
        super().__init__(name="simulation", daemon=True)
        self.baton = threading.Lock()
        self.baton.acquire()
        self.start()

    def run(self) -> None:
        while True:
            self.baton.acquire()
            clock = _here.clock = self.thread.clock
            try:
                if not self.thread.killed:
                    self.thread.run()
            except ThreadKilledError:
                pass
            except BaseException as error:
                clock.stop(error)
            clock.wake(self.thread.joining)
            self.thread.is_over = True
            self.idle.append(self)
            clock.pass_on()


class Thread:
    """`threading.Thread` of a simulation; it belongs to the owner of the thread that creates it."""

    def __init__(
        self,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        owner: Any = None,
        **_: object,
    ) -> None:
        self.clock: VirtualClock = _here.clock
        self.owner, self.target, self.args = owner or self.clock.running.owner, target, args
        self.turn, self.woken, self.killed, self.is_over = 0, False, False, False
        self.joining: list[Thread] = []
        self.worker: _Worker | None = None

    def run(self) -> None:
        self.target(*self.args)

    def start(self) -> None:
        self.worker = _Worker.idle.pop() if _Worker.idle else _Worker()
        self.worker.thread = self
        self.clock.threads.append(self)
        self.clock.wake([self])

    @property
    def ident(self) -> int | None:
        return None if self.worker is None else id(self)

    def is_alive(self) -> bool:
        return self.worker is not None and not self.is_over

    def join(self, timeout: float | None = None) -> None:
        if not self.is_over:
            self.clock.wait(timeout, self.joining)


class VirtualClock:
    """The virtual time, and all threads and callbacks that are due."""

    def __init__(self, rng: random.Random) -> None:
        self.now, self._count, self._rng = 0.0, 0, rng
        self._error: BaseException | None = None
        self._due: list[tuple[float, int, Thread | Callable[[], None], int, bool]] = []
        self._current: Thread | None = None
        self.threads: list[Thread] = []
        self._over = False
        self._baton = threading.Lock()
        self._baton.acquire()

    @property
    def running(self) -> Thread:
        """Return the running thread. Raises AssertionError when called in a callback, where no thread runs."""
        assert self._current is not None, "not in a thread of the simulation"
        return self._current

    @property
    def owner(self) -> Any:
        """Return the owner of the running thread; None in a callback."""
        return None if self._current is None else self._current.owner

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Let the `with` block run as in a callback: it is no code of the running thread, and must not wait."""
        thread, self._current = self._current, None
        try:
            yield
        finally:
            self._current = thread

    def schedule(self, delay: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay` seconds, in no thread: it must not wait."""
        self._push(delay, then, 0, woken=False)

    def _push(self, delay: float, what: Thread | Callable[[], None], turn: int, *, woken: bool) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now + max(0.0, delay), self._count, what, turn, woken))

    def stop(self, error: BaseException | None = None) -> None:
        """End the run after the present callback or at the next wait; `run` raises `error`."""
        self._over, self._error = True, self._error or error

    def run(self, limit: float) -> None:
        """Run until `stop`, or until nothing is due before `limit`; then end all threads."""
        _here.clock, self._limit = self, limit
        try:
            self.pass_on()
            self._baton.acquire()
            self._over = True
            for thread in self.threads:
                if not thread.is_over:
                    thread.killed, self._current = True, thread
                    assert thread.worker is not None
                    thread.worker.baton.release()
                    self._baton.acquire()
        finally:
            del _here.clock
        if self._error is not None:
            raise self._error

    def pass_on(self) -> None:
        """Give the baton to the thread that is due next, or at the end to `run`."""
        thread = self._next()
        (self._baton if thread is None or thread.worker is None else thread.worker.baton).release()

    def _next(self) -> Thread | None:
        """Make the callbacks that are due; return the next thread that is due, or None at the end."""
        self._current = None
        while self._due and not self._over:
            at, _, what, turn, woken = heapq.heappop(self._due)
            if at > self._limit:
                break
            self.now = at
            if not isinstance(what, Thread):
                try:
                    what()
                except BaseException as error:
                    self.stop(error)
            elif what.turn == turn and not what.owner.dead:
                if what.owner.frozen > at:
                    self._push(what.owner.frozen - at + self._rng.uniform(0, 0.3), what, turn, woken=woken)
                    continue
                what.turn, what.woken, self._current = turn + 1, woken, what
                return what
        return None

    def wait(self, seconds: float | None, waiting: list[Thread] | None = None) -> bool:
        """Let the running thread wait for `seconds`, or until it is woken as one of `waiting`.

        Returns:
            Whether it was woken.
        """
        thread = self.running
        if thread.killed or thread.owner.dead:
            raise ThreadKilledError
        if waiting is not None:
            waiting.append(thread)
        if seconds is not None:
            self._push(seconds, thread, thread.turn, woken=False)
        following = self._next()
        if following is not thread:
            worker = None if following is None else following.worker
            (self._baton if worker is None else worker.baton).release()
            assert thread.worker is not None
            thread.worker.baton.acquire()
            if thread.killed:
                raise ThreadKilledError
        if waiting is not None and thread in waiting:
            waiting.remove(thread)
        return thread.woken

    def wake(self, waiting: list[Thread]) -> None:
        """Wake these threads at the present time."""
        for thread in waiting:
            self._push(0.0, thread, thread.turn, woken=True)
        waiting.clear()


def active() -> VirtualClock | None:
    """Return the clock of the simulation that this operating system thread runs; None outside of one."""
    return getattr(_here, "clock", None)


def _ahead() -> float:
    owner = _here.clock.owner
    return 0.0 if owner is None else owner.clock_offset


class _VirtualTime:
    """Stands in for the module `time`; its clock and `sleep` are virtual."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() if active() is None else _here.clock.now + _ahead()

    def time(self) -> float:
        return time.time() if active() is None else EPOCH + _here.clock.now + _ahead() / 10

    def sleep(self, seconds: float) -> None:
        if active() is None:
            time.sleep(seconds)
        else:
            _here.clock.wait(seconds)


class Event:
    """Stands in for `threading.Event` in a simulation."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiting:
            _here.clock.wake(self._waiting)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            _here.clock.wait(timeout, self._waiting)
        return self._set


class Condition:
    """Stands in for `threading.Condition` and `threading.Lock` in a simulation."""

    def __init__(self) -> None:
        self._is_held = False
        self._entering: list[Thread] = []
        self._waiting: list[Thread] = []

    def __enter__(self) -> None:
        while self._is_held:
            _here.clock.wait(None, self._entering)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        _here.clock.wake(self._entering)

    def notify_all(self) -> None:
        _here.clock.wake(self._waiting)

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        end = _here.clock.now + timeout
        while not predicate() and _here.clock.now < end:
            self.__exit__()
            try:
                _here.clock.wait(end - _here.clock.now, self._waiting)
            finally:
                self._is_held = True  # a killed thread leaves its `with` block, too
        return predicate()


class _VirtualThreading:
    """Stands in for the module `threading`, with the classes of this module."""

    Thread, Event, Condition, Lock = Thread, Event, Condition, Condition

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class SimpleQueue:
    """Stands in for `queue.SimpleQueue` in a simulation."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiting: list[Thread] = []

    def __class_getitem__(cls, _: object) -> type[SimpleQueue]:
        return cls

    def put(self, item: object) -> None:
        self._items.append(item)
        _here.clock.wake(self._waiting)

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            _here.clock.wait(timeout, self._waiting)
        return self.get_nowait()


TIME, THREADING = _VirtualTime(), _VirtualThreading()
