"""How ranks other than 0 wait while rank 0 is unreachable: log lines, notifications, deadline, and end of the run."""

from __future__ import annotations

import time

from launcher.errors import EXIT_GANG, DeadlineError, LauncherError, TwinError
from launcher.io import files
from launcher.log import log
from launcher.paths import OutputPaths
from launcher.reporting.notifications import Notifier, RunEvent
from launcher.runtimes.runtime_protocol import Runtime
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.member_states import RETRY, SEE_WHY
from launcher.supervisor.peers.coordinator_link import CoordinatorLink
from launcher.supervisor.peers.rank0_locator import hash_credential
from launcher.supervisor.shared_storage.output_folder import read_run_record
from launcher.supervisor.timings import Timings


class RunEndedError(LauncherError):
    """The run is over, as rank 0 reported or wrote to run.json; `exit_code` is that of the run."""

    def __init__(self, cause: str, code: int) -> None:
        super().__init__(cause)
        self.exit_code = code


class Rank0Wait:
    """Ends this rank's run if rank 0 is unreachable for `rendezvousSeconds` + `training.rankWaitHours`.

    Rank 0 notifies users about other missing ranks; if rank 0 itself is missing, rank 1 notifies them here.
    """

    def __init__(
        self, settings: TrainSettings, runtime: Runtime, timings: Timings, link: CoordinatorLink
    ) -> None:
        self._settings, self._runtime, self._timings, self._link = settings, runtime, timings, link
        self._logged = time.monotonic()
        self._is_late = False
        """Whether rank 0 has been unreachable for longer than `rendezvousSeconds`."""
        self._notifier = Notifier(settings) if settings.completion_index == 1 else None

    def check(self, now: float) -> None:
        """Log and notify users if rank 0 is unreachable at monotonic time `now`.

        Raises:
            TwinError: rank 0 rejects this pod.
            RunEndedError: the run is over, as run.json says.
            DeadlineError: rank 0 has been unreachable for too long.
        """
        s, t, link, rejection = self._settings, self._timings, self._link, self._link.rejection
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
        self.raise_if_run_is_over("complete", "failed")
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

    def raise_if_run_is_over(self, *states: str) -> None:
        """Raise `RunEndedError` if run.json has one of these final `states`, `complete` or `failed`.

        Rank 0 may have exited before this rank received its last order. The state `failed` counts only if the holder
        of the output lease that this rank knows wrote it, because a later start of the same run tries again.
        """
        output = OutputPaths(self._settings.layout.output)
        try:
            run = read_run_record(output)
        except files.UnreadableError:  # rank 0 reports it
            return
        if run is None or run.run_id != self._settings.run_id or run.state not in states:
            return
        if run.state == "complete" and self._runtime.is_complete(output.root, self._settings):
            raise RunEndedError("the run is complete", 0)
        if run.state == "failed" and hash_credential(self._link.credential) == run.holder:
            raise RunEndedError(str(run.cause), run.exit_code or EXIT_GANG)

    def _notify(self, event: RunEvent, attempt: int, cause: str | None) -> None:
        if self._notifier is not None:
            self._notifier.notify(event, attempt=attempt, cause=cause)
