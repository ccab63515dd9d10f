"""The two messages between ranks: each rank sends its state to rank 0, and rank 0 answers with its plan."""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.errors import EXIT_UNFIT, LauncherError, ProcessError
from launcher.paths import Position
from launcher.reporting.failure_messages import clip
from launcher.schema import PlanRecord, TrainerProgress, from_json, to_json

SIGTERM_CAUSE = ": SIGTERM: "
"""Separator in the cause of a stop after SIGTERM. The text before the separator is the rank that received SIGTERM; the
text after it says what became of the requested checkpoint."""
TEXT_MAX_BYTES = 1 << 15
"""Size in bytes of the longest text of a failure. The text is a part of a rank's state and of the plan. A limit is
needed because a program may quote a whole row of data in the text."""


class Phase(str, enum.Enum):
    """What a rank does now. The phases of one attempt are in the order in which a rank can pass through them."""

    ABSENT = "absent"
    """The rank has not reported yet."""
    STAGING = "staging"
    SERVING = "serving"
    """The rank's pservers start."""
    READY = "ready"
    TRAINING = "training"
    DONE = "done"
    """The rank's trainers have exited, and its pservers still run."""
    ENDED = "ended"
    IDLE = "idle"
    """The rank's processes were stopped, or the rank has not started any processes yet."""
    LEAVING = "leaving"
    """The rank's launcher exits."""

    __str__ = str.__str__

    def has_reached(self, other: Phase) -> bool:
        """Return whether this phase is `other`, or comes after `other` in the list of phases.

        The phases `idle` and `leaving` come after all phases of an attempt.
        """
        phases = list(Phase)
        return phases.index(self) >= phases.index(other)

    @property
    def runs_processes(self) -> bool:
        """Whether a rank in this phase may run pservers or trainers."""
        return self in (Phase.SERVING, Phase.READY, Phase.TRAINING, Phase.DONE)


class Action(str, enum.Enum):
    """What all ranks must do now in an attempt. coordinator/decisions.py shows in which sequence the actions follow."""

    WAIT = "wait"
    SERVE = "serve"
    TRAIN = "train"
    FINISH = "finish"
    STOP = "stop"
    END = "end"

    __str__ = str.__str__

    @property
    def runs_processes(self) -> bool:
        """Whether ranks start processes, or let them run."""
        return self in (Action.SERVE, Action.TRAIN, Action.FINISH)


@dataclass(frozen=True)
class Failure:
    """Why an attempt or the run failed, as a rank reports it or as the coordinator found it."""

    text: str
    code: int
    """Exit code of the run, if this failure ends the run."""
    at: float
    """Time of the failure on the monotonic clock of the pod that holds this object."""
    rank: int = -1
    process: str = ""
    """Name of the failed process, for example `trainer` or `pserver 0`; empty for the launcher itself."""
    returncode: int | None = None
    place: Position | None = None
    """The pass and the batch that the trainer trained when it failed; None if unknown."""
    priority: int = 1
    """As in `ProcessError`. 0: this failure is the cause of the other failures of the attempt; 1: the earliest failure
    is the cause; 2 and 3: another failure may have, or usually has, caused this one."""

    @classmethod
    def from_error(cls, error: LauncherError, at: float, rank: int, **more: Any) -> Failure:
        """Convert an exception of rank `rank` to a failure; `more` are further fields of the failure."""
        if isinstance(error, ProcessError):
            more |= {"process": error.process, "returncode": error.returncode, "priority": error.priority}
        return cls(clip(str(error), TEXT_MAX_BYTES), error.exit_code, at, rank, **more)

    @property
    def is_consequence(self) -> bool:
        """Whether another failure may have caused this one, or usually has.

        An example is the exit of a trainer that lost its connection to another trainer, mostly by SIGABRT.
        """
        return self.sort_key[0] >= 2

    @property
    def sort_key(self) -> tuple[int, float]:
        """Return a sort key: among the failures of an attempt, the one that caused the others has the smallest key."""
        is_abort = self.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT)
        is_unexplained = self.priority == 1 and self.process.startswith("trainer")
        return 3 if is_abort and is_unexplained else self.priority, self.at

    @property
    def ends_pod(self) -> bool:
        """Whether the pod of this rank must be replaced before the next attempt, because one of its devices failed."""
        return bool(self.process) and self.code == EXIT_UNFIT

    @property
    def signature(self) -> list[Any] | None:
        """Return a key that is equal for two failures of the program at the same place.

        None if the place is unknown, or if the program is not the cause: a signal terminated the process, or the
        storage or the launcher had an error.
        """
        code = self.returncode
        if self.place is None or code is None or code <= 0 or code >= 128 or EXIT_UNFIT in {code, self.code}:
            return None
        return [self.rank, self.process, code, self.place.passes, self.place.batches]


@dataclass(frozen=True)
class NodeSpeeds:
    """What a pod measured on its node before training (`training.nodeCheck`); a higher number is better."""

    processor: float
    """MB/s that one thread compresses."""
    disk: float
    """MB/s of the pod's own disk when it writes, syncs and reads."""
    network: float = 0.0
    """MB/s that this pod received from the pod of the next rank; 0: that pod did not answer, or there is only one
    pod."""
    round_trips: float = 0.0
    """Round trips a second between this pod and the pod of the next rank, one after the other; 0 as for `network`."""


