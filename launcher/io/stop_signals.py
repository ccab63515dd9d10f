"""Signal handlers for SIGTERM and SIGINT, used by every process that must clean up before it exits."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Callable, Iterator, Sequence

from launcher.errors import StoppedError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@contextlib.contextmanager
def handle_signals(handler: Callable[[int], object], signals: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """Call `handler` for each signal received inside the `with` block; afterwards restore the earlier handlers.

    The handler receives the signal's number. The handler runs in the main thread, between any two instructions, so an
    exception of the handler may interrupt any code of the main thread. In another thread, where Python cannot set
    handlers, this function only runs the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda received, _: handler(received)) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def raise_on_stop_signal(consequence: str = "") -> Iterator[None]:
    """Raise `StoppedError` inside the `with` block at the first SIGTERM or SIGINT, and ignore further ones.

    Further signals must not interrupt the clean-up that the first one started. `consequence` is a part of the message
    and says what the stop means for the user, such as `nothing was written`.
    """

    def stop(number: int) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise stopped_by(number, consequence)

    with handle_signals(stop):
        yield


def restore_handlers() -> None:
    """Restore Python's own signal handlers after the import of Paddle, which replaces some of them.

    Paddle's handlers print a C++ stack trace at SIGTERM and after a crash such as SIGSEGV. These handlers allocate
    memory, and one handler may wait for another one, so that the process sleeps in a handler for ever. This was seen in
    a child process between its fork and its exec, and the parent process waited for the child. After a call of this
    function, Python prints its own stack trace after a crash. In any thread other than the main thread, this function
    does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, *_CRASHES):
            signal.signal(number, signal.getsignal(number))
        faulthandler.enable(2, all_threads=False)


def stopped_by(number: int, consequence: str = "") -> StoppedError:
    """Return the `StoppedError` of a process that stops because it received signal `number`."""
    text = f"received {signal.Signals(number).name}"
    return StoppedError(f"{text}; {consequence}" if consequence else text)
