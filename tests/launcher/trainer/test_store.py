"""Tests of the store through which trainers rendezvous."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from launcher.errors import DeadlineError
from launcher.trainer import gloo_store
from testkit.waiting import until

ROOT = Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def call(method: str, port: int, key: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{key}", data=body, method=method)
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
        return bytes(answer.read())


PARENT = (
    "import sys, time; from pathlib import Path; from launcher.trainer import gloo_store as store; "
    "store.start_store('127.0.0.1', int(sys.argv[1]), Path('/nowhere/request')); time.sleep(60)"
)


def test_the_store_keeps_values_and_exits_with_the_process_that_started_it() -> None:
    port = free_port()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(port)], cwd=ROOT)
    try:
        until(lambda: listens(port), "a listener")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            call("GET", port, "/worker/0")
        call("PUT", port, "/worker/0", b"\x00address")
        assert call("GET", port, "/worker/0") == b"\x00address"
        call("DELETE", port, "/worker/0", b"")
        assert call("GET", port, "/worker/0") == b"\x00address", "another trainer may still need it"
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not listens(port), "an empty port behind a killed pserver", 10)


def test_a_port_in_use_makes_the_pserver_exit_with_a_message() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(port)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        _, said = parent.communicate(timeout=30)
    assert parent.returncode == -signal.SIGTERM
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "portsNumSparse" in said


def test_all_trainers_at_one_batch_get_the_same_answer_and_a_request_is_granted_once(
    tmp_path: Path,
) -> None:
    request = tmp_path / "request"
    port = free_port()
    with gloo_store.GlooStore("127.0.0.1", port, request) as served:
        threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()

        def ask(step: int, proposed: int = 9) -> tuple[bool, int]:
            return gloo_store.ask_checkpoint_decision("127.0.0.1", port, f"/ask/0/{step}", proposed)

        assert ask(1, 2) == (False, 2)
        request.write_text("a")
        steps = iter(range(2, 1000))
        last = [0]

        def granted() -> bool:
            last[0] = next(steps)
            return ask(last[0])[0]

        until(granted, "the request to be seen")
        assert ask(1, 7) == (False, 2), "the decision of a batch stays, with the first one's proposal"
        assert ask(last[0]) == (True, 9)
        assert not ask(1001)[0], "the same request, whose file is still there"
        request.write_text("b")
        until(granted, "the next request to be seen")
        request.unlink()
        served.shutdown()


def test_a_trainer_without_an_answer_of_the_store_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_store, "ASK_SECONDS", 0.0)
    with pytest.raises(DeadlineError, match="did not answer within 0 s whether to save a checkpoint"):
        gloo_store.ask_checkpoint_decision("127.0.0.1", free_port(), "/ask/0/1", 2)
