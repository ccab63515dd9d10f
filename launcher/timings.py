"""Every period and deadline of the gang that is no setting, in seconds, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Tests shorten them; nothing else does."""

    poll: float = 0.2
    """Between looks at something that tells nobody when it changes."""
    calm: float = 0.5
    """The same while all train: whatever happens then wakes the main thread."""
    hold: float = 1.0
    """How long rank 0 holds an answer without news: a rank asks so often, also one of a thousand."""
    say_again: float = 30.0
    """Between repeats of what is waited for."""
    data_again: float = 60.0
    """For this run's own data Job to begin, where another release has replaced what an earlier one made."""
    silence: float = 10.0
    """Silence after which rank 0 counts a rank as lost: longer than a busy node's hiccups."""
    orphan: float = 10.0
    """Without an order for so long a rank ends its children."""
    stuck: float = 30.0
    """A main thread that did not go round for so long (a hung volume) looks dead to the others, and to
    itself."""
    storage_late: float = 10.0
    """A storage that gave no answer for so long is shown as what a rank waits for."""
    storage: float = 150.0
    """A rank whose storage gave no answer for so long ends, and Kubernetes replaces its pod: a server's
    restart or failover takes up to two minutes."""
    ready: float = 120.0
    """For a pserver to accept connections (PaddlePaddle loads its tables first)."""
    echo: float = 0.5
    """From a trainer's line that a pserver is gone until it counts: that pserver's own end is the cause."""
    stop: float = 8.0
    """From TERM to KILL, one deadline for all children."""
    leave: float = 60.0
    """For a trainer to end once it says that it is done: it meets the others once more, and that is all."""
    servers_end: float = 30.0
    """For pservers to end by themselves once all trainers are done."""
    server_early: float = 60.0
    """How long a pserver that ended with 0 may be ahead of the last trainer."""
    twin: float = 60.0
    """How long a second pod of a rank waits for the first one to fall silent or leave."""
    tell: float = 5.0
    """How long a rank 0 that ends the run waits for ranks that have not come yet."""
    farewell: float = 15.0
    """For all ranks to hear how the run ended."""
    lock_beat: float = 2.0
    """Between renewals of run.lock."""
    lock_lease: float = 10.0
    """Without a renewal for so long the lock counts as lost: `stop` and an order's way before anybody may
    take it."""
    lock_stale: float = 20.0
    """A lock that does not change for so long (by the waiter's own clock) belongs to nobody."""
    lock_wait: float = 180.0
    """For another run to release the lock: longer than a pod's grace period and `lock_stale`."""
    lock_settle: float = 2.0
    """Between taking a stale lock and trusting that nobody else took it too."""
    status: float = 2.0
    """Between writings of status.json."""
    curve: float = 90.0
    """For the picture and the page of the run: some 3 s, and many times that where others want the cores."""
    report: float = 5.0
    """For the page of a run that failed: the end of rank 0's pod waits for it."""
    copies: float = 5.0
    """For the children's last lines to reach the storage before the launcher ends."""
    reach: float = 60.0
    """For the bucket of `training.exportTo` to be reached and written at the start of a run."""
    export: float = 3600.0
    """For the model to be exported, all tries together: 100 GB at 30 MB/s."""
    export_tries: int = 8
    """For one object, in a row: with `export_base` doubling to 30 s they outlast a minute's outage."""
    export_base: float = 0.5
    """Before the second of those tries."""

    @property
    def life(self) -> float:
        """How long a silent rank's children may live: it stops them after `orphan`, and its guard kills them
        2 s after `stop` should its main thread not; the rest is for a slow clock and a late packet."""
        return self.orphan + self.stop + 7.0
