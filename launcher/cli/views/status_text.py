"""The view of a run as text: a screen of tables for a terminal, single lines for a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.terminal import command_text, curve_table, text_table
from launcher.cli.views.run_view import (
    DATA_JOB_FAILED,
    FINAL_STATES,
    JobView,
    RankView,
    RunProgress,
    RunView,
    describe_running_data,
    first_line,
)
from launcher.reporting.text_formats import best_pass, duration, number, rate, scores, utc_time
from launcher.schema import RestartRecord

_COLOURS = {"complete": "green", "failed": "red", "missing": "red", "training": "cyan", "running": "cyan"}
_LOST_PHASES = ("missing", "Failed", "Unknown", "Deleting")  # of a pod that is replaced by a new one
STALE_SECONDS = 30  # rank 0 writes status.json every 2 s
SHOWN_RESTARTS = 5  # a run on spot instances may have many
COMPARED_CHARACTERS = 160  # two remarks that begin with the same ones say the same
_PAUSED = {
    "stopped": "the run's pods to be created again; the run then resumes from its newest checkpoint",
    "suspended": "`resume`: the Job is suspended and will continue from its newest checkpoint",
}


def attempt_text(progress: RunProgress) -> str:
    """Return for example `attempt 2, 2 restarts`; attempts count from 0, as in log lines and folder names."""
    count = len(progress.restarts)
    restarts = f", {count} restart{'' if count == 1 else 's'}" if count else ""
    return f"attempt {progress.attempt}{restarts}"


def progress_text(progress: RunProgress) -> str:
    """Return pass, batch, speed, loss, time left, attempt and the checkpoint to resume from, on one line."""
    parts = []
    if progress.number is not None:
        current = min(progress.number + 1, progress.passes or progress.number + 1)
        parts.append(f"pass {current} of {progress.passes}")
        if progress.batches:
            parts.append(f"batch {progress.batch}/{progress.batches}")
        parts.append(f"{rate(progress.samples_per_second)} samples/s")
        parts.append(f"loss {number(progress.loss)}")
    if progress.eta is not None and progress.state not in FINAL_STATES:
        parts.append(f"ETA {duration(progress.eta)}")
    parts.append(attempt_text(progress))
    if progress.number is None and progress.resumes_from:
        parts.append(f"resumes from {progress.resumes_from}")
    return ", ".join(parts)


def restart_text(restart: RestartRecord, count: int) -> str:
    """Return one restart as a line; `count` counts the restarts of the run from 1."""
    return (
        f"restart {count}, at {utc_time(restart.at)}: attempt {restart.attempt} failed, attempt "
        f"{restart.attempt + 1} starts; cause: {first_line(restart.cause)}"
    )


def status_line(view: RunView) -> str:
    """Return the view as one line, for logs and for `wait` without a terminal."""
    if view.progress and view.state not in ("preparing", "pending", "missing", "failed"):
        wait = "" if view.is_over else _describe_block(view)
        wait = wait and f"waits for {wait}"
        parts = (
            progress_text(view.progress),
            best_pass(view.best),
            wait,
            _export_text(view),
            _score_text(view),
        )
        return f"{view.state}: {', '.join(filter(None, parts))}"
    return f"{view.state}: {describe_wait(view)}" if not view.is_over else view.state


def _export_text(view: RunView) -> str:
    """Return where the model is being copied to, or was exported to; empty if it is not exported."""
    if view.state == "exporting" and view.progress:
        return f"copying the model to {view.progress.export_to}"
    return f"exported to {view.exported}" if view.state == "complete" and view.exported else ""


def _score_text(view: RunView) -> str:
    """Return the score of a complete run; empty before the run is complete."""
    return f"score {scores(dict(view.score))}" if view.state == "complete" and view.score else ""


def describe_wait(view: RunView) -> str:
    """Return what a run that is not over waits for."""
    if view.data and view.data.state in ("running", "waiting"):
        return describe_running_data(view.data)
    for kind, job in (("training", view.training), ("data", view.data)):
        if job and job.queue and job.state == "suspended":
            return f"{kind} Job {job.name}: {job.reason}"
    if block := _describe_block(view):
        return block
    if view.training and view.training.reason:
        return f"training Job {view.training.name}: {view.training.reason}"
    if view.progress:
        return _export_text(view) or progress_text(view.progress)
    return "; ".join(view.notes) or f"the training to {'finish' if view.state == 'finishing' else 'start'}"


def _describe_block(view: RunView) -> str:
    """Return what keeps a run from training, according to its pods' states and to rank 0; empty if nothing does."""
    pending = [rank for rank in view.ranks if rank.reason and rank.phase == "Pending"]
    if pending:
        reasons = "; ".join(f"{prefix}{reason}" for prefix, reason in _group_by_reason(pending))
        return f"{reasons}{_describe_losses(view)}{_describe_wait_end(view)}"
    if view.state in _PAUSED:
        queue = view.training.queue if view.training and view.state == "suspended" else ""
        losses = _describe_losses(view) if view.state == "stopped" else ""
        return (
            f"queue {queue} (Kueue) to start the suspended Job" if queue else f"{_PAUSED[view.state]}{losses}"
        )
    if not view.progress:
        return ""
    lost = [f"a new pod of rank {rank.rank}" for rank in view.ranks if rank.phase in _LOST_PHASES]
    wait = "; ".join(lost) or view.progress.waiting_for or ""
    wait = wait and wait + _describe_losses(view)
    return f"{wait}{_describe_wait_end(view)}" if wait else ""


