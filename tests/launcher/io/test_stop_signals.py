"""Tests of signal handlers: they are called, restored, and a second signal does not interrupt the clean-up."""

from __future__ import annotations

import io
import os
import signal

import pytest

from launcher import log as launcher_log
from launcher.errors import StoppedError
from launcher.io.stop_signals import handle_signals, raise_on_stop_signal


def test_handle_signals_calls_the_handler_and_restores_the_earlier_one() -> None:
    earlier = signal.getsignal(signal.SIGTERM)
    received: list[int] = []
    with handle_signals(received.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == earlier


def test_the_first_stop_signal_raises_and_a_second_one_is_ignored() -> None:
    earlier = signal.getsignal(signal.SIGINT)  # of a background job of a shell: SIG_IGN
    with (
        pytest.raises(StoppedError, match=r"^received SIGTERM; nothing was written$"),
        raise_on_stop_signal("nothing was written"),
    ):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is earlier


def test_stop_signal_while_a_log_line_is_written_stops_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: logging printed the exception of the signal and continued, and the pod waited until it was killed."""

    class Stderr(io.StringIO):
        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGTERM)
            return super().write(text)

    monkeypatch.setattr("sys.stderr", Stderr())
    for name in ("handlers", "propagate", "level"):  # start_logging changes them
        monkeypatch.setattr(launcher_log.log, name, getattr(launcher_log.log, name))
    launcher_log.log.handlers = []
    launcher_log.start_logging("await-data 0")
    with pytest.raises(StoppedError), raise_on_stop_signal():
        launcher_log.log.info("waiting for data")
