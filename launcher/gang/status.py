"""The picture of a run that rank 0 makes of what it knows: status.json, /status and /metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.export import folder
from launcher.gang.machine import Member, Plan
from launcher.gang.messages import CHILDLESS, PHASES
from launcher.settings import TrainSettings

STATES = {
    "wait": "rendezvous",
    "serve": "starting",
    "train": "training",
    "finish": "finishing",
    "stop": "restarting",
}
"""What people are told of a plan that is not over."""


def number(value: object) -> float | None:
    """A finite number, or None: progress is written by a person's program too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def whole(value: object) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return None if found is None else int(found)


def progress_of(member: Member, plan: Plan) -> Mapping[str, Any]:
    """What this rank's trainer said in this attempt."""
    state = member.state
    if state is None or state.attempt != plan.attempt or state.phase in ("staging", "idle"):
        return {}
    return state.progress


def eta_seconds(progress: Mapping[str, Any], settings: TrainSettings) -> float | None:
    """What is left of a rank's batches by its present speed, in seconds."""
    done, batch, batches = (number(progress.get(key)) for key in ("pass", "batch", "batches"))
    speed = number(progress.get("samples_per_second"))
    if done is None or batch is None or not batches or not speed or speed < 0:
        return None
    left = (settings.passes - done) * batches - batch
    return max(0.0, left * settings.batch_size / speed)


def waiting_for(plan: Plan, members: Sequence[Member], now: float) -> str | None:
    """What a run waits for, in one line: a storage that does not answer, else what keeps it from training."""
    hung = [
        f"the storage to answer {m.label}: no answer for {m.state.storage:.0f} s"
        for m in members
        if m.state is not None and m.state.storage > 0
    ]
    return "; ".join(hung) or _plan_waits_for(plan, members, now)


def _plan_waits_for(plan: Plan, members: Sequence[Member], now: float) -> str | None:
    if plan.do == "wait":
        absent = [m.label for m in members if m.phase in ("absent", "leaving")]
        staging = [m.label for m in members if m.phase == "staging"]
        running = [m.label for m in members if m.phase not in (*CHILDLESS, "absent")]
        ghosts = [f"{m.label}'s earlier pod to be dead for sure" for m in members if m.ghost > now]
        parts = [f"{label} to come" for label in absent] + [
            f"{label} to stage its shard" for label in staging
        ]
        return "; ".join([*parts, *(f"{label} to end its processes" for label in running), *ghosts]) or None
    if plan.do == "serve":
        late = [m.label for m in members if PHASES.index("ready") > _index(m)]
        return f"the pservers of {', '.join(late)} to accept connections" if late else None
    if plan.do == "train":
        late = [f"{m.label} ({state})" for m in members if (state := before_training(m, plan))]
        return f"{', '.join(late)} to begin training" if late else None
    if plan.do == "stop":
        running = [m.label for m in members if m.phase not in (*CHILDLESS, "absent")]
        return f"{', '.join(running)} to end its processes" if running else None
    return None


def before_training(member: Member, plan: Plan) -> str | None:
    """Return the state of a trainer before its first batch; None after it, or when it is unknown."""
    state = progress_of(member, plan).get("state")
    return state if state in ("starting", "meeting", "loading") else None


def _index(member: Member) -> int:
    return PHASES.index(member.phase) if member.phase in PHASES else -1


