"""Messages to people, against a real HTTP server on loopback that fails, hangs and refuses."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from launcher.log import log
from launcher.reporting import notifications
from launcher.reporting.notifications import Notifier
from launcher.settings import TrainSettings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ

SECRET = "T0P/s3cret"


class Hook:
    """A web server that takes messages at one secret path."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        """Status of the next answers; then 200."""
        self.hangs = self.echoes = False
        self.tries: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.others: list[str] = []
        """Requests that are no message."""
        self.closing = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == f"/{SECRET}"
                hook.tries.append(body)
                if hook.hangs:
                    hook.closing.wait(30)
                    return
                if hook.echoes:
                    self.wfile.write(self.path.encode() + b"\r\n\r\n")
                    return
                status = hook.answers.pop(0) if hook.answers else 200
                if status == 200:
                    hook.taken.append(body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                hook.others.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = False
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/{SECRET}"

    def close(self) -> None:
        if not self.closing.is_set():
            self.closing.set()
            self.http.shutdown()
            self.http.server_close()
            self.thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """What the launcher logged; at the end of each test the secret must not be in it."""
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.DEBUG, "launcher")
    yield lambda: [record.getMessage() for record in caplog.records]
    assert SECRET not in caplog.text
    assert "127.0.0.1" not in caplog.text


def settings(**env: str) -> TrainSettings:
    return TrainSettings.from_environ(pod_environ(**env))


def notifier(hook: Hook, **times: float) -> Notifier:
    return Notifier(settings(PADDLE_LAUNCHER_WEBHOOK=hook.url), **{"base": 0.02, "timeout": 5.0, **times})


def test_a_message_says_which_run_what_and_why(hook: Hook, said: Callable[[], list[str]]) -> None:
    tell = notifier(hook)
    tell.tell("restarted", attempt=2, cause="rank 1: trainer was ended by SIGKILL")
    until(lambda: hook.taken)
    tell.tell("completed", attempt=2, score={"error": 0.125})
    tell.close(20)
    restarted, completed = hook.taken
    assert {key: restarted[key] for key in restarted if key not in ("id", "time")} == {
        "event": "restarted",
        "text": "quick-start (quick-start-0a1b2c3d in paddle) restarted, attempt 2: "
        "rank 1: trainer was ended by SIGKILL",
        "runId": "quick-start-0a1b2c3d",
        "jobName": "quick-start",
        "namespace": "paddle",
        "release": "paddle-training",
        "trainers": 3,
        "attempt": 2,
        "cause": "rank 1: trainer was ended by SIGKILL",
        "score": None,
    }
    assert (completed["event"], completed["score"], completed["cause"]) == (
        "completed",
        {"error": 0.125},
        None,
    )
    assert completed["text"].endswith("completed, attempt 2: error 0.125")
    assert restarted["id"] != completed["id"]
    assert said() == []


def test_a_server_that_fails_is_tried_again_in_order_and_logged_once_a_message(
    hook: Hook, said: Callable[[], list[str]]
) -> None:
    hook.answers = [500, 503, 429]
    tell = notifier(hook)
    tell.tell("started", attempt=0)
    tell.tell("restarted", attempt=1, cause="x")
    until(lambda: len(hook.taken) == 2)
    tell.close(20)
    assert [body["event"] for body in hook.taken] == ["started", "restarted"]
    assert len({body["id"] for body in hook.tries if body["event"] == "started"}) == 1, "one id for all tries"
    assert said() == [
        "the webhook (notify.webhook): it answered 500; the message 'started' is retried for 300 s"
    ]


@pytest.mark.parametrize("status", [302, 404])
def test_an_address_that_is_wrong_is_not_tried_again_nor_followed(
    hook: Hook, said: Callable[[], list[str]], status: int
) -> None:
    hook.answers = [status]
    tell = notifier(hook)
    tell.tell("started", attempt=0)
    tell.close(20)
    assert (len(hook.tries), hook.taken, hook.others) == (1, [], [])
    assert said() == [
        f"the webhook (notify.webhook): it answered {status}; the message 'started' is not sent"
    ]


def test_a_server_that_speaks_no_http_cannot_make_the_address_appear_in_a_log(
    hook: Hook, said: Callable[[], list[str]]
) -> None:
    hook.echoes = True
    tell = notifier(hook)
    tell.tell("started", attempt=0)
    until(said)
    hook.echoes = False
    tell.close(20)
    assert len(hook.taken) == 1
    assert said() == [
        "the webhook (notify.webhook): BadStatusLine; the message 'started' is retried for 300 s"
    ]


def test_a_server_that_refuses_connections_is_given_up_after_the_patience(
    hook: Hook, said: Callable[[], list[str]]
) -> None:
    hook.close()
    tell = notifier(hook, patience=0.1)
    tell.tell("started", attempt=0)
    tell.tell("failed", attempt=0, cause="x")
    until(lambda: len(said()) == 2)
    tell.close(20)
    assert said() == [
        f"the webhook (notify.webhook): Connection refused; the message {kind!r} is retried for 0 s"
        for kind in ("started", "failed")
    ]


def test_a_server_that_hangs_is_in_nobodys_way(hook: Hook, said: Callable[[], list[str]]) -> None:
    hook.hangs = True
    tell = notifier(hook, timeout=60.0)
    for attempt in range(3 * notifications.QUEUE):
        tell.tell("restarted", attempt=attempt, cause="x" * 100_000)
    until(lambda: hook.tries)
    tell.close(0.05)
    assert len(hook.tries) == 1
    assert len(hook.tries[0]["cause"]) == notifications.CAUSE_CHARACTERS
    assert (
        said()
        == ["the webhook (notify.webhook): the message 'restarted' was not sent: no response in time"]
        * notifications.QUEUE
    )


def test_a_try_that_hangs_is_ended_and_repeated(hook: Hook, said: Callable[[], list[str]]) -> None:
    hook.hangs = True
    tell = notifier(hook, timeout=0.2)
    tell.tell("started", attempt=0)
    until(said)
    hook.hangs = False
    until(lambda: hook.taken)
    tell.close(20)
    assert said() == ["the webhook (notify.webhook): timed out; the message 'started' is retried for 300 s"]


def test_at_the_end_the_newest_message_comes_first_and_does_not_wait_for_the_next_try(
    hook: Hook, said: Callable[[], list[str]]
) -> None:
    """A run may end while its webhook was away for minutes: how it ended matters most."""
    hook.answers = [500]
    tell = notifier(hook, base=3600.0)
    tell.tell("started", attempt=0)
    until(said)
    tell.tell("failed", attempt=0, cause="x")
    tell.close(20)
    assert [body["event"] for body in hook.taken] == ["failed", "started"]


def test_without_a_webhook_there_is_no_thread() -> None:
    before = threading.active_count()
    tell = Notifier(settings())
    tell.tell("started", attempt=0)
    assert threading.active_count() == before
    tell.close(0)


def test_events_on_the_job_are_warnings_where_something_went_wrong(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    posted: list[tuple[str, str, str, str]] = []
    failures = [OSError("the API server answered 500: x")]

    def post(s: object, api: object, reason: str, text: str, kind: str, *, name: str, at: float) -> None:
        if failures:
            raise failures.pop()
        posted.append((reason, text, kind, name))

    monkeypatch.setattr("launcher.io.kubernetes_api.PodApi", lambda *_: object())
    monkeypatch.setattr(notifications, "post_event", post)
    tell = Notifier(settings(PADDLE_LAUNCHER_EVENTS="true"), base=0.02)
    tell.tell("started", attempt=0)
    tell.tell("restarted", attempt=1, cause="x")
    until(lambda: len(posted) == 2)
    tell.close(20)
    assert [(reason, kind) for reason, _, kind, _ in posted] == [
        ("TrainingStarted", "Normal"),
        ("TrainingRestarted", "Warning"),
    ]
    assert posted[1][1].endswith("restarted, attempt 1: x")
    assert all(name.startswith("quick-start-0a1b2c3d.") for *_, name in posted)
    assert len(said()) == 1


def test_events_without_a_service_account_are_told_once_and_harm_nothing(
    said: Callable[[], list[str]],
) -> None:
    tell = Notifier(settings(PADDLE_LAUNCHER_EVENTS="true"))
    tell.tell("started", attempt=0)
    tell.close(20)
    (line,) = said()
    assert "this pod has no service account" in line
    assert line.endswith("the message 'started' is not sent")
