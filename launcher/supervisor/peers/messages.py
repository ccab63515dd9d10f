"""The two messages between ranks: a rank's state, sent to rank 0, and rank 0's plan, the answer."""

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
"""Separator in the cause of a stop after SIGTERM: the rank is before it, the fate of the requested checkpoint after."""
TEXT_MAX_BYTES = 1 << 15
"""Longest text of a failure, which is a part of a rank's state and of the plan: a program may quote a whole row."""


class Phase(str, enum.Enum):
    """What a rank does now. The phases of one attempt are in the order in which a rank can pass through them."""

    ABSENT = "absent"
    """It has not reported yet."""
    STAGING = "staging"
    SERVING = "serving"
    """Its pservers start."""
    READY = "ready"
    TRAINING = "training"
    DONE = "done"
    """Its trainers have exited, and its pservers run."""
    ENDED = "ended"
    IDLE = "idle"
    """Its processes were stopped, or it has not started any yet."""
    LEAVING = "leaving"
    """Its launcher exits."""

    __str__ = str.__str__

    def has_reached(self, other: Phase) -> bool:
        """Return whether this phase is `other`, or follows it in an attempt."""
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
    """Exit code of the run, if this failure ends it."""
    at: float
    """Time of the failure on the monotonic clock of the pod that holds this object."""
    rank: int = -1
    process: str = ""
    """Name of the failed process, for example `trainer` or `pserver 0`; empty for the launcher itself."""
    returncode: int | None = None
    place: Position | None = None
    """The pass and the batch that the trainer trained when it failed; None if unknown."""
    priority: int = 1
    """As in `ProcessError`."""

    @classmethod
    def from_error(cls, error: LauncherError, at: float, rank: int, **more: Any) -> Failure:
        """Convert an exception of this rank to a failure; `more` are further fields."""
        if isinstance(error, ProcessError):
            more |= {"process": error.process, "returncode": error.returncode, "priority": error.priority}
        return cls(clip(str(error), TEXT_MAX_BYTES), error.exit_code, at, rank, **more)

    @property
    def is_consequence(self) -> bool:
        """Whether another failure usually caused this one: a trainer lost its connection, and mostly got SIGABRT."""
        return self.sort_key[0] >= 2

    @property
    def sort_key(self) -> tuple[int, float]:
        """Return a key by which the failure that caused the other ones of an attempt is the smallest."""
        is_abort = self.returncode in (-signal.SIGABRT, 128 + signal.SIGABRT)
        is_unexplained = self.priority == 1 and self.process.startswith("trainer")
        return 3 if is_abort and is_unexplained else self.priority, self.at

    @property
    def ends_pod(self) -> bool:
        """Whether the pod of this rank must be replaced before the next attempt: one of its devices failed."""
        return bool(self.process) and self.code == EXIT_UNFIT

    @property
    def signature(self) -> list[Any] | None:
        """Return a key that is equal for two failures of the program at the same place.

        None when the place is unknown, or when the program is not the cause: a signal, or an error of the storage or
        the launcher.
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
    """MB/s of the pod's own disk: written, synced and read."""
    network: float = 0.0
    """MB/s from the pod of the next rank; 0: that pod did not answer."""
    round_trips: float = 0.0
    """Round trips a second to that pod, one after the other."""


@dataclass(frozen=True)
class MemberState:
    """The complete state that one rank reports to the coordinator."""

    rank: int
    incarnation: str = ""
    """Random identifier of this pod: distinguishes two pods of one rank. Empty before the first report."""
    phase: Phase = Phase.ABSENT
    attempt: int = -1
    """The newest attempt in which this rank started processes, or received `stop` before it started any."""
    failure: Failure | None = None
    """Failure of that attempt, or of the launcher itself."""
    address: str = ""
    pod: str = ""
    node: str = ""
    fingerprint: dict[str, Any] | None = None
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    """Progress of the trainers of `attempt`."""
    storage: float = 0.0
    """Seconds since the shared storage last answered this pod; 0 while it answers."""
    leave_in: float | None = None
    """Seconds after which this pod stops its processes because it received SIGTERM; None without SIGTERM."""
    hang: Failure | None = None
    """Why the trainers of this pod seem to hang, if all ranks must hang for a failure; None: they make progress."""
    ended: tuple[str, ...] = ()
    """The trainers of this pod that exited with code 0, before anything stopped them."""
    node_speeds: NodeSpeeds | None = None
    """None: not measured."""
    connected: bool = False
    """Whether a process of this pod has been connected to one of another pod (or of this one, if it is alone)."""

    def to_json(self, now: float) -> dict[str, Any]:
        """Return this state as a dict for JSON, with the ages of the failures in seconds instead of their times.

        The monotonic clocks of two pods cannot be compared.
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
        """Convert the times of failures to ages at time `now`, or ages to times: both are `now` minus the other."""
        failure, hang = (each and replace(each, at=now - each.at) for each in (self.failure, self.hang))
        return replace(self, failure=failure, hang=hang)


@dataclass(frozen=True)
class Plan(PlanRecord):
    """The coordinator's decision about the current attempt: what all ranks must do now, and why.

    Rank 0 writes the fields of `PlanRecord` to run.json, and sends the others to every rank. Each plan replaces all
    earlier ones.
    """

    do: Action = Action.WAIT
    since: float = 0.0
    """Monotonic time of rank 0 at which `do` was decided."""
    addresses: tuple[str, ...] = ()
    """The IP addresses of the pods that started this attempt, by place."""
    cause: Failure | None = None
    """Why the attempt stops, or the run failed; None when the run is complete."""
    save_after: Position | None = None
    """The newest checkpoint when a pod received SIGTERM and all ranks were asked to save another one; else None."""
    stop_seconds: float = 0.0
    """With `stop`: the rest of the grace period of a pod that received SIGTERM, in which a user's script may react to
    its own SIGTERM; 0 after a failure."""
    grow_since: float | None = None
    """With `train`: monotonic time of rank 0 since which pods wait to be taken in; None: no pod waits."""
    grow_after: Position | None = None
    """The newest checkpoint at that time; pods are taken in after the next one."""
    replaced: tuple[str, ...] = ()
    """With `wait`: the incarnations of the pods that must exit, because a device of them failed."""
    offers_lease: bool = False
    """With `wait`: whether the coordinator must leave the run to another pod, as it may be cut off from the others."""

    def place(self, rank: int) -> int | None:
        """Return the place of a pod in the world of this attempt; None if it is outside."""
        world = range(len(self.addresses)) if self.world is None else self.world
        return world.index(rank) if rank in world else None

    @property
    def cause_text(self) -> str:
        """Return why the attempt stops; empty without a cause."""
        return self.cause.text if self.cause is not None else ""

    def to_json(self) -> dict[str, Any]:
        """Return this plan for JSON, as ranks receive it: without what only rank 0 needs."""
        sent = replace(self, restarts=(), counted_restarts=0, incarnations=(), since=0.0, grow_since=None)
        value: dict[str, Any] = to_json(sent)
        return value
