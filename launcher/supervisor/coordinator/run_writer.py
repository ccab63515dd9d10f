"""Write run.json and status.json on rank 0, and create the answers to GET /status and GET /metrics.

run.json is written at each change that a later rank 0 must know, and status.json every two seconds. `build_status`
returns the content of status.json, which is also the answer to GET /status. `render_metrics` returns the answer to GET
/metrics.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files, run_record
from launcher.io.bucket_export_format import run_folder_url
from launcher.log import log
from launcher.paths import OutputPaths, position
from launcher.schema import RankStatus, RunFile, StatusFile, TrainerProgress, to_json
from launcher.settings import SCRIPT_RUNTIMES, TrainSettings
from launcher.supervisor.coordinator.decisions import describe_growth, describe_save_request
from launcher.supervisor.coordinator.members import (
    SETTLED_SECONDS,
    GangLimits,
    Member,
    ScriptChanges,
    find_expected,
    find_missing,
)
from launcher.supervisor.log_progress import read_log_progress
from launcher.supervisor.node_check import LEAST_RANKS, describe_bad_nodes
from launcher.supervisor.peers.messages import Action, Failure, Phase, Plan
from launcher.supervisor.progress import STATES_BEFORE_TRAINING
from launcher.supervisor.shared_storage.output_folder import find_newest_save, read_if_intact
from launcher.supervisor.shared_storage.output_lease import LeaseLostError, OutputLease
from launcher.supervisor.timings import Timings

STATES = {
    Action.WAIT: "rendezvous",
    Action.SERVE: "starting",
    Action.TRAIN: "training",
    Action.FINISH: "finishing",
    Action.STOP: "restarting",
}
"""Action of the plan → `state` in status.json while the run is not over."""


SLOW_FACTOR = 1.5
"""A rank is slow if its own seconds per step are at least this many times the median of all ranks."""
LOOK_PAUSE = 20
"""After each search for a script's newest checkpoint file, the next search waits this many times as long as the search
took."""


class RunFilesWriter:
    """Writes run.json and status.json of one run, as long as this pod holds the output lease.

    `open`, `write_plan`, `write_trained` and `close` raise an error that says why, if the lease is lost. They raise
    `StorageError` or `StorageFailedError` if a file cannot be written. The thread that writes status.json only logs its
    errors.
    """

    def __init__(
        self,
        output: OutputPaths,
        settings: TrainSettings,
        timings: Timings,
        lock: OutputLease,
        *,
        fingerprint: dict[str, Any],
        earlier: RunFile,
        limits: GangLimits,
        read_plan: Callable[[], tuple[Plan, Sequence[Member]]],
    ) -> None:
        """Create the writer; it writes nothing before `open`.

        Args:
            lock: the output lease; nothing is written after it was lost.
            earlier: content of run.json in the output folder before this start; empty if there was no run.json.
            limits: the limits that the coordinator uses for its decisions.
            read_plan: returns the coordinator's current plan and members; called from any thread.
        """
        self.output, self._settings, self._fingerprint = output, settings, fingerprint
        self._earlier, self._lock, self._limits = earlier, lock, limits
        self._read_plan, self._timings = read_plan, timings
        self.output_id = earlier.output_id or os.urandom(8).hex()
        """Random identifier of this output, shared by all runs that resume it; job and run names may repeat."""
        self.exported: dict[str, Any] | None = earlier.exported if earlier.run_id == settings.run_id else None
        """Result of the export to a bucket, which is written to run.json as `exported`; None before the export."""
        self.score = earlier.score
        """The model's test scores from model/score.json; until that file exists, the scores in an earlier run.json."""
        self.warning: str | None = None
        """A warning about the complete run, which `status` shows; None: there is no warning."""
        self._slow_ranks = ""
        """Text about the slow ranks, from the last time at which all ranks that train had reported their time per step;
        empty: none was slow."""
        self._started = time.time()
        self._trained: float | None = None
        """Unix time at which training was completed; None before that."""
        self.state: str | None = None
        """The state to show in status.json; None: status.json shows the state that follows from the plan."""
        self._script_file = (0.0, "")
        """(Unix time at which the newest file of a script's own checkpoints was written, its name); (0.0, ""): no
        file."""
        self.script_changes: ScriptChanges | None = None
        """When the newest file of a script's own checkpoints was seen to change; None: there is no file."""
        self._next_look = 0.0
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(
            target=self._write_status_periodically, name="status.json", daemon=True
        )

    def open(self, plan: Plan, *, is_complete: bool) -> None:
        """Write the first run.json of this start; `is_complete` says whether training was complete before this start.

        If training was complete, run.json keeps the times and the warning of the earlier run.json. If another pod has
        coordinated the same run before, and the run has not failed, run.json keeps the time of the run's start.
        Otherwise the run starts now.
        """
        earlier = self._earlier
        if is_complete or (earlier.run_id == self._settings.run_id and earlier.state != "failed"):
            self._started = earlier.started or self._started
        if is_complete:
            self.warning = earlier.warning
            self._trained = earlier.finished or time.time()
        self.write_plan(plan)

    def start_status(self) -> None:
        """Start the thread that writes status.json every `Timings.status` seconds."""
        self._thread.start()

    def stop_status(self) -> None:
        """Stop writing status.json, because the run is over or another pod writes to the output."""
        self._end.set()

    def write_plan(self, plan: Plan) -> None:
        """Write run.json with a new plan; the coordinator calls this before any rank receives the plan."""
        self._write_run(plan, "training")

    def write_trained(self) -> None:
        """Write the state `complete` and the current time to run.json, because training is complete.

        The state stays the same even if the export fails later.
        """
        self._trained = self._trained or time.time()
        self._write_run(self._read_plan()[0], "complete")

    def close(self, state: str, cause: Failure | None) -> None:
        """Stop the thread of status.json, and write the last run.json and status.json.

        `state` is `complete`, `failed` or `stopped`. If training was complete, run.json gets the state `complete` in
        any case. `cause` is the failure; if only the export failed, it says why.
        """
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.state = state
        self._write_run(self._read_plan()[0], state, time.time(), cause)
        self._write_status(cause.text if cause is not None else None)

    def build_status(self, cause: str | None = None) -> StatusFile:
        """Return the content of status.json now; `cause` says why the run failed (None: it has not failed)."""
        (plan, members), now = self._read_plan(), time.monotonic()
        limits, wall = self._limits, time.time()
        status = build_status(
            self._settings, members, plan, limits, now=now, wall=wall, state=self.state, cause=cause
        )
        training = [rank for rank in status.ranks if rank.number is not None]
        if len(training) >= LEAST_RANKS and all(rank.step_seconds for rank in training):
            before, self._slow_ranks = self._slow_ranks, describe_slow_ranks(status.ranks)
            if self._slow_ranks and not before:
                log.warning("%s", self._slow_ranks)
        status = replace(status, warning=self._read_warnings())
        if self._settings.runtime not in SCRIPT_RUNTIMES:
            return status
        written, name = self._script_file
        status = replace(status, script_file=name or None, script_file_written=written or None)
        if status.number is not None or status.state != "training":
            return status
        log_file = self._settings.work.log(self.output.train_log(0).name)
        return replace(status, log_progress=read_log_progress(log_file) or None)

    def _read_warnings(self) -> str | None:
        """Return all warnings about the run as one text for users; None: there are no warnings."""
        plan, members = self._read_plan()
        nodes = describe_bad_nodes(find_expected(plan, members, self._settings.trainers))
        return " ".join(filter(None, (self.warning, nodes, self._slow_ranks))) or None

    def _write_status_periodically(self) -> None:
        while not self._end.is_set():
            try:
                self._write_status(None)
            except LeaseLostError:  # this pod writes nothing more
                return
            except (LauncherError, OSError) as error:  # if this lasts, the loss of the lease ends the run
                log.warning("cannot write status.json, trying again in %g s: %s", self._timings.status, error)
            self._end.wait(self._timings.status)

    def _write_status(self, cause: str | None) -> None:
        with self._writing:
            if self._settings.runtime in SCRIPT_RUNTIMES and self._next_look <= (began := time.monotonic()):
                newest, now = find_newest_save(self.output.script_checkpoints), time.monotonic()
                if newest[1] and newest != self._script_file:
                    earlier = self.script_changes
                    goes_on = earlier is not None and now - earlier.last < SETTLED_SECONDS
                    self.script_changes = ScriptChanges(earlier.first if earlier and goes_on else now, now)
                self._script_file = newest
                self._next_look = now + LOOK_PAUSE * (now - began)
            files.write_json(self.output.status_json, to_json(self.build_status(cause)), self._lock.check)

    def _write_run(
        self, plan: Plan, state: str, finished: float | None = None, cause: Failure | None = None
    ) -> None:
        s = self._settings
        self.score = self._read_score()
        record = RunFile(
            **plan.record,
            run_id=s.run_id,
            output_id=self.output_id,
            namespace=s.namespace,
            release=s.release,
            fingerprint=self._fingerprint,
            config=f"{s.config_dir}/{s.config_file}",
            passes=s.passes,
            keep_best=s.keep_best,
            patience=s.patience if s.keep_best else None,
            model_pass=self._read_model_pass() if s.keep_best else None,
            started=self._started,
            finished=finished if self._trained is None else self._trained,
            state=state if self._trained is None else "complete",
            holder=self._lock.token,
            cause=cause.text if cause is not None else None,
            exit_code=cause.code if cause is not None else None,
            warning=self._read_warnings(),
            score=self.score,
            exported=self.exported,
        )
        run_record.write(self.output, record, self._lock.check)

    def _read_score(self) -> dict[str, Any]:
        """Return the numbers in model/score.json; return those of `self.score` if the file is missing or damaged."""
        found = read_if_intact(lambda: files.read_json(self.output.model / "score.json"), self.score)
        numbers = {name: value for name, value in found.items() if type(value) in (int, float)}
        if found != numbers:
            names = ", ".join(sorted(found.keys() - numbers))
            log.warning("model/score.json: left out %s: a score must be a finite number", names)
        return numbers

    def _read_model_pass(self) -> int | None:
        """Return the pass (from 0) of the checkpoint from which output/model was exported; None if there is none."""
        model = read_if_intact(lambda: files.read_json(self.output.model / "model.json"), dict[str, Any]())
        at = position(str(model.get("checkpoint")))
        return at.passes - 1 if at else None


