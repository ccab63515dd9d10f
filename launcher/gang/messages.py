"""What ranks tell rank 0 and are told: the whole state, the whole order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from launcher.errors import EXIT_UNFIT, LauncherError, ProcessError
from launcher.layout import Position

Do = Literal["wait", "serve", "train", "finish", "stop", "end"]
PHASES = ("staging", "idle", "serving", "ready", "training", "done", "ended", "leaving")
CHILDLESS = ("staging", "idle", "ended", "leaving")
"""Phases in which a rank runs no child."""


@dataclass(frozen=True)
class Failure:
    """Why one rank's part of an attempt failed."""

    text: str
    code: int
    """What the run ends with, should this be its end."""
    at: float
    """When it happened, by the clock of who holds this."""
    rank: int = -1
    process: str = ""
    """`trainer`, `pserver 0`; empty for the launcher itself."""
    returncode: int | None = None
    place: tuple[int, int] | None = None
    """The trainer's pass and batch at that time."""

    @classmethod
    def of(cls, error: LauncherError, at: float, rank: int, **more: Any) -> Failure:
        """What `error` says, of this rank."""
        if isinstance(error, ProcessError):
            more |= {"process": error.process, "returncode": error.returncode}
        return cls(str(error), error.exit_code, at, rank, **more)

    @property
    def signature(self) -> tuple[Any, ...] | None:
        """What two failures share that are one and the same fault of the program; None when it is not its
        own."""
        if (
            self.returncode is None
            or self.returncode <= 0
            or self.returncode >= 128
            or self.code == EXIT_UNFIT
        ):
            return None
        return (self.rank, self.process, self.returncode, *(self.place or ()))


@dataclass(frozen=True)
class State:
    """All that one rank tells rank 0."""

    rank: int
    incarnation: str
    """Random: tells two pods of one rank apart."""
    phase: str = "staging"
    attempt: int = -1
    """The newest attempt in which it started children, or was told in time not to."""
    failure: Failure | None = None
    """Of that attempt, or of the launcher itself."""
    address: str = ""
    pod: str = ""
    node: str = ""
    fingerprint: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    storage: float = 0.0
    """Seconds for which the shared storage has not answered this pod; 0 while it answers."""

    def to_json(self, now: float) -> dict[str, Any]:
        """As it is sent: two pods' clocks are never compared, so a failure's time becomes its age."""
        value = asdict(self)
        if self.failure is not None:
            value["failure"]["at"] = now - self.failure.at
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], now: float) -> State:
        """The inverse. Raises KeyError, TypeError or ValueError for what is no state."""
        told = dict(value)
        if told.get("failure") is not None:
            failure = dict(told["failure"])
            place = failure.get("place")
            told["failure"] = Failure(
                **{**failure, "at": now - float(failure["at"]), "place": tuple(place) if place else None}
            )
        state = cls(**told)
        if state.phase not in PHASES or not isinstance(state.rank, int) or not isinstance(state.attempt, int):
            raise ValueError(f"no phase {state.phase!r}, rank {state.rank!r} or attempt {state.attempt!r}")
        if not isinstance(state.progress, dict) or not isinstance(state.storage, float | int):
            raise TypeError("progress is no object, or storage no number")
        return state


@dataclass(frozen=True)
class Order:
    """All that rank 0 tells every rank."""

    attempt: int
    do: Do
    addresses: tuple[str, ...] = ()
    """One a rank; empty while nobody is to start."""
    resume: Position | None = None
    cause: str | None = None
    """Why it stops, or ended; None at a good end."""
    code: int = 0
    """With `end`: the exit code of every rank."""

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Order:
        """The inverse."""
        resume = value.get("resume")
        return cls(
            **{
                **value,
                "addresses": tuple(value["addresses"]),
                "resume": Position(**resume) if resume else None,
            }
        )
