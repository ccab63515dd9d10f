"""Tests of commands in a container: when silence counts as a lost connection."""

from __future__ import annotations

import errno
import io
import json
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from websocket import ABNF, WebSocketTimeoutException

from launcher.cli import cluster_api
from launcher.cli.cluster_api import ExecStream
from launcher.cli.errors import CliError
from testkit.waiting import until

IDLE_SECONDS = 60.0


class FakeSocket:
    """A websocket to a command that answers when it has received `wanted` bytes.

    Each send waits for a read of the answer, which then times out: 40 s later on `clock`, or IDLE_SECONDS if nothing
    more is sent.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted, self.received, self.clock = wanted, 0, 0.0
        self.reads, self.sends = threading.Semaphore(0), threading.Semaphore(0)
        self.answer = deque([b"\x01ok", b"\x03" + json.dumps({"status": "Success"}).encode()])

    def settimeout(self, seconds: float) -> None:
        assert seconds == IDLE_SECONDS

    def send_binary(self, data: bytes) -> None:
        if self.received >= self.wanted:
            raise OSError(errno.EBADF, "the command has exited")
        self.reads.acquire()
        self.clock += 40
        self.received += len(data) - 1  # the first byte is the channel
        self.sends.release()

    def recv_data_frame(self, _: bool) -> tuple[int, Any]:
        if self.received >= self.wanted:
            if not self.answer:
                return ABNF.OPCODE_CLOSE, None
            return ABNF.OPCODE_BINARY, SimpleNamespace(data=self.answer.popleft())
        self.reads.release()
        if not self.sends.acquire(timeout=0.5):
            self.clock += IDLE_SECONDS
        raise WebSocketTimeoutException

    def shutdown(self) -> None:
        pass


def start_command(monkeypatch: pytest.MonkeyPatch, wanted: int, given: bytes) -> ExecStream:
    socket = FakeSocket(wanted)
    monkeypatch.setattr(cluster_api, "time", SimpleNamespace(monotonic=lambda: socket.clock))
    opened = SimpleNamespace(sock=socket)
    monkeypatch.setattr("kubernetes.stream.ws_client.websocket_call", lambda *_, **__: opened)
    configuration = SimpleNamespace(auth_settings=dict, host="http://x")
    cluster = cluster_api.Cluster(configuration, "paddle", "local")
    return ExecStream(cluster, "pod", "reader", ["untar"], stdin=io.BytesIO(given), idle_seconds=IDLE_SECONDS)


def test_an_upload_may_take_longer_than_the_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = bytes(10 * 32 * 1024)  # ten sends of 40 s
    stream = start_command(monkeypatch, len(given), given)
    assert stream.read() == b"ok"
    stream.result()


def test_a_command_that_stays_silent_after_all_was_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = start_command(monkeypatch, 1 << 30, b"few bytes")
    with pytest.raises(CliError, match=r"no byte was received or sent for 60 s.* Fix: check that the pod"):
        stream.read()


def test_the_end_of_stdin_that_a_successful_command_does_not_read_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tar archive ends with zeros that its reader does not need."""
    stream = start_command(monkeypatch, 32 * 1024, bytes(64 * 1024))
    assert stream.read() == b"ok"
    until(lambda: stream._failure)
    stream.result()