def find_progress(member: Member, plan: Plan) -> TrainerProgress:
    """Return what a rank's trainer wrote to progress.json in the attempt of `plan`.

    The result has no values if the trainer has written nothing in this attempt.
    """
    is_current = member.state.attempt == plan.attempt and member.phase not in (Phase.STAGING, Phase.IDLE)
    return member.state.progress if is_current else TrainerProgress()


def estimate_seconds_left(progress: TrainerProgress, settings: TrainSettings) -> float | None:
    """Return the seconds that one rank needs for its remaining batches; None if it does not report enough for this."""
    done, batch, speed = progress.number, progress.batch, progress.samples_per_second
    if done is None or batch is None or not progress.batches or not speed or speed < 0:
        return None
    left = ((progress.passes or settings.passes) - done) * progress.batches - batch
    return max(0.0, left * (progress.batch_size or settings.batch_size) / speed)


def describe_wait(plan: Plan, members: Sequence[Member], now: float, silence: float) -> str | None:
    """Return one line that says what the run waits for, such as ranks or the storage; None if it waits for nothing."""
    hung = [
        f"the storage to answer {m.label}: no answer for {m.state.storage:.0f} s"
        for m in members
        if m.state.storage > 0
    ]
    if hung:
        return "; ".join(hung)
    running = [m.label for m in members if m.phase.runs_processes]
    if plan.do == Action.WAIT:
        missing = find_missing(members, now, silence)
        present = [m for m in members if m not in missing]
        parts = [
            *(f"{m.label} to join" for m in missing),
            *(f"{m.label} to stage its shard" for m in present if m.phase == Phase.STAGING),
            *(f"{m.label} to stop its processes" for m in present if m.phase.runs_processes),
            *(f"the processes of {m.label}'s earlier pod to exit" for m in members if m.ghost_until > now),
            *(
                f"a new pod instead of {m.label}, of which a device failed"
                for m in present
                if m.state.incarnation in plan.replaced
            ),
        ]
        return "; ".join(parts) or None
    if plan.do == Action.SERVE:
        late = [m.label for m in members if m.phase == Phase.IDLE or not m.phase.has_reached(Phase.READY)]
        return f"the pservers of {', '.join(late)} to accept connections" if late else None
    if plan.do == Action.TRAIN:
        late = [f"{m.label} ({state})" for m in members if (state := find_state_before_training(m, plan))]
        save = describe_save_request(members, now) if plan.save_after is not None else None
        return f"{', '.join(late)} to start training" if late else save
    if plan.do == Action.STOP and running:
        return f"{', '.join(running)} to stop its processes"
    return None


