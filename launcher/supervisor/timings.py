"""Periods and deadlines of the supervision, in seconds, that users cannot set; each has its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """All periods and deadlines in seconds. The product uses the defaults; tests use shorter ones."""

    poll: float = 0.2
    """Time between two checks of something that sends no notification when it changes."""
    training_poll: float = 0.5
    """Replaces `poll` while all ranks train, when every event wakes the main thread."""
    hold: float = 1.0
    """Time for which rank 0 holds back an answer without a new order. Each of up to 1000 ranks sends one request in
    this time."""
    log_again: float = 30.0
    """Time between two log lines about what a rank waits for."""
    slow_dns: float = 1.0
    """A request to DNS that takes longer is the last one for `log_again` seconds, about ranks that are missing."""
    data_again: float = 60.0
    """How long a run whose data another release has replaced waits for its data Job to start."""
    silence: float = 10.0
    """The coordinator counts a rank as lost if it has not reported for this time, which is longer than a busy node
    pauses."""
    left: float = 3.0
    """In an elastic run, the time after which another rank looks whether it may coordinate the run, if the coordinator
    does not answer after its order to stop; else `silence`."""
    offer: float = 30.0
    """The coordinator of an elastic run that has heard of too few ranks for this time may be cut off from them, so it
    releases the output lease, and tries to take it again after the same time. In between the others have time to see
    the silence of the coordinator and to take the lease, each of which takes up to `silence`."""
    orphan: float = 10.0
    """A rank stops its processes if rank 0 has not confirmed their order for this time."""
    stuck: float = 30.0
    """A main thread that does not run for this time (a hung volume) makes its launcher look dead to the
    coordinator, and its watchdog kills the processes."""
    storage_late: float = 10.0
    """The status says that a rank waits for its storage if the storage has not answered for this time."""
    storage: float = 150.0
    """A rank whose storage has not answered for this time exits, and Kubernetes replaces its pod: a restart or
    failover of a storage server takes up to two minutes."""
    parser_quiet: float = 3600.0
    """How long the process that parses the shard may log nothing. It logs its progress after each part of the rows."""
    ready: float = 120.0
    """Time within which a pserver must accept connections; PaddlePaddle loads its tables before that."""
    pserver_exit_lag: float = 0.5
    """Time after which a trainer's log line that a pserver is gone counts as a failure. The cause is the exit of that
    pserver, which may be noticed a little later than the line."""
    stop: float = 8.0
    """Time from SIGTERM to SIGKILL when a rank stops its processes, all with one deadline."""
    trainer_exit: float = 60.0
    """Time within which a trainer that reports `done` must exit, after one more barrier with the other trainers."""
    pserver_exit: float = 30.0
    """Time within which pservers must exit by themselves once all trainers are done."""
    early_pserver_exit: float = 60.0
    """How long before the last trainer a pserver may exit with 0."""
    second_pod_wait: float = 60.0
    """How long a second pod of a rank waits until the first one is lost or leaves."""
    late_rank_wait: float = 5.0
    """How long rank 0, when it ends the run, waits for ranks that have not joined yet."""
    farewell: float = 15.0
    """How long rank 0 waits until all ranks have received the order that says how the run ended."""
    lock_beat: float = 2.0
    """Time between two renewals of the lease in run.lock."""
    lock_lease: float = 10.0
    """The holder counts the lease as lost if it could not renew it for this time. The time from then until another pod
    may take the lease is enough for an order to arrive and for `stop`."""
    lock_stale: float = 20.0
    """A lease whose file does not change for this time, by the waiter's own clock, has expired."""
    lock_wait: float = 70.0
    """How long a pod waits, after the grace period of the pod that holds the lease, until that pod releases it: longer
    than `lock_stale`, with some time for a slow node."""
    lock_settle: float = 2.0
    """Time from overwriting an expired lease to the check that no other pod has overwritten it too."""
    status: float = 2.0
    """Time between two writes of status.json."""
    curve: float = 90.0
    """Time limit for plot and report of a complete run, which take 3 s, or many times that on busy cores."""
    report: float = 30.0
    """Time limit for the report of a failed run, which takes 2 s, or many times that on busy cores. `stop`,
    `farewell` and this limit together fit into the default grace period of a pod (110 s)."""
    keep: float = 30.0
    """Time limit for copying the files of training.keepFiles, or the rest of the grace period if that is less."""
    track: float = 10.0
    """Time between two looks whether the trackers of `tracking` lack something; doubled up to 32 times by failures."""
    track_request: float = 120.0
    """Time limit for sending a run to its trackers."""
    track_end: float = 20.0
    """Time limit for sending the final state to the trackers: the pod exits later by at most this time."""
    copies: float = 5.0
    """How long the launcher waits at its exit until the last lines of the processes' logs are copied to the storage."""
    reach: float = 60.0
    """Time limit for the test at the start of a run that the bucket of `training.exportTo` can be written."""
    export: float = 3600.0
    """Time limit for the export of the model with all retries, enough for 100 GB at 30 MB/s."""
    export_tries: int = 8
    """How often the upload of one object is tried. The waits between the tries begin with `export_base` and double up
    to 30 s, so they outlast an outage of a minute."""
    export_base: float = 0.5
    """Wait before the second try of an upload."""

    @property
    def life(self) -> float:
        """Return the seconds after its last report for which a lost rank's processes may run.

        The rank stops them after `orphan` seconds. If its main thread does not, the watchdog thread kills them `stop`
        + 2 seconds later. The other 5 seconds allow for a slow clock and a late packet.
        """
        return self.orphan + self.stop + 7.0