def status(
    settings: TrainSettings,
    members: Sequence[Member],
    plan: Plan,
    *,
    now: float,
    wall: float,
    state: str | None = None,
    cause: str | None = None,
) -> dict[str, Any]:
    """`output/status.json` (docs/contracts.md). The pass and batch on top are the slowest rank's.

    `now` is rank 0's monotonic clock and `wall` the time of day at that moment; `state` over the plan's own.
    """
    begins = plan.do == "train" and any(before_training(member, plan) for member in members)
    state = state or ("starting" if begins else STATES.get(plan.do, plan.do))
    ranks: list[dict[str, Any]] = []
    for member in members:
        progress = progress_of(member, plan)
        told = member.state
        ranks.append(
            {
                "rank": member.rank,
                "pod": told.pod if told is not None else "",
                "node": told.node if told is not None else "",
                # A second start of a complete run hears from no rank: none is absent or staging.
                "state": state if state == "complete" else _rank_state(member, progress),
                "pass": whole(progress.get("pass")),
                "batch": whole(progress.get("batch")),
                "samplesPerSecond": number(progress.get("samples_per_second")),
                "loss": number(progress.get("loss")),
                "storageSeconds": told.storage if told is not None else 0.0,
            }
        )
    progresses = [progress_of(member, plan) for member in members]
    placed = [(r["pass"], r["batch"] or 0) for r in ranks if r["pass"] is not None]
    slowest = min(placed, default=(None, None))
    speeds = [r["samplesPerSecond"] for r in ranks if r["samplesPerSecond"] is not None]
    losses = [r["loss"] for r in ranks if r["loss"] is not None]
    etas = [eta for progress in progresses if (eta := eta_seconds(progress, settings)) is not None]
    batches = [found for progress in progresses if (found := whole(progress.get("batches"))) is not None]
    return {
        "runId": settings.run_id,
        "state": state,
        "attempt": plan.attempt,
        "restarts": [
            {"attempt": r.attempt, "cause": r.cause, "at": round(wall - (now - r.at), 3)}
            for r in plan.restarts
        ],
        "waitingFor": waiting_for(plan, members, now),
        "trainers": settings.trainers,
        "passes": settings.passes,
        "pass": slowest[0],
        "batch": slowest[1],
        "batches": max(batches, default=None),
        "samplesPerSecond": round(sum(speeds), 1) if speeds else None,
        "loss": sum(losses) / len(losses) if losses else None,
        "etaSeconds": round(max(etas), 1)
        if etas and state == "training"
        else (0 if state == "complete" else None),
        "cause": cause,
        "exportTo": folder(settings) if settings.export_to else None,
        "updated": round(wall, 3),
        "ranks": ranks,
    }


def _rank_state(member: Member, progress: Mapping[str, Any]) -> str:
    if member.state is not None and member.state.failure is not None:
        return "failed"
    if member.phase == "training" and isinstance(progress.get("state"), str):
        return str(progress["state"])
    return member.phase


def metrics(value: Mapping[str, Any], rendezvous_seconds: float | None) -> bytes:
    """`/metrics`, for Prometheus, of what `status` gave."""
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry()
    told = {
        "attempt": ("The present attempt, from 0.", value["attempt"]),
        "pass": ("The pass in which the slowest rank is, from 0.", value["pass"]),
        "batch": ("The batch in which the slowest rank is.", value["batch"]),
        "samples_per_second": ("Samples of all ranks a second.", value["samplesPerSecond"]),
        "loss": ("Mean training loss of the pass so far.", value["loss"]),
        "eta_seconds": ("Seconds to the end of the last pass.", value["etaSeconds"]),
        "rendezvous_seconds": ("From the plan of this attempt to its start.", rendezvous_seconds),
    }
    for name, (text, found) in told.items():
        gauge = Gauge(f"paddle_training_{name}", text, registry=registry)
        gauge.set(float("nan") if found is None else found)
    restarts = Counter("paddle_training_restarts", "Restarts of the gang.", ["cause"], registry=registry)
    for restart in value["restarts"]:
        restarts.labels(cause=restart["cause"].partition("\n")[0][:120]).inc()
    ranks = Gauge("paddle_training_rank_samples_per_second", "Samples a second.", ["rank"], registry=registry)
    for rank in value["ranks"]:
        ranks.labels(rank=str(rank["rank"])).set(rank["samplesPerSecond"] or 0)
    return bytes(generate_latest(registry))