def find_state_before_training(member: Member, plan: Plan) -> str | None:
    """Return a trainer's state before its first batch (`starting`, `joining`, `loading`); None in all other states."""
    state = find_progress(member, plan).state
    return state if state in STATES_BEFORE_TRAINING else None


def build_status(
    settings: TrainSettings,
    members: Sequence[Member],
    plan: Plan,
    limits: GangLimits,
    *,
    now: float,
    wall: float,
    state: str | None = None,
    cause: str | None = None,
) -> StatusFile:
    """Return the current content of `output/status.json` (docs/reference/files.md).

    Args:
        limits: the limits that the coordinator uses for its decisions.
        wall: Unix time in seconds at the monotonic time `now`.
        state: the state to show; None: the state that follows from the plan.
        cause: why the run failed; None: it did not fail.
    """
    expected, silence = find_expected(plan, members, settings.trainers), limits.silence
    waits = describe_wait(plan, expected, now, silence) or describe_growth(plan, members, now, limits) or None
    members = [m for m in members if m in expected or m.phase != Phase.ABSENT]
    starts = plan.do == Action.TRAIN and any(find_state_before_training(member, plan) for member in expected)
    state = state or ("starting" if starts else STATES.get(plan.do, str(plan.do)))
    progresses = [find_progress(member, plan) for member in members]
    # The members outside the world of an elastic run.
    outside = [m for m in members if m not in expected] if plan.do.runs_processes else []
    lost = find_missing(outside, now, silence)
    ranks = []
    for member, progress in zip(members, progresses, strict=True):
        # After a second start of a complete run no rank reports, but none is absent or staging.
        shown = state if state == "complete" else _rank_state(member, progress)
        if member in outside:
            shown = "lost" if member in lost else "spare" if member.phase == Phase.IDLE else str(member.phase)
        ranks.append(_build_rank(member, progress, shown))
    ranks = mark_slow_ranks(ranks)
    placed = [(r.number, r.batch or 0) for r in ranks if r.number is not None]
    slowest = min(placed, default=(None, None))
    speeds = [r.samples_per_second for r in ranks if r.samples_per_second is not None]
    losses = [r.loss for r in ranks if r.loss is not None]
    etas = [eta for progress in progresses if (eta := estimate_seconds_left(progress, settings)) is not None]
    has_missing = plan.do == Action.WAIT and bool(find_missing(expected, now, silence))
    seconds_left = 0.0 if state == "complete" else None
    return StatusFile(
        run_id=settings.run_id,
        state=state,
        attempt=plan.attempt,
        restarts=tuple(replace(restart, signature=None) for restart in plan.restarts),
        waiting_for=waits,
        waiting_since=round(wall - (now - plan.since), 3) if has_missing else None,
        join_seconds=settings.join_seconds,
        trainers=len(expected) if settings.is_elastic else settings.trainers,
        passes=max((each.passes for each in progresses if each.passes), default=settings.passes),
        number=slowest[0],
        batch=slowest[1],
        batches=max((each.batches for each in progresses if each.batches is not None), default=None),
        # These are calculated from numbers of scripts, so each may be infinite, for which JSON has no number.
        samples_per_second=_finite(sum(speeds), 1) if speeds else None,
        loss=_finite(sum(losses) / len(losses)) if losses else None,
        eta=_finite(max(etas), 1) if etas and state == "training" else seconds_left,
        cause=cause,
        export_to=run_folder_url(settings) if settings.export_to else None,
        updated=round(wall, 3),
        ranks=ranks,
    )


