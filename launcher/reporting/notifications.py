"""Notify users about a run: a JSON message to a webhook, and Kubernetes Events on the Job.

Notifications never block the run: the webhook and the Events each have a daemon thread with a bounded queue, which
retries a message for some minutes. The webhook's address may contain a secret, so no text that could contain the
address is logged.
"""

from __future__ import annotations

import functools
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from launcher.errors import LauncherError, SettingsError
from launcher.io.retry import backoff_seconds
from launcher.log import log
from launcher.settings import TrainSettings

if TYPE_CHECKING:
    from launcher.io.kubernetes_api import PodApi

RunEvent = Literal[
    "started", "restarted", "waiting", "joined", "resized", "warned", "completed", "failed", "stopped"
]
"""What users are notified about."""
QUEUE = 100  # waiting messages; the oldest one is dropped
CAUSE_CHARACTERS = 4096
EVENT_BYTES = 1024  # of an Event's message, Kubernetes's maximum
SLOWEST = 30.0  # longest wait between two attempts, in seconds
RETRIED_CODES = (408, 425, 429)  # the only responses 3xx and 4xx that are retried


Message = Mapping[str, Any]
"""The JSON object that is sent to the webhook (docs/reference/pods.md). An Event is made from the same object."""


class Notifier:
    """Sends notifications to the webhook and as Events, if these are configured.

    Rank 0 has a notifier, and rank 1 has one for the time in which rank 0 itself is missing.
    """

    def __init__(
        self, settings: TrainSettings, *, patience: float = 300.0, base: float = 1.0, timeout: float = 10.0
    ) -> None:
        """Start the sending threads.

        A message is retried for `patience` seconds, the first time after `base` seconds. The webhook must answer each
        attempt within `timeout` seconds.
        """
        self._settings = settings
        self._senders: list[_Sender] = []
        if settings.webhook:
            post = functools.partial(post_to_webhook, settings.webhook, timeout)
            fix = "check that the address in notify.webhook is right and that the pods can reach it"
            self._senders.append(_Sender("the webhook (notify.webhook)", post, fix, patience, base))
        if settings.events:
            from launcher.io.kubernetes_api import PodApi

            def send_event(message: Message) -> None:
                post_event(settings, PodApi(settings.environ, settings.namespace), message)

            fix = "check that the API server responds, or set notify.events to false"
            self._senders.append(_Sender("the Job's Events (notify.events)", send_event, fix, patience, base))

    def notify(
        self,
        kind: RunEvent,
        *,
        attempt: int,
        cause: str | None = None,
        score: Mapping[str, float] | None = None,
    ) -> None:
        """Queue a message for each channel (the webhook and the Events), and return at once; this raises no error.

        Args:
            kind: what happened to the run.
            attempt: number of the attempt, from 0.
            cause: why the run failed, was stopped, restarted, waits, has another size, or has a warning; None
                otherwise.
            score: test scores of a complete run; None otherwise.
        """
        s, cause = self._settings, cause[:CAUSE_CHARACTERS] if cause is not None else None
        ends = [cause] if cause else [f"{name} {value:g}" for name, value in (score or {}).items()]
        text = f"{s.job_name} ({s.run_id} in {s.namespace}) {kind}, attempt {attempt}"
        message = {
            "id": uuid.uuid4().hex,
            "event": kind,
            "text": f"{text}: {', '.join(ends)}" if ends else text,
            "runId": s.run_id,
            "jobName": s.job_name,
            "namespace": s.namespace,
            "release": s.release,
            "trainers": s.trainers,
            "attempt": attempt,
            "cause": cause,
            "score": score,
            "time": time.time(),
        }
        for sender in self._senders:
            sender.put(message)

    def close(self, seconds: float) -> None:
        """Wait at most `seconds` until all messages are sent.

        The newest message has the outcome of the run, so it is sent before the messages that were queued earlier.
        """
        until = time.monotonic() + seconds
        for sender in self._senders:
            sender.finish(until)
        for sender in self._senders:
            sender.join(max(0.0, until - time.monotonic()))
            sender.abandon()


@dataclass(eq=False)
class _Waiting:
    message: Message
    until: float | None = None
    """The monotonic time at which attempts to send the message stop; None before the first attempt."""
    logged: bool = False


