"""Periods and deadlines of the supervision that are not settings, in seconds, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """All periods and deadlines in seconds. The product uses the defaults; tests use shorter ones."""

    poll: float = 0.2
    """Between checks of something that sends no notification when it changes."""
    training_poll: float = 0.5
    """The same while all ranks train: every event then wakes the main thread."""
    hold: float = 1.0
    """For which rank 0 holds back an answer without a new order: each of up to 1000 ranks asks so often."""
    log_again: float = 30.0
    """Between repeated log lines about what a rank waits for."""
    data_again: float = 60.0
    """For this run's own data Job to start, after another release has replaced its data."""
    silence: float = 10.0
    """Without a report for so long the coordinator counts a rank as lost: longer than a busy node pauses."""
    orphan: float = 10.0
    """Without a confirmed order for so long a rank stops its processes."""
    stuck: float = 30.0
    """A main thread that does not run for so long (a hung volume) makes its launcher look dead to the
    coordinator, and its guard kills the processes."""
    storage_late: float = 10.0
    """A storage that has not answered for so long is shown as what the rank waits for."""
    storage: float = 150.0
    """A rank whose storage has not answered for so long exits, and Kubernetes replaces its pod: a restart or
    failover of a storage server takes up to two minutes."""
    ready: float = 120.0
    """For a pserver to accept connections (PaddlePaddle loads its tables first)."""
    pserver_exit_lag: float = 0.5
    """From a trainer's log line that a pserver is gone until that line counts as the failure: the exit of the
    pserver itself is the cause and may be noticed a little later."""
    stop: float = 8.0
    """From SIGTERM to SIGKILL, one deadline for all processes of a rank."""
    trainer_exit: float = 60.0
    """For a trainer that reports `done` to exit, after one more barrier with the other trainers."""
    pserver_exit: float = 30.0
    """For pservers to exit by themselves once all trainers are done."""
    early_pserver_exit: float = 60.0
    """How long before the last trainer a pserver may exit with 0."""
    second_pod_wait: float = 60.0
    """How long a second pod of a rank waits until the first one is lost or leaves."""
    late_rank_wait: float = 5.0
    """How long rank 0, when it ends the run, waits for ranks that have not joined yet."""
    farewell: float = 15.0
    """For all ranks to receive how the run ended."""
    lock_beat: float = 2.0
    """Between renewals of the lease in run.lock."""
    lock_lease: float = 10.0
    """Without a renewal for so long the holder counts the lease as lost: `stop` and the time for an order to
    arrive, before another pod may take the lease."""
    lock_stale: float = 20.0
    """A lease whose file does not change for so long, by the waiter's own clock, has expired."""
    lock_wait: float = 180.0
    """For another run to release the lease: longer than a pod's grace period and `lock_stale`."""
    lock_settle: float = 2.0
    """Between writing an expired lease and checking that no other pod has written it too."""
    status: float = 2.0
    """Between writes of status.json."""
    curve: float = 90.0
    """For the plot and the report of a complete run: some 3 s, and many times that on busy cores."""
    report: float = 30.0
    """For the report of a failed run: some 2 s, and many times that on busy cores. With `stop` and `farewell`
    before it, it fits into the default grace period of a pod (60 s)."""
    copies: float = 5.0
    """For the last lines of the processes' logs to be copied to the storage before the launcher exits."""
    reach: float = 60.0
    """For the bucket of `training.exportTo` to be reached and written at the start of a run."""
    export: float = 3600.0
    """For the export of the model with all retries: 100 GB at 30 MB/s."""
    export_tries: int = 8
    """Tries for one object in a row: with `export_base` doubling to 30 s they outlast an outage of a minute."""
    export_base: float = 0.5
    """Before the second of those tries."""

    @property
    def life(self) -> float:
        """Return the seconds after its last report for which a lost rank's processes may run.

        The rank stops them after `orphan` seconds. If its main thread does not, the guard thread kills them `stop`
        + 2 seconds later. The other 5 seconds allow for a slow clock and a late packet.
        """
        return self.orphan + self.stop + 7.0