def _build_rank(member: Member, progress: TrainerProgress, state: str) -> RankStatus:
    reported = member.state
    return RankStatus(
        rank=reported.rank,
        pod=reported.pod,
        node=reported.node,
        state=state,
        number=progress.number,
        batch=progress.batch,
        samples_per_second=progress.samples_per_second,
        loss=progress.loss,
        step_seconds=progress.step_seconds,
        storage_seconds=reported.storage,
    )


def mark_slow_ranks(ranks: Sequence[RankStatus]) -> list[RankStatus]:
    """Return the ranks, with `is_slow` for those that need at least SLOW_FACTOR times the median time per step.

    No rank is slow if fewer than LEAST_RANKS ranks have reported their time per step.
    """
    known = [rank.step_seconds for rank in ranks if rank.step_seconds]
    limit = SLOW_FACTOR * statistics.median(known) if len(known) >= LEAST_RANKS else math.inf
    return [replace(rank, is_slow=(rank.step_seconds or 0.0) >= limit) for rank in ranks]


def describe_slow_ranks(ranks: Sequence[RankStatus]) -> str:
    """Return a text with the slow ranks, their nodes and seconds per step, and a fix; empty if no rank is slow."""
    slow = [rank for rank in ranks if rank.is_slow]
    if not slow:
        return ""
    median = statistics.median(rank.step_seconds for rank in ranks if rank.step_seconds)
    listed = "; ".join(
        f"rank {rank.rank} on node {rank.node or '?'}: {rank.step_seconds:.3g} s" for rank in slow
    )
    return (
        f"Slow ranks, by their own time per step (median of the ranks {median:.3g} s): {listed}. Fix: see what else "
        "runs on that node, or cordon it and delete the pod: Kubernetes replaces it on another node."
    )


