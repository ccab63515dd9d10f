"""Tests of signal handlers: they are called, restored, and a second signal does not interrupt the clean-up."""

from __future__ import annotations

import os
import signal

import pytest

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
