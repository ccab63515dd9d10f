"""How ranks other than 0 wait while rank 0 is unreachable: log lines, notifications, and the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from launcher.errors import DeadlineError, TwinError
from launcher.log import log
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.member_states import RETRY, SEE_WHY
from launcher.supervisor.peers.coordinator_link import CoordinatorLink
from launcher.supervisor.timings import Timings

if TYPE_CHECKING:
    from launcher.reporting.notifications import Notifier


class Rank0Wait:
    """Ends this rank's run if rank 0 is unreachable for `rendezvousSeconds` + `training.rankWaitHours`.

    Rank 0 notifies users about other missing ranks; if rank 0 itself is missing, rank 1 notifies them here.
    """

    def __init__(self, settings: TrainSettings, timings: Timings, exit_if_over: Callable[..., None]) -> None:
        """Create the wait.

        Args:
            settings: the settings of the run.
            timings: periods and deadlines.
            exit_if_over: takes states of run.json, and raises `RunEndedError` if run.json has one of them.
        """
        self._settings, self._timings, self._exit_if_over = settings, timings, exit_if_over
        self._logged = time.monotonic()
        self._is_late = False
        """Whether rank 0 has been unreachable for longer than `rendezvousSeconds`."""
        self._notifies = settings.completion_index == 1 and bool(settings.webhook or settings.events)
        self._notifier: Notifier | None = None

    def check(self, link: CoordinatorLink, now: float) -> None:
        """Log and notify users if rank 0 is unreachable.

        Raises:
            TwinError: rank 0 rejects this pod.
            RunEndedError: the run is over, as run.json says.
            DeadlineError: rank 0 has been unreachable for too long.
        """
        s, t, rejection = self._settings, self._timings, link.rejection
        if rejection is not None and (rejection.replaced or now - rejection.since >= t.second_pod_wait):
            raise TwinError(f"{link.problem}. This pod exits; that is not counted as a failure.")
        silent, attempt = now - link.heard, link.order.attempt if link.order is not None else 0
        if silent < t.silence:
            if self._is_late:
                self._is_late = False
                self._notify("joined", attempt, None)
            return
        if now - self._logged < t.silence:
            return
        self._logged = now
        self._exit_if_over("complete", "failed")
        log.info("waiting for rank 0 for %.0f s now: %s", silent, link.problem)
        # The other ranks end the run a little later, so that rank 1 can send its notification.
        if silent >= s.join_seconds + (0 if s.completion_index == 1 else 2 * t.silence):
            text = (
                f"rank 0 was unreachable for {silent:.0f} s (limit rendezvousSeconds + training.rankWaitHours: "
                f"{s.join_seconds:.0f}): {link.problem}. Fix: {SEE_WHY}. {RETRY}"
            )
            self._notify("failed", attempt, text)
            if self._notifier is not None:
                self._notifier.close(t.copies)
            raise DeadlineError(text)
        if silent >= s.rendezvous_seconds and not self._is_late:
            self._is_late = True
            text = (
                f"rank 0 has been unreachable for {silent:.0f} s: {link.problem}. The run waits for it for up to "
                f"{(s.join_seconds - silent) / 3600:.1f} h more (training.rankWaitHours). Fix: {SEE_WHY}."
            )
            self._notify("waiting", attempt, text)

    def _notify(self, event: Literal["waiting", "joined", "failed"], attempt: int, cause: str | None) -> None:
        if not self._notifies:
            return
        if self._notifier is None:
            from launcher.reporting.notifications import Notifier

            self._notifier = Notifier(self._settings)
        self._notifier.notify(event, attempt=attempt, cause=cause)