def _rank_state(member: Member, progress: TrainerProgress) -> str:
    if member.state.failure is not None:
        return "failed"
    return (progress.state if member.phase == Phase.TRAINING else "") or str(member.phase)


def _finite(number: float, digits: int | None = None) -> float | None:
    """Return `number`, rounded to `digits` digits; None for NaN and infinity, for which JSON has no numbers."""
    if not math.isfinite(number):
        return None
    return number if digits is None else round(number, digits)


def render_metrics(status: StatusFile, rendezvous_seconds: float | None) -> bytes:
    """Return the page of GET /metrics in the text format of Prometheus.

    `rendezvous_seconds` is how long the rendezvous took; None before all ranks have joined.
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
    by_rank = {
        "samples_per_second": ("Samples per second.", "samples_per_second"),
        "step_seconds": ("Own seconds per step, without waits for others.", "step_seconds"),
        "slow": (f"1 if these are {SLOW_FACTOR} times the median.", "is_slow"),
    }
    for name, (text, attribute) in by_rank.items():
        gauge = Gauge(f"paddle_training_rank_{name}", text, ["rank", "node"], registry=registry)
        for rank in status.ranks:
            found = getattr(rank, attribute)
            gauge.labels(str(rank.rank), rank.node or "").set(float("nan") if found is None else found)
    return bytes(generate_latest(registry))