def _describe_losses(view: RunView) -> str:
    """Return why the pods were lost that a run waits for; empty if that is unknown."""
    failed = [rank for rank in view.ranks if rank.phase in _LOST_PHASES and rank.reason]
    earlier = [
        replace(rank, pod="its previous pod", reason=rank.lost)
        for rank in view.ranks
        if rank.lost and rank not in failed
    ]
    shown = [f"{prefix}{first_line(reason)}" for prefix, reason in _group_by_reason([*failed, *earlier])]
    return f" (lost: {'; '.join(shown)})" if shown else ""


def _describe_wait_end(view: RunView) -> str:
    """Return since when a run waits for missing ranks, and when it gives up; empty if it does not wait for ranks."""
    progress = view.progress
    if progress is None or progress.join_seconds is None:
        return ""
    since = progress.waiting_since
    if view.ranks and view.ranks[0].phase in (*_LOST_PHASES, "Pending"):
        since = since or progress.updated  # rank 0 writes status.json, so the others wait for it since then
    if since is None:
        return ""
    return (
        f" (since {utc_time(since)}; the run gives up at {utc_time(since + progress.join_seconds)}: rendezvousSeconds "
        "+ training.rankWaitHours)"
    )


def _state_text(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "yellow"))


def _job_row(kind: str, job: JobView) -> tuple[RenderableType, ...]:
    pods = f"{job.active} active, {job.succeeded} done" + (f", {job.failed} failed" if job.failed else "")
    return kind, job.name, _state_text(job.state), pods


def _rank_row(rank: RankView) -> tuple[RenderableType, ...]:
    return (
        str(rank.rank),
        rank.pod or "-",
        rank.node or "-",
        rank.phase + (f" ({rank.state})" if rank.state else ""),
        "-" if rank.number is None else str(rank.number + 1),
        "-" if rank.batch is None else str(rank.batch),
        rate(rank.samples_per_second),
        number(rank.loss),
    )


