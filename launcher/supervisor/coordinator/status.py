"""Builds the status of a run (status.json, GET /status) and its metrics (GET /metrics); pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.io.bucket_export_format import run_folder_url
from launcher.schema import RankStatus, StatusFile
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan
from launcher.supervisor.coordinator.member_states import Member, find_missing
from launcher.supervisor.coordinator.save_before_stop import describe_save_request
from launcher.supervisor.peers.messages import PHASES, PHASES_WITHOUT_PROCESSES
from launcher.supervisor.progress import finite_number, whole_number
from launcher.supervisor.state_deadlines import STATES_BEFORE_TRAINING

STATES = {
    "wait": "rendezvous",
    "serve": "starting",
    "train": "training",
    "finish": "finishing",
    "stop": "restarting",
}
"""Action of the plan → `state` in status.json while the run is not over."""


def find_progress(member: Member, plan: AttemptPlan) -> Mapping[str, Any]:
    """Return what a rank's trainer wrote to progress.json in the attempt of `plan`; {} before it wrote any."""
    state = member.state
    if state is None or state.attempt != plan.attempt or state.phase in ("staging", "idle"):
        return {}
    return state.progress


def estimate_seconds_left(progress: Mapping[str, Any], settings: TrainSettings) -> float | None:
    """Return the seconds that one rank needs for its remaining batches; None if it reports no speed yet."""
    done, batch, batches = (finite_number(progress.get(key)) for key in ("pass", "batch", "batches"))
    speed = finite_number(progress.get("samples_per_second"))
    if done is None or batch is None or not batches or not speed or speed < 0:
        return None
    passes = finite_number(progress.get("passes")) or settings.passes
    left = (passes - done) * batches - batch
    return max(0.0, left * (finite_number(progress.get("batch_size")) or settings.batch_size) / speed)


def describe_wait(plan: AttemptPlan, members: Sequence[Member], now: float, silence: float) -> str | None:
    """Return in one line what the run waits for, such as ranks or the storage; None if it does not wait."""
    hung = [
        f"the storage to answer {m.label}: no answer for {m.state.storage:.0f} s"
        for m in members
        if m.state is not None and m.state.storage > 0
    ]
    if hung:
        return "; ".join(hung)
    if plan.do == "wait":
        missing = find_missing(members, now, silence)
        present = [m for m in members if m not in missing]
        staging = [m.label for m in present if m.phase == "staging"]
        running = [m.label for m in present if m.phase not in PHASES_WITHOUT_PROCESSES]
        parts = [
            *(f"{m.label} to join" for m in missing),
            *(f"{label} to stage its shard" for label in staging),
            *(f"{label} to stop its processes" for label in running),
            *(f"the processes of {m.label}'s earlier pod to exit" for m in members if m.ghost_until > now),
        ]
        return "; ".join(parts) or None
    if plan.do == "serve":
        late = [m.label for m in members if m.phase in ("absent", *PHASES[: PHASES.index("ready")])]
        return f"the pservers of {', '.join(late)} to accept connections" if late else None
    if plan.do == "train":
        late = [f"{m.label} ({state})" for m in members if (state := find_state_before_training(m, plan))]
        save = describe_save_request(members, now) if plan.save is not None else None
        return f"{', '.join(late)} to start training" if late else save
    if plan.do == "stop":
        running = [m.label for m in members if m.phase not in (*PHASES_WITHOUT_PROCESSES, "absent")]
        return f"{', '.join(running)} to stop its processes" if running else None
    return None


def find_state_before_training(member: Member, plan: AttemptPlan) -> str | None:
    """Return a trainer's state (`starting`, `joining`, `loading`) if it has not trained a batch yet; else None."""
    state = find_progress(member, plan).get("state")
    return state if state in STATES_BEFORE_TRAINING else None