@dataclass(frozen=True)
class MemberState:
    """The complete state that one rank reports to the coordinator."""

    rank: int
    incarnation: str = ""
    """Random identifier of this pod: distinguishes two pods of one rank. Empty before the first report."""
    phase: Phase = Phase.ABSENT
    attempt: int = -1
    """The newest attempt in which this rank started processes, or received `stop` before it started any; -1: none
    yet."""
    failure: Failure | None = None
    """Failure of the rank's processes in `attempt`, or of the launcher itself; None: no failure."""
    address: str = ""
    pod: str = ""
    node: str = ""
    fingerprint: dict[str, Any] | None = None
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    """Progress of the trainers of `attempt`."""
    storage: float = 0.0
    """For how many seconds a request of this pod to the shared storage has had no answer; 0 if that is less than
    `Timings.storage_late`."""
    leave_in: float | None = None
    """Seconds after which this pod, at the latest, stops its processes because it received a stop signal, usually
    SIGTERM. None without a signal, or if the grace period is too short to wait for a checkpoint."""
    hang: Failure | None = None
    """Why the trainers of this pod seem to hang; None: they make progress. Only set with a user's script, for which it
    is a failure only if the trainers of all ranks hang."""
    ended: tuple[str, ...] = ()
    """Names of the trainers of this pod that exited with code 0 before anything stopped them."""
    node_speeds: NodeSpeeds | None = None
    """What this pod measured on its node; None: it has measured nothing."""
    connected: bool = False
    """Whether a process of this pod has been connected to a process of another pod, or of this pod if there is no other
    pod."""

    def to_json(self, now: float) -> dict[str, Any]:
        """Return this state as a dict for JSON, in which each failure has its age in seconds instead of its time.

        The receiver needs ages because the monotonic clocks of two pods cannot be compared.
        """
        value: dict[str, Any] = to_json(self._reverse_times(now))
        return value

    @classmethod
    def from_json(cls, value: Any, now: float) -> MemberState:
        """Convert the result of `to_json`, received from another pod, back to a state with this pod's clock.

        Raises:
            ValueError: `value` is not a valid state.
        """
        return from_json(cls, value)._reverse_times(now)

    def _reverse_times(self, now: float) -> MemberState:
        """Replace the time of each failure by its age at time `now`, or its age by its time.

        The same calculation serves both directions: the new value is `now` minus the old value.
        """
        failure, hang = (each and replace(each, at=now - each.at) for each in (self.failure, self.hang))
        return replace(self, failure=failure, hang=hang)


@dataclass(frozen=True)
class Plan(PlanRecord):
    """The coordinator's decision about the current attempt: what all ranks must do now, and why.

    Rank 0 writes the fields that are inherited from `PlanRecord` to run.json, and sends the plan (`to_json`) to every
    rank. Each plan replaces all earlier plans.
    """

    do: Action = Action.WAIT
    since: float = 0.0
    """Monotonic time of rank 0 at which `do` was decided."""
    addresses: tuple[str, ...] = ()
    """The IP addresses of the pods that started this attempt, in the order of their places (`place`). With `wait`,
    those of the attempt before. Empty until this coordinator has started an attempt."""
    cause: Failure | None = None
    """Why the attempt stops, or why the run failed. With `wait`, why the attempt before stopped. None while the
    processes run without a failure, when the run is complete, and before the first attempt."""
    save_after: Position | None = None
    """Set while all ranks are asked to save a checkpoint: the newest checkpoint at the time when this was first
    requested; otherwise None."""
    stop_seconds: float = 0.0
    """With `stop`: for how many seconds a user's script may react to its SIGTERM. This is the rest of the grace period
    of the pod that received SIGTERM; 0 if the attempt stops for another reason."""
    grow_since: float | None = None
    """With `train`: monotonic time of rank 0 since which pods have waited to be taken into the attempt; None: no pod
    waits."""
    grow_after: Position | None = None
    """The newest checkpoint at the time `grow_since`. The waiting pods are taken in after the next checkpoint."""
    replaced: tuple[str, ...] = ()
    """With `wait`: the incarnations of the pods that must exit because one of their devices failed."""
    offers_lease: bool = False
    """With `wait`: whether the coordinator must leave the run to another pod, because it may be cut off from the other
    pods."""

    def place(self, rank: int) -> int | None:
        """Return the place of rank `rank` in the world of this attempt; None if the rank is not in the world.

        The world is the sequence of the ranks that run the attempt's processes, and a place is an index in this
        sequence.
        """
        world = range(len(self.addresses)) if self.world is None else self.world
        return world.index(rank) if rank in world else None

    @property
    def cause_text(self) -> str:
        """Return why the attempt stops; empty without a cause."""
        return self.cause.text if self.cause is not None else ""

    def to_json(self) -> dict[str, Any]:
        """Return this plan for JSON as ranks receive it, without the values that only rank 0 needs."""
        sent = replace(self, restarts=(), counted_restarts=0, incarnations=(), since=0.0, grow_since=None)
        value: dict[str, Any] = to_json(sent)
        return value
