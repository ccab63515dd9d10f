"""The two messages between ranks: a rank's state, sent to rank 0, and rank 0's order, the answer."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.errors import EXIT_UNFIT, LauncherError, ProcessError
from launcher.paths import Position
from launcher.reporting.failure_messages import clip
from launcher.schema import from_json, to_json

OrderAction = Literal["wait", "serve", "train", "finish", "stop", "end"]
PHASES = ("staging", "idle", "serving", "ready", "training", "done", "ended", "leaving")
PHASES_WITHOUT_PROCESSES = ("staging", "idle", "ended", "leaving")
"""Phases in which a rank runs no pserver and no trainer."""

SIGTERM_CAUSE = ": SIGTERM: "
"""Separator in the cause of a stop after SIGTERM: the rank is before it, the fate of the requested checkpoint after."""
TEXT_MAX_BYTES = 1 << 15
"""Longest text of a failure, which is a part of a rank's state and of the order: a program may quote a whole row."""


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
    place: tuple[int, int] | None = None
    """(pass from 0, batch from 1) of the trainer when it failed; None if unknown."""
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
        return [self.rank, self.process, code, *self.place]


@dataclass(frozen=True)
class MemberState:
    """The complete state that one rank reports to the coordinator."""

    rank: int
    incarnation: str
    """Random identifier of this pod: distinguishes two pods of one rank."""
    phase: str = "staging"
    attempt: int = -1
    """The newest attempt in which this rank started processes, or received `stop` before it started any."""
    failure: Failure | None = None
    """Failure of that attempt, or of the launcher itself."""
    address: str = ""
    pod: str = ""
    node: str = ""
    fingerprint: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    storage: float = 0.0
    """Seconds since the shared storage last answered this pod; 0 while it answers."""
    leave_in: float | None = None
    """Seconds after which this pod stops its processes because it received SIGTERM; None without SIGTERM."""
    save_seconds: float | None = None
    """The longest time in seconds that a trainer of this pod spent in the state `saving`; None before the first."""
    hang: Failure | None = None
    """Why the trainers of this pod seem to hang, if all ranks must hang for a failure; None: they make progress."""
    ended: tuple[str, ...] = ()
    """The trainers of this pod that exited with code 0, before anything stopped them."""
    connected: bool = False
    """Whether a process of this pod has been connected to one of another pod (or of this one, if it is alone)."""

    def to_json(self, now: float) -> dict[str, Any]:
        """Return this state as a dict for JSON, with the age of the failure instead of its time.

        The age is in seconds before `now`, because the monotonic clocks of two pods cannot be compared.
        """
        value = {**vars(self)}
        for key in ("failure", "hang"):
            if (failure := value[key]) is not None:
                value[key] = {**vars(failure), "at": now - failure.at}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], now: float) -> MemberState:
        """Convert the result of `to_json`, received from another pod, back to a state with this pod's clock.

        Raises:
            KeyError, TypeError, ValueError: `value` is not a valid state.
        """
        fields = {**value, "ended": tuple(value.get("ended", ()))}
        for key in ("failure", "hang"):
            if fields.get(key) is not None:
                failure = dict(fields[key])
                place = failure.get("place")
                fields[key] = Failure(
                    **{**failure, "at": now - float(failure["at"]), "place": tuple(place) if place else None}
                )
        state = cls(**fields)
        if state.phase not in PHASES or not isinstance(state.rank, int) or not isinstance(state.attempt, int):
            raise ValueError(
                f"a rank's state has an invalid phase {state.phase!r}, rank {state.rank!r} or attempt {state.attempt!r}"
            )
        if not isinstance(state.progress, dict) or not isinstance(state.storage, float | int):
            raise TypeError("a rank's state is invalid: progress must be a JSON object, and storage a number")
        if not all(isinstance(each, float | int | None) for each in (state.leave_in, state.save_seconds)):
            raise TypeError("a rank's state is invalid: leave_in and save_seconds must be numbers or null")
        return state


@dataclass(frozen=True)
class Order:
    """The coordinator's complete instruction to all ranks; each one replaces all earlier ones."""

    attempt: int
    do: OrderAction
    addresses: tuple[str, ...] = ()
    """One address for each rank; empty while no process may start."""
    resume: Position | None = None
    cause: str | None = None
    """Why the attempt stops or the run failed; None when the run is complete."""
    code: int = 0
    """With `end`: the exit code of every rank."""
    init_model: str | None = None
    """Value of training.initModelPath that replaces `previous`; None: the setting itself applies."""
    stop_seconds: float = 0.0
    """With `stop`: seconds that a user's script gets to react to SIGTERM, if they are more than `Timings.stop`."""
    replaced: str = ""
    """With `wait`: the incarnation of the pod that must exit, because a device of it failed."""

    def to_json(self) -> dict[str, Any]:
        """Return this order as a dict for JSON."""
        return {**vars(self), "resume": to_json(self.resume)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Order:
        """Convert the result of `to_json`, received from rank 0, back to an order."""
        resume = value.get("resume")
        return cls(
            **{
                **value,
                "addresses": tuple(value["addresses"]),
                "resume": from_json(Position, resume) if resume else None,
            }
        )
