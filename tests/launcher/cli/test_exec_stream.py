"""Tests of commands in a container: when a connection is lost, and that it is not read and written at once."""

from __future__ import annotations

import errno
import io
import json
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from websocket import ABNF, WebSocketTimeoutException

from launcher.cli import cluster_api
from launcher.cli.cluster_api import ExecStream, UnreachableError
from launcher.cli.errors import CliError
from testkit.waiting import until

IDLE_SECONDS = 60.0


class FakeSocket:
    """A websocket to a command that answers when it has received `wanted` bytes.

    Each send takes 40 s on `clock`, and must be alone: it fails if another thread reads or sends meanwhile. A wait for
    an answer ends without one when something was sent, or after IDLE_SECONDS on `clock` if nothing more is sent.
    """

    def __init__(self, wanted: int) -> None:
        self.sock, self.wanted, self.received, self.clock = self, wanted, 0, 0.0
        self.waits, self.sends, self.in_use = threading.Semaphore(0), threading.Semaphore(0), threading.Lock()
        self.buffered, self.has_waited_for_a_frame = 0, threading.Event()
        self.answer = deque([b"\x01ok", b"\x03" + json.dumps({"status": "Success"}).encode()])

    def settimeout(self, seconds: float) -> None:
        self.seconds = seconds

    def pending(self) -> int:
        return self.buffered

    def wait_for_read(self, connection: object, seconds: float) -> bool:
        assert connection is self and seconds == cluster_api.READ_PAUSE_SECONDS
        if self.received >= self.wanted:
            return True
        self.waits.release()
        if not self.sends.acquire(timeout=0.5):
            self.clock += IDLE_SECONDS + 1
        return False

    def send_binary(self, data: bytes) -> None:
        assert self.in_use.acquire(blocking=False) and self.seconds == IDLE_SECONDS
        try:
            if self.received >= self.wanted:
                raise OSError(errno.EBADF, "the command has exited")
            self.waits.acquire(timeout=0.01)
            self.clock += 40
            self.received += len(data) - 1  # the first byte is the channel
            self.sends.release()
        finally:
            self.in_use.release()

    def recv_data_frame(self, _: bool) -> tuple[int, Any]:
        assert self.in_use.acquire(blocking=False) and self.seconds == cluster_api.READ_PAUSE_SECONDS
        try:
            if self.received < self.wanted:  # a part of a frame
                self.has_waited_for_a_frame.set()
                time.sleep(0.05)
                raise WebSocketTimeoutException
            if not self.answer:
                return ABNF.OPCODE_CLOSE, None
            return ABNF.OPCODE_BINARY, SimpleNamespace(data=self.answer.popleft())
        finally:
            self.in_use.release()

    def shutdown(self) -> None:
        pass


class LateInput(io.BytesIO):
    """Bytes that can be read from the time on at which `ready` is set."""

    def __init__(self, content: bytes, ready: threading.Event) -> None:
        super().__init__(content)
        self._ready = ready

    def read(self, size: int | None = -1) -> bytes:
        assert self._ready.wait(30)
        return super().read(size)


def start_command(
    monkeypatch: pytest.MonkeyPatch, wanted: int, given: bytes, buffered: int = 0
) -> tuple[ExecStream, FakeSocket]:
    socket = FakeSocket(wanted)
    socket.buffered = buffered
    monkeypatch.setattr(cluster_api, "time", SimpleNamespace(monotonic=lambda: socket.clock))
    monkeypatch.setattr("urllib3.util.wait_for_read", socket.wait_for_read)
    opened = SimpleNamespace(sock=socket)
    monkeypatch.setattr("kubernetes.stream.ws_client.websocket_call", lambda *_, **__: opened)
    configuration = SimpleNamespace(auth_settings=dict, host="http://x")
    cluster = cluster_api.Cluster(configuration, "paddle", "local")
    stdin = LateInput(given, socket.has_waited_for_a_frame) if buffered else io.BytesIO(given)
    stream = ExecStream(cluster, "pod", "reader", ["untar"], stdin=stdin, idle_seconds=IDLE_SECONDS)
    return stream, socket


@pytest.mark.parametrize("buffered", [0, 1])
def test_an_upload_may_take_longer_than_the_idle_time_and_is_never_read_and_written_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, buffered: int
) -> None:
    """OpenSSL forbids it; some uploads failed. With `buffered`, parts of frames arrive; they block no send for long."""
    given = bytes(10 * 32 * 1024)  # ten sends of 40 s
    stream, _ = start_command(monkeypatch, len(given), given, buffered)
    assert stream.read() == b"ok"
    stream.result()


def test_a_closed_connection_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, socket = start_command(monkeypatch, 1, b"few bytes")
    socket.answer.pop()  # the status
    with pytest.raises(UnreachableError, match=r"the connection was closed .* Fix: run your command again"):
        stream.result()


def test_a_command_that_stays_silent_after_all_was_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = start_command(monkeypatch, 1 << 30, b"few bytes")
    with pytest.raises(CliError, match=r"no byte was received or sent for 60 s.* Fix: check that the pod"):
        stream.read()


def test_the_end_of_stdin_that_a_successful_command_does_not_read_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tar archive ends with zeros that its reader does not need."""
    stream, _ = start_command(monkeypatch, 32 * 1024, bytes(64 * 1024))
    assert stream.read() == b"ok"
    until(lambda: stream._failure)
    stream.result()
