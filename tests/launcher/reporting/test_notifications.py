"""Tests of notifications with a real HTTP server on loopback that fails, hangs and rejects requests."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from launcher.log import log
from launcher.reporting import notifications
from launcher.reporting.notifications import Notifier
from launcher.settings import TrainSettings
from testkit.http_servers import serving
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ

SECRET = "T0P/s3cret"
FIX = ". Fix: check that the address in notify.webhook is right and that the pods can reach it"


class Hook:
    """A web server that accepts messages at one secret path."""

    def __init__(self) -> None:
        self.answers: list[int | str] = []
        """The next answers, then 200: a status, "hang" (no answer), or "echo" (the path, which is not HTTP)."""
        self.requests: list[dict[str, Any]] = []
        self.accepted: list[dict[str, Any]] = []
        self.others: list[str] = []
        """Paths of GET requests, which the launcher must not send."""
        self.closing = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == f"/{SECRET}"
                hook.requests.append(body)
                status = hook.answers.pop(0) if hook.answers else 200
                if status == "hang":
                    hook.closing.wait(30)
                elif status == "echo":
                    self.wfile.write(self.path.encode() + b"\r\n\r\n")
                if isinstance(status, str):
                    return
                if status == 200:
                    hook.accepted.append(body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                hook.others.append(self.path)
                self.send_response(200)
                self.end_headers()

        self._stack = contextlib.ExitStack()
        self.http = self._stack.enter_context(serving(Handler, daemon_threads=False))
        self.url = f"http://127.0.0.1:{self.http.server_port}/{SECRET}"

    def close(self) -> None:
        self.closing.set()
        self._stack.close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


@pytest.fixture
def logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """Return a function that returns the logged lines; after the test, check that they lack the secret."""
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.DEBUG, "launcher")
    yield lambda: [record.getMessage() for record in caplog.records]
    assert SECRET not in caplog.text
    assert "127.0.0.1" not in caplog.text


def settings(**env: str) -> TrainSettings:
    return TrainSettings.from_environ(pod_environ(**env))


def notifier(hook: Hook, **times: float) -> Notifier:
    return Notifier(settings(PADDLE_LAUNCHER_WEBHOOK=hook.url), **{"base": 0.02, "timeout": 5.0, **times})


def test_message_contains_run_event_cause_and_score(hook: Hook, logged: Callable[[], list[str]]) -> None:
    sender = notifier(hook)
    sender.notify("restarted", attempt=2, cause="rank 1: trainer was killed by SIGKILL")
    until(lambda: hook.accepted)
    sender.notify("completed", attempt=2, score={"error": 0.125})
    sender.close(20)
    restarted, completed = hook.accepted
    assert {key: restarted[key] for key in restarted if key not in ("id", "time")} == {
        "event": "restarted",
        "text": "quick-start (quick-start-0a1b2c3d in paddle) restarted, attempt 2: "
        "rank 1: trainer was killed by SIGKILL",
        "runId": "quick-start-0a1b2c3d",
        "jobName": "quick-start",
        "namespace": "paddle",
        "release": "paddle-training",
        "trainers": 3,
        "attempt": 2,
        "cause": "rank 1: trainer was killed by SIGKILL",
        "score": None,
    }
    assert (completed["event"], completed["score"], completed["cause"]) == (
        "completed",
        {"error": 0.125},
        None,
    )
    assert completed["text"].endswith("completed, attempt 2: error 0.125")
    assert restarted["id"] != completed["id"]
    assert logged() == []


def failed(event: str, why: str, what: str) -> str:
    return f"sending to the webhook (notify.webhook) failed: {why}; the notification {event!r} {what}{FIX}"


@pytest.mark.parametrize(
    ("answers", "why", "is_retried"),
    [
        ([500, 503, 429], "the server answered with HTTP status 500", True),
        (["echo"], "BadStatusLine", True),
        (["hang"], "timed out", True),
        ([302], "the server answered with HTTP status 302", False),
        ([404], "the server answered with HTTP status 404", False),
    ],
)
def test_a_failure_is_logged_once_and_retried_in_order_unless_a_retry_is_useless(
    hook: Hook, logged: Callable[[], list[str]], answers: list[int | str], why: str, is_retried: bool
) -> None:
    hook.answers = list(answers)
    sender = notifier(hook, timeout=0.5 if "hang" in answers else 5.0)
    sender.notify("started", attempt=0)
    sender.notify("restarted", attempt=1, cause="x")
    until(lambda: [body["event"] for body in hook.accepted][-1:] == ["restarted"])
    sender.close(20)
    accepted = ["started", "restarted"] if is_retried else ["restarted"]
    assert ([body["event"] for body in hook.accepted], hook.others) == (accepted, [])
    tries = [body["id"] for body in hook.requests if body["event"] == "started"]
    assert (len(tries), len(set(tries))) == (len(answers) + is_retried, 1), "all attempts have one id"
    what = "is retried for 300 s" if is_retried else "is not sent; the run continues"
    assert logged() == [failed("started", why, what)]


def test_unreachable_server_is_not_retried_after_the_patience(
    hook: Hook, logged: Callable[[], list[str]]
) -> None:
    hook.close()
    sender = notifier(hook, patience=0.1)
    sender.notify("started", attempt=0)
    sender.notify("failed", attempt=0, cause="x")
    until(lambda: len(logged()) == 2)
    sender.close(20)
    lines = [failed(event, "Connection refused", "is retried for 0 s") for event in ("started", "failed")]
    assert logged() == lines


def test_hanging_server_does_not_block_and_the_queue_keeps_the_newest_messages(
    hook: Hook, logged: Callable[[], list[str]]
) -> None:
    hook.answers = ["hang"]
    sender = notifier(hook, timeout=60.0)
    for attempt in range(3 * notifications.QUEUE):
        sender.notify("restarted", attempt=attempt, cause="x" * 100_000)
    until(lambda: hook.requests)
    sender.close(0.05)
    assert len(hook.requests) == 1
    assert len(hook.requests[0]["cause"]) == notifications.CAUSE_CHARACTERS
    assert (
        logged()
        == [
            "the webhook (notify.webhook): the notification 'restarted' was not sent: no response before the pod "
            f"exits{FIX}"
        ]
        * notifications.QUEUE
    )


def test_close_sends_the_newest_message_first_and_without_waiting_for_the_backoff(
    hook: Hook, logged: Callable[[], list[str]]
) -> None:
    """The newest message has the outcome of the run, which matters most after an outage of the webhook."""
    hook.answers = [500]
    sender = notifier(hook, base=3600.0)
    sender.notify("started", attempt=0)
    until(logged)
    sender.notify("failed", attempt=0, cause="x")
    sender.close(20)
    assert [body["event"] for body in hook.accepted] == ["failed", "started"]


def test_notifier_without_webhook_and_events_starts_no_thread() -> None:
    before = threading.active_count()
    sender = Notifier(settings())
    sender.notify("started", attempt=0)
    assert threading.active_count() == before
    sender.close(0)


def test_events_of_restarts_and_failures_are_warnings(
    monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[str]]
) -> None:
    posted: list[dict[str, Any]] = []
    failures = [OSError("the API server answered 500: x")]

    class Api:
        def __init__(self, *_: object) -> None: ...

        def create(self, kind: str, event: dict[str, Any]) -> None:
            if failures:
                raise failures.pop()
            posted.append(event)

    monkeypatch.setattr("launcher.io.kubernetes_api.PodApi", Api)
    sender = Notifier(settings(events=True), base=0.02)
    sender.notify("started", attempt=0)
    sender.notify("restarted", attempt=1, cause="x")
    until(lambda: len(posted) == 2)
    sender.close(20)
    assert [(event["reason"], event["type"]) for event in posted] == [
        ("TrainingStarted", "Normal"),
        ("TrainingRestarted", "Warning"),
    ]
    assert posted[1]["message"].endswith("restarted, attempt 1: x")
    assert len(logged()) == 1


def test_events_without_a_service_account_are_logged_once(
    logged: Callable[[], list[str]],
) -> None:
    sender = Notifier(settings(events=True))
    sender.notify("started", attempt=0)
    sender.close(20)
    (line,) = logged()
    assert "this pod has no service account" in line
    assert line.endswith("the notification 'started' is not sent; the run continues")