class _Sender(threading.Thread):
    """The queue and the sending thread of one channel: the webhook, or the Job's Events."""

    def __init__(
        self, where: str, send: Callable[[Message], None], fix: str, patience: float, base: float
    ) -> None:
        super().__init__(name=f"send to {where}", daemon=True)
        self._where, self._send, self._fix, self._patience, self._base = where, send, fix, patience, base
        self._queue: deque[_Waiting] = deque(maxlen=QUEUE)
        self._changed = threading.Condition()
        self._until: float | None = None
        self.start()

    def put(self, message: Message) -> None:
        with self._changed:
            self._queue.append(_Waiting(message))
            self._changed.notify()

    def finish(self, until: float) -> None:
        """Request that the thread exits when its queue is empty; return at once.

        From now on the thread sends the newest message first. It does not retry a message after the monotonic time
        `until`.
        """
        with self._changed:
            self._until = until
            self._changed.notify()

    def abandon(self) -> None:
        """Drop the messages that were not sent, so that the thread exits.

        Each of them is logged, unless an earlier failed attempt to send it was logged.
        """
        with self._changed:
            left = [waiting for waiting in self._queue if not waiting.logged]
            self._queue.clear()
        for waiting in left:
            log.warning(
                "%s: the notification %r was not sent: no response before the pod exits. Fix: %s",
                self._where,
                waiting.message["event"],
                self._fix,
            )

    def run(self) -> None:
        failures = 0
        while waiting := self._next():
            again = self._try(waiting)
            failures = failures + 1 if again else 0
            with self._changed:
                if again:
                    closed = self._until
                    pause = self._base if closed else backoff_seconds(failures, self._base, SLOWEST)
                    self._changed.wait_for(lambda: self._until is not closed, pause)  # noqa: B023 - called here
                elif waiting in self._queue:
                    self._queue.remove(waiting)

    def _next(self) -> _Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._until is not None)
            if not self._queue:
                return None
            return self._queue[0] if self._until is None else self._queue[-1]

    def _try(self, waiting: _Waiting) -> bool:
        """Try to send a message once; return whether that failed and must be retried."""
        if waiting.until is None:
            waiting.until = time.monotonic() + self._patience
        try:
            self._send(waiting.message)
        except Exception as error:
            until = waiting.until if self._until is None else min(waiting.until, self._until)
            again = not _final(error) and time.monotonic() < until
            if not waiting.logged:
                waiting.logged = True
                what = f"is retried for {self._patience:.0f} s" if again else "is not sent; the run continues"
                why = _why(error)
                log.warning(
                    "sending to %s failed: %s; the notification %r %s%s",
                    self._where,
                    why.rstrip("."),
                    waiting.message["event"],
                    what,
                    "" if "Fix: " in why else f". Fix: {self._fix}",
                )
            return again
        return False


def post_to_webhook(url: str, timeout: float, message: Message) -> None:
    """Post a message as JSON, through the pod's HTTP proxy if there is one.

    Raises:
        OSError, http.client.HTTPException: the server cannot be reached, does not answer within `timeout` seconds, or
            answers with a status other than 2xx. A redirect is such a status, because it is not followed.
    """
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Do not follow redirects: a POST would become a GET and seem to succeed."""

    request = urllib.request.Request(  # noqa: S310 - http and https only: parsers.web_address
        url,
        json.dumps(message).encode(),
        {"Content-Type": "application/json", "User-Agent": "paddle-launcher"},
    )
    with urllib.request.build_opener(Stay).open(request, timeout=timeout):
        pass  # only the status of the response matters


def post_event(s: TrainSettings, api: PodApi, message: Message) -> None:
    """Create an Event on the training Job, which `kubectl describe job` shows.

    The Event's name has the message's id, so that retries create one Event.

    Raises:
        OSError, http.client.HTTPException, ApiRejectedError: the API server cannot be reached or denied the request.
    """
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(message["time"]))
    api.create(
        "events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{s.k8s_job}.{message['id']}", "namespace": s.namespace},
            # `kubectl describe` lists Events with this uid; the pod knows it without a right to read Jobs.
            "involvedObject": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "namespace": s.namespace,
                "name": s.k8s_job,
                **({"uid": s.k8s_job_uid} if s.k8s_job_uid else {}),
            },
            "reason": f"Training{message['event'].capitalize()}",
            "message": message["text"].encode()[:EVENT_BYTES].decode(errors="ignore"),
            "type": "Warning"
            if message["event"] in ("restarted", "waiting", "warned", "failed")
            else "Normal",
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": "paddle-launcher", "host": s.node_name},
            "reportingComponent": "paddle-launcher",
            "reportingInstance": s.pod_name,
        },
    )


def _final(error: Exception) -> bool:
    """Return whether a retry after this error is useless, for example after the HTTP status 404."""
    code = getattr(error, "code", None)
    return isinstance(error, SettingsError) or (
        isinstance(code, int) and 300 <= code < 500 and code not in RETRIED_CODES
    )


def _why(error: BaseException) -> str:
    """Return a description of the error that does not contain the webhook's address, which may be secret."""
    import ssl
    import urllib.error

    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answered with HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _why(error.reason)
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    if isinstance(error, LauncherError | OSError):
        return str(getattr(error, "strerror", None) or error)
    return type(error).__name__
