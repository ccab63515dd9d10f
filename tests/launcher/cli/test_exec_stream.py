"""Tests of commands in a container: when silence counts as a lost connection."""

from __future__ import annotations

import io
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from websocket import ABNF, WebSocketTimeoutException

from launcher.cli.cluster.exec_stream import ExecStream
from launcher.cli.errors import CliError

IDLE = 0.5


class SlowSocket:
    """A websocket to a command that answers when it has received `wanted` bytes; each send takes `seconds`."""

    def __init__(self, wanted: int, seconds: float) -> None:
        self.wanted, self.seconds = wanted, seconds
        self.has_all = threading.Event()
        self.received = 0

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def send_binary(self, data: bytes) -> None:
        time.sleep(self.seconds)
        self.received += len(data) - 1  # the first byte is the channel
        if self.received >= self.wanted:
            self.has_all.set()

    def recv_data_frame(self, _: bool) -> tuple[int, Any]:
        if not self.has_all.wait(self.timeout):
            raise WebSocketTimeoutException
        frames = [b"\x01ok", b"\x03" + json.dumps({"status": "Success"}).encode(), b""]
        self.answered = getattr(self, "answered", -1) + 1
        data = frames[self.answered]
        return (ABNF.OPCODE_BINARY if data else ABNF.OPCODE_CLOSE), SimpleNamespace(data=data)

    def shutdown(self) -> None:
        pass


def start_command(monkeypatch: pytest.MonkeyPatch, socket: SlowSocket, given: bytes) -> ExecStream:
    monkeypatch.setattr(
        "kubernetes.stream.ws_client.websocket_call", lambda *_, **__: SimpleNamespace(sock=socket)
    )
    configuration = SimpleNamespace(auth_settings=dict)
    place = ("pod", "reader")
    return ExecStream(
        configuration, "local", "url", place, ["untar"], stdin=io.BytesIO(given), idle_seconds=IDLE
    )


def test_an_upload_may_take_longer_than_the_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = bytes(10 * 32 * 1024)
    socket = SlowSocket(len(given), 0.15)  # 1.5 s without a byte from the command
    stream = start_command(monkeypatch, socket, given)
    assert stream.read() == b"ok"
    stream.result()
    assert socket.received == len(given)


def test_a_command_that_stays_silent_after_all_was_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = start_command(monkeypatch, SlowSocket(1 << 30, 0.0), b"few bytes")
    with pytest.raises(CliError, match=r"no byte was received or sent for 0 s.* Fix: check that the pod"):
        stream.read()
