"""Periods and deadlines of the supervision, in seconds, that users cannot set; each has its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """All periods and deadlines in seconds. The product uses the defaults; tests use shorter ones."""

    poll: float = 0.2
    """Time between two checks of something that sends no notification when it changes."""
    training_poll: float = 0.5
    """Replaces `poll` in the agent's main loop while its rank trains. It may be longer because every event wakes the
    main thread then."""
    hold: float = 1.0
    """How long rank 0 holds back its answer to a rank if it has no new order. As each rank sends its next request after
    the answer, each of up to 1000 ranks sends about one request in this time."""
    log_again: float = 30.0
    """Time between two log lines about what a rank waits for."""
    slow_dns: float = 1.0
    """If DNS takes longer than this to look up a missing rank, the coordinator looks up no missing rank for the next
    `log_again` seconds."""
    data_again: float = 60.0
    """If the data's manifest is damaged, a run waits at least for this time, and as long as a data Job is at work. A
    data Job that starts in this time writes the manifest again."""
    silence: float = 10.0
    """The coordinator counts a rank as lost if it has not reported for this time, which is longer than a busy node
    pauses."""
    left: float = 3.0
    """In an elastic run: if the coordinator has ordered the ranks to stop and has then been silent for this time,
    another rank checks whether it may coordinate the run. Without such an order, the other rank waits `silence`
    seconds."""
    offer: float = 30.0
    """In an elastic run: if the coordinator has heard of too few ranks for this time, it may be cut off from the
    others. So it releases the output lease, and tries to take the lease again after the same time. Meanwhile the other
    ranks can notice the coordinator's silence, and one of them can take the lease; each of these two steps takes up to
    `silence` seconds."""
    orphan: float = 10.0
    """A rank stops its processes if rank 0 has not confirmed their order for this time."""
    stuck: float = 30.0
    """If a launcher's main thread does not run for this time, for example because a volume hangs, its watchdog kills
    the processes. The launcher then sends no states, so that it looks dead to the coordinator."""
    storage_late: float = 10.0
    """The status says that a rank waits for its storage if the storage has not answered for this time."""
    storage: float = 150.0
    """A rank whose storage has not answered for this time exits, and Kubernetes replaces its pod. This is longer than a
    restart or failover of a storage server, which takes up to two minutes."""
    parser_quiet: float = 3600.0
    """How long the process that parses the shard may log nothing. It logs its progress after each part of the rows."""
    ready: float = 120.0
    """Time within which a pserver must accept connections. Before that, the pserver loads PaddlePaddle and creates its
    tables. The agent also waits for at most this time until the fork server is ready."""
    pserver_exit_lag: float = 0.5
    """If a log has a line after which its process cannot continue (`LogMeaning.is_fatal`), this counts as a failure
    only after this time. For example, a trainer logs that a pserver is gone. Then the cause is the exit of that
    pserver, and the launcher may notice the exit a little later than the line."""
    stop: float = 8.0
    """Time from SIGTERM to SIGKILL when a rank stops its processes. A user's script has more time if the grace period
    of a pod leaves more. If `Runtime.has_nothing_to_save` is true, the processes receive SIGKILL at once."""
    trainer_exit: float = 60.0
    """Time within which a trainer must exit after it has reported `done`. In this time it waits once more for the other
    trainers, at a barrier."""
    pserver_exit: float = 30.0
    """Time within which pservers must exit by themselves once all trainers are done."""
    early_pserver_exit: float = 60.0
    """How long before the last trainer's exit a pserver may exit with exit code 0; an earlier exit is a failure."""
    second_pod_wait: float = 60.0
    """How long a second pod with the same rank waits for the first pod to leave or to be counted as lost; then the
    second pod exits."""
    late_rank_wait: float = 5.0
    """How long rank 0, when it ends the run, waits for ranks that have not joined yet."""
    farewell: float = 15.0
    """How long rank 0 waits until all ranks have received the order that says how the run ended."""
    lock_beat: float = 2.0
    """Time between two renewals of the lease in run.lock."""
    lock_lease: float = 10.0
    """If the holder of the lease could not renew it for this time, the holder counts the lease as lost. Another pod may
    take the lease only some time later, which is long enough for an order to arrive and for `stop`."""
    lock_stale: float = 20.0
    """A lease has expired if its file has not changed for this time, by the clock of the pod that waits for the
    lease."""
    lock_wait: float = 70.0
    """How long a pod waits for another pod to release the lease, in addition to the grace period of that other pod.
    This is longer than `lock_stale`, with some time for a slow node."""
    lock_settle: float = 2.0
    """Time from overwriting an expired lease to the check that no other pod has overwritten it too."""
    status: float = 2.0
    """Time between two writes of status.json."""
    curve: float = 90.0
    """Time limit for drawing the plot and the report of a complete run. This takes 3 s, but many times that on busy
    cores."""
    report: float = 30.0
    """Time limit for writing the report of a failed run. This takes 2 s, but many times that on busy cores. `stop`,
    `farewell` and this limit together fit into the default grace period of a pod (110 s)."""
    keep: float = 30.0
    """Time limit for copying the files of training.keepFiles, or the rest of the grace period if that is less."""
    track: float = 10.0
    """Time between two checks whether the run has something new to send to its trackers (TensorBoard and MLflow, value
    `tracking`). After each failure in a row the time is doubled, up to 32 times this value."""
    track_request: float = 120.0
    """Time limit for sending a run to its trackers."""
    track_end: float = 20.0
    """Time limit for sending the final state to the trackers: the pod exits later by at most this time."""
    copies: float = 5.0
    """How long the launcher waits at its exit until the last lines of the processes' logs are copied to the storage."""
    reach: float = 60.0
    """Time limit for the test, at the start of a run, whether the bucket of `training.exportTo` can be written."""
    export: float = 3600.0
    """Time limit for the export of the model with all retries, enough for 100 GB at 30 MB/s."""
    export_tries: int = 8
    """How often the upload of one object is tried. The wait before the second try is `export_base`. Each further wait
    is twice as long, up to 30 s, so that the tries outlast an outage of a minute."""
    export_base: float = 0.5
    """Wait before the second try of an upload."""

    @property
    def life(self) -> float:
        """Return for how many seconds after the last report of a lost rank the processes of that rank may still run.

        The rank stops its processes after `orphan` seconds. If the rank's main thread does not, its watchdog thread
        kills the processes `stop` + 2 seconds later. The other 5 seconds allow for a slow clock and a late packet.
        """
        return self.orphan + self.stop + 7.0
