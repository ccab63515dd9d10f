"""The signals that ask this launcher to exit, and how long it may stay until its gang has saved a checkpoint."""

from __future__ import annotations

import signal
import time

from launcher.io.stop_signals import stopped_by
from launcher.supervisor.peers.messages import SIGTERM_CAUSE, Order

SPARE_SECONDS = 5.0  # for a busy node, and for the state and the order between this rank and rank 0


class StopRequest:
    """Records stop signals and decides when the agent obeys them.

    After the first SIGTERM the agent stays while its trainer trains, rank 0's order is still to train, and the
    pod's grace period leaves time to stop the processes: rank 0 may have all ranks save a checkpoint first, and
    otherwise orders them to stop. It obeys every other signal, and a second SIGTERM, at once.
    """

    def __init__(self, grace: float, exit_seconds: float) -> None:
        """Create the object; nothing was received yet.

        Args:
            grace: seconds from SIGTERM until Kubernetes kills the pod.
            exit_seconds: seconds that the launcher needs to stop its processes and to copy their logs.
        """
        self._stay = grace - exit_seconds - SPARE_SECONDS
        self._signals: list[int] = []
        self._leave_by = 0.0

    def record(self, number: int) -> None:
        """Record a received signal; may be called in a signal handler."""
        if not self._signals:
            self._leave_by = time.monotonic() + self._stay
        self._signals.append(number)

    def seconds_left(self) -> float | None:
        """Return after how many seconds the agent stops its processes.

        None if no signal was received, or if the grace period is too short to wait for a checkpoint.
        """
        if not self._signals or self._stay <= 0:
            return None
        return max(0.0, self._leave_by - time.monotonic())

    def stop_seconds(self) -> float:
        """Return for how long a user's script may react to SIGTERM; 0 without SIGTERM, and after a second signal."""
        return (self.seconds_left() or 0.0) if self._signals == [signal.SIGTERM] else 0.0

    def check(self, phase: str, order: Order | None) -> None:
        """Raise `StoppedError` if the agent must exit now because of a signal."""
        if not self._signals:
            return
        may_stay = self._signals == [signal.SIGTERM] and time.monotonic() < self._leave_by
        if may_stay and phase == "training" and order is not None and order.do == "train":
            return
        cause = (order.cause if order is not None else "") or ""
        raise stopped_by(self._signals[0], cause.partition(SIGTERM_CAUSE)[2])