def status_screen(view: RunView, options: Sequence[str] = (), now: float | None = None) -> RenderableType:
    """Return the view for a terminal.

    `options` select the run in suggested commands; `now` is the time in unix seconds, for tests.
    """
    parts: list[RenderableType] = [Text.assemble((view.where, "bold"), "  ", _state_text(view.state))]
    jobs = [(kind, job) for kind, job in (("data", view.data), ("training", view.training)) if job]
    if jobs:
        rows = [_job_row(kind, job) for kind, job in jobs]
        parts.append(text_table(("Job", "name", "state", "pods"), rows))
    if view.progress:
        parts += [_progress_bar(view.progress), Text(progress_text(view.progress))]
        age = (time.time() if now is None else now) - (view.progress.updated or 0)
        if view.progress.updated and not view.is_over and age > STALE_SECONDS:
            parts.append(Text(f"status.json was last updated {duration(age)} ago", style="yellow"))
    if view.passes:
        parts.append(curve_table({"": view.passes}))
        if view.best:
            parts.append(Text(best_pass(view.best)))
    if view.progress and view.progress.restarts:
        parts.append(_restart_table(view.progress.restarts))
    if view.ranks:
        columns = (">rank", "pod", "node", "phase", ">pass", ">batch", ">samples/s", ">loss")
        parts.append(text_table(columns, [_rank_row(rank) for rank in view.ranks]))
    if view.log and not view.is_over:
        parts.append(Text(f"log of {view.log_of}:", style="bold"))
        parts += [Text(line, style="dim") for line in view.log]
    parts += [Text(remark, style="yellow") for remark in remarks(view)]
    if export := _export_text(view):
        parts.append(Text(export))
    if view.cause:
        parts.append(Text(f"cause: {view.cause}", style="red" if view.state == "failed" else "yellow"))
    if score := _score_text(view):
        copy = command_text("results", *options, "--to", "DIR")
        parts.append(Text(f"{score}; copy model and curve: {copy}", style="green"))
    return Group(*parts)


def remarks(view: RunView) -> list[str]:
    """Return what `status` prints in addition to state and cause; each problem is in one remark only.

    The failure of a data Job, for example, is reported by the Job, by its record and by every waiting pod.
    """
    wait = "" if view.is_over or not (view.progress or view.state in _PAUSED) else _describe_block(view)
    of_ranks = _group_by_reason([rank for rank in view.ranks if rank.reason])
    of_jobs = [
        (f"{job.name or 'data'}: ", job.reason) for job in (view.data, view.training) if job and job.reason
    ]
    candidates = [
        ("", wait and f"waits for {wait}"),
        *(("", note) for note in view.notes),
        *of_ranks,
        *of_jobs,
    ]
    known, found = [view.cause.removeprefix(DATA_JOB_FAILED)], []
    for prefix, text in candidates:
        start = text.strip()[:COMPARED_CHARACTERS]
        repeated = any(start in other or (other and other[:COMPARED_CHARACTERS] in text) for other in known)
        if start and not repeated:
            known.append(text)
            found.append(prefix + text)
    return found


def _group_by_reason(ranks: Sequence[RankView]) -> list[tuple[str, str]]:
    """Return for each reason (text such as `rank 0 (POD), rank 2 (POD): `, the reason)."""
    grouped: dict[str, list[str]] = {}
    for rank in ranks:
        grouped.setdefault(rank.reason, []).append(f"rank {rank.rank} ({rank.pod})")
    return [(f"{', '.join(prefix)}: ", reason) for reason, prefix in grouped.items()]


def _restart_table(restarts: Sequence[RestartRecord]) -> RenderableType:
    """Return the newest restarts, each with the first line of its cause."""
    hidden = len(restarts) - SHOWN_RESTARTS
    title = f"Restarts ({len(restarts)}" + (f", the last {SHOWN_RESTARTS})" if hidden > 0 else ")")
    rows = [
        (utc_time(one.at), f"{one.attempt}", Text(first_line(one.cause)))
        for one in restarts[-SHOWN_RESTARTS:]
    ]
    return text_table(("when", ">attempt", "cause"), rows, title)


def _progress_bar(progress: RunProgress) -> RenderableType:
    """Return a progress bar: how much of all passes is done."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=progress.fraction, width=50), f"{progress.fraction:4.0%}")
    return grid
