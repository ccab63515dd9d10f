"""`wait`: follow a run until it is over, replaced runs included.

The clock, the sleep and the look are given from outside, so that tests need neither time nor a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from launcher.cli.cluster import UnreachableError
from launcher.cli.problems import CliError, RunFailed, WaitedTooLong
from launcher.cli.render import line, restart_text, waits_for
from launcher.cli.view import View
from launcher.reporting import figures

LINE_SECONDS = 5.0  # at most one line of figures in this time; a change of state or pass is told at once
UNREACHABLE_SECONDS = 120.0  # an API server that is being replaced is away for less


@dataclass
class Teller:
    """Decides which looks are worth a line."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _key: tuple[object, ...] = ()
    _line: str = ""
    _told: float = float("-inf")
    _restarts: tuple[str | None, int] = (None, 0)
    """The run that is followed, and how many of its restarts are known."""

    def tell(self, view: View) -> None:
        """Say a line for each restart, if state, pass or attempt changed or the score came, or if figures or
        reasons did some seconds ago."""
        progress = view.progress
        if progress:
            run, known = self._restarts
            told = len(progress.restarts) if run != view.run_id else known
            for count, restart in enumerate(progress.restarts[told:], told + 1):
                self.say(restart_text(restart, count))
            self._restarts = view.run_id, max(told, len(progress.restarts))
        key = (
            view.state,
            view.run_id,
            progress.number if progress else None,
            progress.attempt if progress else None,
            bool(view.score),  # the last words
        )
        text, now = line(view), self.clock()
        if text != self._line and (key != self._key or now - self._told >= LINE_SECONDS):
            self._key, self._line, self._told = key, text, now
            self.say(text)


def follow(
    look: Callable[[], View],
    show: Callable[[View], None],
    say: Callable[[str], None],
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    pause: float = 2.0,
) -> View:
    """Look every `pause` seconds until the run is complete, and return that view.

    Raises RunFailed with the cause, WaitedTooLong after `timeout` seconds with what it waits for, and
    CliError when the release is gone or the cluster is out of reach for longer than UNREACHABLE_SECONDS.
    """
    deadline = clock() + timeout
    run_id: str | None = None
    view: View | None = None
    lost: float | None = None
    while True:
        try:
            view = look()
            lost = None
        except UnreachableError as error:
            lost = clock() if lost is None else lost
            if clock() - lost > UNREACHABLE_SECONDS or view is None:
                raise
            say(f"{error} Trying again.")
        except CliError as error:
            if view is not None and "no release" in str(error):
                raise RunFailed(f"the release was removed while waiting: {error}") from error
            raise
        if view is not None and lost is None:
            if run_id is not None and view.run_id != run_id:
                say(f"run {run_id} was replaced by an upgrade; now following {view.run_id}")
            run_id = view.run_id
            show(view)
            ended(view)
            if view.state == "complete":
                return view
        if clock() >= deadline:
            what = waits_for(view) if view else "the cluster to answer"
            raise WaitedTooLong(f"gave up after {figures.duration(timeout)}; still waiting for: {what}")
        sleep(min(pause, max(0.1, deadline - clock())))


def ended(view: View) -> None:
    """Raise RunFailed when there is nothing more to wait for."""
    if view.state == "failed":
        raise RunFailed(f"the run failed: {view.cause or 'no cause was left behind'}")
    if view.state == "missing":
        raise RunFailed(f"nothing to wait for: {'; '.join(view.notes)}")