def build_status(
    settings: TrainSettings,
    members: Sequence[Member],
    plan: AttemptPlan,
    *,
    now: float,
    silence: float,
    wall: float,
    state: str | None = None,
    cause: str | None = None,
    warning: str | None = None,
) -> StatusFile:
    """Return the present content of `output/status.json` (docs/reference/file-formats.md).

    Args:
        silence: a rank that has not reported for so many seconds counts as lost.
        wall: Unix time in seconds at the moment `now`.
        state: replaces the state that follows from the plan.
        cause: why the run failed; None: it did not fail.
        warning: what is doubtful about a complete run; None: nothing.
    """
    starts = plan.do == "train" and any(find_state_before_training(member, plan) for member in members)
    state = state or ("starting" if starts else STATES.get(plan.do, plan.do))
    progresses = [find_progress(member, plan) for member in members]
    ranks = [
        # After a second start of a complete run no rank reports, but none is absent or staging.
        _build_rank(member, progress, state if state == "complete" else _rank_state(member, progress))
        for member, progress in zip(members, progresses, strict=True)
    ]
    placed = [(r.number, r.batch or 0) for r in ranks if r.number is not None]
    slowest = min(placed, default=(None, None))
    speeds = [r.samples_per_second for r in ranks if r.samples_per_second is not None]
    losses = [r.loss for r in ranks if r.loss is not None]
    etas = [eta for progress in progresses if (eta := estimate_seconds_left(progress, settings)) is not None]
    batches = [
        found for progress in progresses if (found := whole_number(progress.get("batches"))) is not None
    ]
    has_missing = plan.do == "wait" and bool(find_missing(members, now, silence))
    seconds_left = 0.0 if state == "complete" else None
    return StatusFile(
        run_id=settings.run_id,
        state=state,
        attempt=plan.attempt,
        restarts=[replace(restart, signature=None) for restart in plan.restarts],
        waiting_for=describe_wait(plan, members, now, silence),
        waiting_since=round(wall - (now - plan.since), 3) if has_missing else None,
        join_seconds=settings.join_seconds,
        trainers=settings.trainers,
        passes=max(
            filter(None, (whole_number(one.get("passes")) for one in progresses)), default=settings.passes
        ),
        number=slowest[0],
        batch=slowest[1],
        batches=max(batches, default=None),
        # Calculated from numbers of scripts, so each may be infinite, which JSON has no number for.
        samples_per_second=finite_number(round(sum(speeds), 1)) if speeds else None,
        loss=finite_number(sum(losses) / len(losses)) if losses else None,
        eta=finite_number(round(max(etas), 1)) if etas and state == "training" else seconds_left,
        cause=cause,
        warning=warning,
        export_to=run_folder_url(settings) if settings.export_to else None,
        updated=round(wall, 3),
        ranks=ranks,
    )


def _build_rank(member: Member, progress: Mapping[str, Any], state: str) -> RankStatus:
    reported = member.state
    return RankStatus(
        rank=member.rank,
        pod=reported.pod if reported is not None else "",
        node=reported.node if reported is not None else "",
        state=state,
        number=whole_number(progress.get("pass")),
        batch=whole_number(progress.get("batch")),
        samples_per_second=finite_number(progress.get("samples_per_second")),
        loss=finite_number(progress.get("loss")),
        storage_seconds=reported.storage if reported is not None else 0.0,
    )


def _rank_state(member: Member, progress: Mapping[str, Any]) -> str:
    if member.state is not None and member.state.failure is not None:
        return "failed"
    if member.phase == "training" and isinstance(progress.get("state"), str):
        return str(progress["state"])
    return member.phase


def render_metrics(status: StatusFile, rendezvous_seconds: float | None) -> bytes:
    """Return the page of GET /metrics in the text format of Prometheus.

    `rendezvous_seconds` is None before all ranks have joined.
    """
    from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

    registry = CollectorRegistry()
    gauges = {
        "attempt": ("Present attempt, counted from 0.", status.attempt),
        "pass": ("Pass of the slowest rank, counted from 0.", status.number),
        "batch": ("Batch of the slowest rank.", status.batch),
        "samples_per_second": ("Samples per second of all ranks.", status.samples_per_second),
        "loss": ("Mean training loss of the pass so far.", status.loss),
        "eta_seconds": ("Estimated seconds until the end of the last pass.", status.eta),
        "rendezvous_seconds": ("Seconds from the plan of this attempt to its start.", rendezvous_seconds),
    }
    for name, (text, found) in gauges.items():
        gauge = Gauge(f"paddle_training_{name}", text, registry=registry)
        gauge.set(float("nan") if found is None else found)
    restarts = Counter("paddle_training_restarts", "Restarts of the gang.", ["cause"], registry=registry)
    for restart in status.restarts:
        restarts.labels(cause=restart.cause.partition("\n")[0][:120]).inc()
    ranks = Gauge(
        "paddle_training_rank_samples_per_second", "Samples per second.", ["rank"], registry=registry
    )
    for rank in status.ranks:
        ranks.labels(rank=str(rank.rank)).set(rank.samples_per_second or 0)
    return bytes(generate_latest(registry))
