"""The views as text: rich tables for a terminal, single lines for a log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.view import JobView, Progress, Rank, View

_COLOURS = {"complete": "green", "failed": "red", "missing": "red", "training": "cyan", "running": "cyan"}
STALE_SECONDS = 30  # status.json is written every 2 s


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 42 s, 3 min 20 s, 2 h 05 min."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: float | None, digits: int = 4) -> str:
    """A loss or score, or - if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Samples per second with thousands separators."""
    return "-" if value is None else f"{value:,.0f}"


def progress_text(progress: Progress) -> str:
    """Pass, batch, speed, loss and time left, in one line."""
    parts = [f"pass {min(progress.number + 1, progress.passes or progress.number + 1)} of {progress.passes}"]
    if progress.batches:
        parts.append(f"batch {progress.batch}/{progress.batches}")
    parts.append(f"{rate(progress.samples_per_second)} samples/s")
    parts.append(f"loss {number(progress.loss)}")
    if progress.eta is not None and progress.state not in ("complete", "failed"):
        parts.append(f"ETA {duration(progress.eta)}")
    if progress.attempt:
        parts.append(f"attempt {progress.attempt}")
    return ", ".join(parts)


def line(view: View) -> str:
    """The whole view in one line, for logs and for `wait` without a terminal."""
    if view.progress and view.state not in ("preparing", "pending", "missing", "failed"):
        return f"{view.state}: {', '.join(filter(None, (progress_text(view.progress), _export(view))))}"
    return f"{view.state}: {waits_for(view)}" if not view.over else view.state


def _export(view: View) -> str:
    """Where the model goes just now, or lies; empty when there is nothing to say."""
    if view.state == "exporting" and view.progress:
        return f"copying the model to {view.progress.export_to}"
    return f"exported to {view.exported}" if view.state == "complete" and view.exported else ""


def waits_for(view: View) -> str:
    """What a run that is not over waits for."""
    if view.data and view.data.state in ("running", "waiting"):
        return f"data job still running: {view.data.name}" + (
            f" ({view.data.reason})" if view.data.reason else ""
        )
    pending = [rank for rank in view.ranks if rank.reason and rank.phase == "Pending"]
    if pending:
        return "; ".join(f"rank {rank.rank} ({rank.pod}): {rank.reason}" for rank in pending)
    if view.training and view.training.reason:
        return f"training Job {view.training.name}: {view.training.reason}"
    if view.progress:
        return _export(view) or progress_text(view.progress)
    return "; ".join(view.notes) or "the training to begin"


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "yellow"))


def _job_row(kind: str, job: JobView) -> tuple[RenderableType, ...]:
    pods = f"{job.active} active, {job.succeeded} done" + (f", {job.failed} failed" if job.failed else "")
    return kind, job.name, _state(job.state), pods, Text(job.reason)


def _rank_row(rank: Rank) -> tuple[RenderableType, ...]:
    return (
        str(rank.rank),
        rank.pod or "-",
        rank.node or "-",
        rank.phase + (f" ({rank.state})" if rank.state else ""),
        "-" if rank.number is None else str(rank.number),
        "-" if rank.batch is None else str(rank.batch),
        rate(rank.samples_per_second),
        number(rank.loss),
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[RenderableType]], title: str | None = None
) -> Table:
    """A plain table; columns whose heading begins with '>' are right-aligned."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*row)
    return made


def screen(view: View, now: float | None = None) -> RenderableType:
    """The whole view for a terminal."""
    head = Text.assemble((view.where, "bold"), "  ", _state(view.state))
    parts: list[RenderableType] = [head]
    jobs = [(kind, job) for kind, job in (("data", view.data), ("training", view.training)) if job]
    if jobs:
        rows = [_job_row(kind, job) for kind, job in jobs]
        parts.append(table(("Job", "name", "state", "pods", "reason"), rows))
    if view.progress:
        parts += [progress_bar(view.progress), Text(progress_text(view.progress))]
        age = (time.time() if now is None else now) - (view.progress.updated or 0)
        if view.progress.updated and not view.over and age > STALE_SECONDS:
            parts.append(Text(f"last sign of life {duration(age)} ago", style="yellow"))
    if export := _export(view):
        parts.append(Text(export))
    if view.ranks:
        columns = (">rank", "pod", "node", "phase", ">pass", ">batch", ">samples/s", ">loss")
        parts.append(table(columns, [_rank_row(rank) for rank in view.ranks]))
    parts += [
        Text(f"rank {rank.rank} ({rank.pod}): {rank.reason}", style="yellow")
        for rank in view.ranks
        if rank.reason
    ]
    parts += [Text(note, style="yellow") for note in view.notes]
    if view.cause:
        parts.append(Text(f"cause: {view.cause}", style="red"))
    return Group(*parts)


def progress_bar(progress: Progress) -> RenderableType:
    """A bar of all passes."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=progress.fraction, width=50), f"{progress.fraction:4.0%}")
    return grid


def scores(values: dict[str, Any]) -> str:
    """A run's score, as `error 0.1234, …`."""
    return ", ".join(
        f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )


def consoles() -> tuple[Console, Console]:
    """(stdout, stderr). Without a terminal lines are not wrapped: scripts read them."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    for console in (out, err):
        if not console.is_terminal:
            console.width = 400
            console.soft_wrap = True
    return out, err
