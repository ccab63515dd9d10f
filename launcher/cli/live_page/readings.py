"""Read what the dashboard shows of a cluster or a folder: each read serves all browser windows for some seconds.

Nothing is read while no browser asks. A request waits a few seconds at most (FIRST_SECONDS, AGAIN_SECONDS) for a new
value. If the cluster does not answer by then, the request gets the last value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from launcher.cli.errors import describe_os_error
from launcher.cli.job_sessions import ClusterSession, FolderSession, Session
from launcher.cli.releases import list_releases
from launcher.cli.run_files import read_runs
from launcher.cli.run_view import RunView
from launcher.cli.storage import StorageRequest
from launcher.reporting.saved_runs import SavedRun

VIEW_SECONDS, OVERVIEW_SECONDS = 2.0, 10.0
"""Seconds after which a release is read again: the first number holds while the release's page is open, the second
while only the list of releases is open."""
FIRST_SECONDS, AGAIN_SECONDS = 4.0, 0.5
"""Longest time that a request waits for a new value, in seconds: the first number holds while there is no value yet,
the second when there is an earlier value."""
SLOW_SECONDS = 6.0  # a read that takes longer is reported
RETRY_SECONDS = 60.0  # pause before a reader pod is created again for files that could not be read
EXIT_SECONDS = 15.0  # longest wait for reads at exit, so that they delete their reader pods
LOG_LINES = 40
_SLOTS = threading.BoundedSemaphore(4)  # at most four reads at the same time

Value = TypeVar("Value")


@dataclass(frozen=True)
class Seen(Generic[Value]):
    """The value that was read last, and why there is no newer one."""

    value: Value | None
    """None before the first read has succeeded."""
    age: float = 0.0
    """Seconds since the value was read."""
    problem: str = ""
    """Why the newest read failed, or that it takes long; empty if there is no problem."""


class SharedReading(Generic[Value]):
    """A value that several threads request, and that one thread at a time reads."""

    def __init__(self, read: Callable[[], Value]) -> None:
        """Read nothing yet; `read` returns the value, and may block."""
        self._read = read
        self._changed = threading.Condition()
        self._value: Value | None = None
        self._problem = ""
        self._thread: threading.Thread | None = None
        self._started_at = self._read_at = self._ended_at = float("-inf")

    def get(self, max_age: float, *, wait: bool = True) -> Seen[Value]:
        """Return the value; start to read it again if the last attempt is older than `max_age` seconds.

        With `wait`, wait at most FIRST_SECONDS or AGAIN_SECONDS for the new value. Without `wait`, return the last
        value at once, and a later call returns the new one.
        """
        with self._changed:
            if self._thread is None and time.monotonic() - self._ended_at >= max_age:
                self._started_at = time.monotonic()
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            patience = FIRST_SECONDS if self._value is None else AGAIN_SECONDS
            self._changed.wait_for(lambda: self._thread is None or not wait, patience)
            now, problem = time.monotonic(), self._problem
            if self._thread and now - self._started_at > SLOW_SECONDS:
                problem = problem or f"no answer for {now - self._started_at:.0f} s"
            return Seen(self._value, now - self._read_at, problem)

    def _run(self) -> None:
        value, problem = None, ""
        try:
            with _SLOTS:
                value = self._read()
        except Exception as error:  # any error belongs on the page
            problem = str(describe_os_error(error)) or repr(error)
        with self._changed:
            self._thread, self._ended_at, self._problem = None, time.monotonic(), problem
            if value is not None:
                self._value, self._read_at = value, self._ended_at
            self._changed.notify_all()

    def wait_until_idle(self, deadline: float) -> None:
        """Wait until no thread reads, at most until `deadline` (of time.monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, max(0.0, deadline - time.monotonic()))


class JobReadings:
    """The view of a release (or of the folder of --path), and the runs of its job."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        """Read nothing yet. Two threads will read the view and the runs, each with its own session."""
        self._view_session, self._runs_session = open_session(), open_session()
        self.is_open = False
        """Whether somebody has opened the release's page. Only then, `view` reads the files of a finished run through a
        reader pod. `runs` may use a reader pod in any case."""
        self.view = SharedReading(self._read_view)
        self.runs = SharedReading(self._read_runs)
        self._final: tuple[object, float, RunView] | None = None
        self._runs: tuple[object, list[SavedRun]] | None = None

    def _read_view(self) -> RunView:
        """Return the view of the run.

        If the release's page is open, and the run is over or its Job is missing, read the files once more, through a
        reader pod. If they have no progress, read them again after RETRY_SECONDS.
        """
        view = self._view_session.peek_view(LOG_LINES)
        if not self.is_open or not (view.is_over or view.state == "missing"):
            return view
        key, now = (view.run_id, view.state), time.monotonic()
        if self._final and self._final[0] == key:
            _, read_at, final = self._final
            if final.progress or now - read_at < RETRY_SECONDS:
                return final
        self._final = (key, now, self._view_session.read_view(LOG_LINES))
        return self._final[2]

    def _read_runs(self) -> list[SavedRun]:
        """Return the runs of the job. Read them again only after the current run or its state has changed.

        They are also read again when a further pass is finished.
        """
        view = self._runs_session.peek_view()
        key = (view.run_id, view.state, len(view.passes))
        if self._runs is None or self._runs[0] != key:
            with self._runs_session.storage(StorageRequest()) as storage:
                self._runs = (key, read_runs(storage))
        return self._runs[1]


class Readings:
    """All releases of a namespace, or the one folder of --path."""

    def __init__(self, session: Session) -> None:
        """Read nothing yet."""
        self._session = session
        self._known: dict[str, JobReadings] = {}
        self.jobs = SharedReading(self._list_jobs)

    @property
    def where(self) -> str:
        """The namespace and cluster, or the folder."""
        if isinstance(self._session, FolderSession):
            return str(self._session.folder)
        return f"namespace {self._session.cluster.namespace} on {self._session.cluster.name}"

    def _list_jobs(self) -> dict[str, JobReadings]:
        session, openers = self._session, dict[str, Callable[[], Session]]()
        if isinstance(session, FolderSession):
            openers = {session.folder.resolve().name: partial(FolderSession, session.folder)}
        else:
            for release in list_releases(session.cluster, all_namespaces=False):
                openers[release.name] = partial(ClusterSession, session.cluster, release.name)
        self._known |= {name: JobReadings(openers[name]) for name in openers.keys() - self._known.keys()}
        return {name: self._known[name] for name in openers}

    def close(self) -> None:
        """Wait EXIT_SECONDS at most until all reads of views and runs have ended."""
        deadline = time.monotonic() + EXIT_SECONDS
        for job in [*self._known.values()]:
            job.view.wait_until_idle(deadline)
            job.runs.wait_until_idle(deadline)
