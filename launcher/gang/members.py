"""What rank 0 knows of every rank, and the picture of the run that it makes of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.export import folder
from launcher.settings import TrainSettings

PHASES = ("absent", "staging", "staged", "starting", "ready", "training", "done", "ended")
"""A rank goes through them in this order; `ended` means that no child of it runs any more."""


@dataclass(frozen=True)
class Failure:
    """Why one rank gave up."""

    rank: int
    at: float
    """Rank 0's monotonic clock: when it happened, not when it was told."""
    text: str
    exit_code: int


@dataclass
class Member:
    """One rank."""

    rank: int
    phase: str = "absent"
    host: str = ""
    address: str = ""
    pod: str = ""
    node: str = ""
    fingerprint: dict[str, Any] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    lost: bool = False

    def reached(self, phase: str) -> bool:
        return PHASES.index(self.phase) >= PHASES.index(phase)

    @property
    def label(self) -> str:
        """`rank 1 (pod x on node y)`, as far as it is known."""
        where = " on node ".join(part for part in (f"pod {self.pod}" if self.pod else "", self.node) if part)
        return f"rank {self.rank} ({where})" if where else f"rank {self.rank}"


def first_failure(members: Sequence[Member]) -> Failure | None:
    """The cause: the earliest failure; the others are its wake."""
    failures = [member.failure for member in members if member.failure is not None]
    return min(failures, key=lambda failure: failure.at, default=None)


def number(value: object) -> float | None:
    """A finite number, or None: progress is written by a person's program too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def eta_seconds(member: Member, settings: TrainSettings) -> float | None:
    """What is left of this rank's batches by its present speed, in seconds."""
    progress = member.progress
    done, batch, batches = (number(progress.get(key)) for key in ("pass", "batch", "batches"))
    speed = number(progress.get("samples_per_second"))
    if done is None or batch is None or not batches or not speed or speed < 0:
        return None
    left = (settings.passes - done) * batches - batch
    return max(0.0, left * settings.batch_size / speed)


def status(
    settings: TrainSettings,
    members: Sequence[Member],
    state: str,
    *,
    attempt: int,
    cause: str | None,
    updated: float,
) -> dict[str, Any]:
    """`output/status.json` (docs/contracts.md). The pass and batch on top are the slowest rank's."""
    ranks: list[dict[str, Any]] = []
    for member in members:
        progress = member.progress if member.reached("training") else {}
        ranks.append(
            {
                "rank": member.rank,
                "pod": member.pod,
                "node": member.node,
                "state": _rank_state(member, progress),
                "pass": _whole(progress.get("pass")),
                "batch": _whole(progress.get("batch")),
                "samplesPerSecond": number(progress.get("samples_per_second")),
                "loss": number(progress.get("loss")),
            }
        )
    placed = [(r["pass"], r["batch"] or 0) for r in ranks if r["pass"] is not None]
    slowest = min(placed, default=(None, None))
    speeds = [r["samplesPerSecond"] for r in ranks if r["samplesPerSecond"] is not None]
    losses = [r["loss"] for r in ranks if r["loss"] is not None]
    etas = [eta for m in members if m.reached("training") and (eta := eta_seconds(m, settings)) is not None]
    batches = [b for m in members if (b := _whole(m.progress.get("batches"))) is not None]
    running = state == "training"
    return {
        "runId": settings.run_id,
        "state": state,
        "attempt": attempt,
        "trainers": settings.trainers,
        "passes": settings.passes,
        "pass": slowest[0],
        "batch": slowest[1],
        "batches": max(batches, default=None),
        "samplesPerSecond": round(sum(speeds), 1) if speeds else None,
        "loss": sum(losses) / len(losses) if losses else None,
        "etaSeconds": round(max(etas), 1) if etas and running else (0 if state == "complete" else None),
        "cause": cause,
        "exportTo": folder(settings) if settings.export_to else None,
        "updated": updated,
        "ranks": ranks,
    }


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _rank_state(member: Member, progress: dict[str, Any]) -> str:
    if member.lost:
        return "lost"
    if member.failure is not None:
        return "failed"
    if member.phase == "training" and isinstance(progress.get("state"), str):
        return str(progress["state"])
    return member.phase
