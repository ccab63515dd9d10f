"""Every period and deadline of the gang that is no setting, in seconds, with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Tests shorten them; nothing else does."""

    poll: float = 0.2
    """Between looks at a file or a name that somebody else makes."""
    say_again: float = 30.0
    """Between repeats of what is waited for."""
    beat: float = 1.0
    """Between a launcher's signs of life."""
    silence: float = 10.0
    """Silence after which a rank counts as lost; with `stop` it leaves a dead job ended within 30 s."""
    tell: float = 5.0
    """How long a launcher that fails before it found rank 0 tries to tell it."""
    ready: float = 120.0
    """For a pserver to accept connections (PaddlePaddle loads its tables first)."""
    names: float = 60.0
    """For all peers' names to resolve to the addresses that they announced."""
    stop: float = 8.0
    """From TERM to KILL, one deadline for all children."""
    servers_end: float = 30.0
    """For pservers to end by themselves once all trainers are done."""
    server_early: float = 60.0
    """How long a pserver that ended with 0 may be ahead of the last trainer."""
    farewell: float = 15.0
    """For all ranks to say that their children have ended, and for rank 0 to close the books."""
    lock_beat: float = 2.0
    """Between renewals of run.lock."""
    lock_stale: float = 15.0
    """A lock that does not change for so long (by the waiter's own clock) belongs to nobody."""
    lock_wait: float = 180.0
    """For another run to release the lock: longer than a pod's grace period and `lock_stale`."""
    lock_settle: float = 2.0
    """Between taking a stale lock and trusting that nobody else took it too."""
    status: float = 2.0
    """Between writings of status.json."""
    curve: float = 30.0
    """For the picture of the run to be drawn."""
    reach: float = 60.0
    """For the bucket of `training.exportTo` to be reached and written at the start of a run."""
    export: float = 3600.0
    """For the model to be exported, all tries together: 100 GB at 30 MB/s."""
    export_tries: int = 8
    """For one object, in a row: with `export_base` doubling to 30 s they outlast a minute's outage."""
    export_base: float = 0.5
    """Before the second of those tries."""
