"""The views as text: rich tables for a terminal, single lines for a log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.progress import Progress, Restart
from launcher.cli.view import DATA_FAILED, JobView, Rank, View
from launcher.cli.words import command
from launcher.reporting.figures import at_time, best, duration, number, rate, scores

_COLOURS = {"complete": "green", "failed": "red", "missing": "red", "training": "cyan", "running": "cyan"}
_LOST = ("missing", "Failed", "Unknown", "Deleting")  # phases of a pod that another one will replace
STALE_SECONDS = 30  # status.json is written every 2 s
SHOWN_RESTARTS = 5  # a week on spot machines has many
KNOWN_BY = 160  # characters at the begin of a sentence that tell it from others
BLOCKS = "▁▂▃▄▅▆▇█"
_RESTING = {
    "stopped": "the run's pods to come back; it goes on from its newest save then",
    "suspended": "`resume`: the Job is suspended and will continue from its newest checkpoint",
}


def attempt_text(progress: Progress) -> str:
    """`attempt 2, 2 restarts`: attempts count from 0, as their folders and the launchers' lines do."""
    count = len(progress.restarts)
    restarts = f", {count} restart{'' if count == 1 else 's'}" if count else ""
    return f"attempt {progress.attempt}{restarts}"


def progress_text(progress: Progress) -> str:
    """Pass, batch, speed, loss, time left and attempt, in one line; where it goes on until it trains."""
    parts = []
    if progress.number is not None:
        now = min(progress.number + 1, progress.passes or progress.number + 1)
        parts.append(f"pass {now} of {progress.passes}")
        if progress.batches:
            parts.append(f"batch {progress.batch}/{progress.batches}")
        parts.append(f"{rate(progress.samples_per_second)} samples/s")
        parts.append(f"loss {number(progress.loss)}")
    if progress.eta is not None and progress.state not in ("complete", "failed"):
        parts.append(f"ETA {duration(progress.eta)}")
    parts.append(attempt_text(progress))
    if progress.number is None and progress.goes_on:
        parts.append(f"goes on from {progress.goes_on}")
    return ", ".join(parts)


def restart_text(restart: Restart, count: int) -> str:
    """One restart in one line; `count` counts them from 1."""
    return (
        f"restart {count}, at {at_time(restart.at)}: attempt {restart.attempt} failed, attempt "
        f"{restart.attempt + 1} goes on; cause: {restart.brief}"
    )


def line(view: View) -> str:
    """The whole view in one line, for logs and for `wait` without a terminal."""
    if view.progress and view.state not in ("preparing", "pending", "missing", "failed"):
        waits = "" if view.over else _waits(view)
        waits = waits and f"waits for {waits}"
        parts = (progress_text(view.progress), best(view.best), waits, _export(view), _score(view))
        return f"{view.state}: {', '.join(filter(None, parts))}"
    return f"{view.state}: {waits_for(view)}" if not view.over else view.state


def _export(view: View) -> str:
    """Where the model goes just now, or lies; empty when there is nothing to say."""
    if view.state == "exporting" and view.progress:
        return f"copying the model to {view.progress.export_to}"
    return f"exported to {view.exported}" if view.state == "complete" and view.exported else ""


def _score(view: View) -> str:
    """The score of a complete run; empty before that."""
    return f"score {scores(dict(view.score))}" if view.state == "complete" and view.score else ""


def waits_for(view: View) -> str:
    """What a run that is not over waits for."""
    if view.data and view.data.state in ("running", "waiting"):
        return f"data job still running: {view.data.name}" + (
            f" ({view.data.reason})" if view.data.reason else ""
        )
    if waits := _waits(view):
        return waits
    if view.training and view.training.reason:
        return f"training Job {view.training.name}: {view.training.reason}"
    if view.progress:
        return _export(view) or progress_text(view.progress)
    return "; ".join(view.notes) or f"the training to {'end' if view.state == 'finishing' else 'begin'}"


def _waits(view: View) -> str:
    """What keeps a run from training, by its pods and by rank 0; empty when nothing does."""
    pending = [rank for rank in view.ranks if rank.reason and rank.phase == "Pending"]
    if pending:
        return "; ".join(f"{who}{reason}" for who, reason in _by_reason(pending))
    if view.state in _RESTING:
        queue = view.training.queue if view.training and view.state == "suspended" else ""
        return f"queue {queue} (Kueue) to start the suspended Job" if queue else _RESTING[view.state]
    if not view.progress:
        return ""
    lost = [f"a new pod of rank {rank.rank}" for rank in view.ranks if rank.phase in _LOST]
    return "; ".join(lost) or view.progress.waiting_for or ""


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "yellow"))


def _job_row(kind: str, job: JobView) -> tuple[RenderableType, ...]:
    pods = f"{job.active} active, {job.succeeded} done" + (f", {job.failed} failed" if job.failed else "")
    return kind, job.name, _state(job.state), pods


def _rank_row(rank: Rank) -> tuple[RenderableType, ...]:
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
    """The whole view for a terminal: each cause once, and what comes next last."""
    head = Text.assemble((view.where, "bold"), "  ", _state(view.state))
    parts: list[RenderableType] = [head]
    jobs = [(kind, job) for kind, job in (("data", view.data), ("training", view.training)) if job]
    if jobs:
        parts.append(table(("Job", "name", "state", "pods"), [_job_row(kind, job) for kind, job in jobs]))
    if view.progress:
        parts += [progress_bar(view.progress), Text(progress_text(view.progress))]
        age = (time.time() if now is None else now) - (view.progress.updated or 0)
        if view.progress.updated and not view.over and age > STALE_SECONDS:
            parts.append(Text(f"last sign of life {duration(age)} ago", style="yellow"))
    if view.passes:
        parts.append(curves(view.passes))
        if view.best:
            parts.append(Text(best(view.best)))
    if view.progress and view.progress.restarts:
        parts.append(_restarts(view.progress.restarts))
    if view.ranks:
        columns = (">rank", "pod", "node", "phase", ">pass", ">batch", ">samples/s", ">loss")
        parts.append(table(columns, [_rank_row(rank) for rank in view.ranks]))
    if view.log and not view.over:
        parts += [
            Text(f"log of {view.log_of}:", style="bold"),
            *(Text(said, style="dim") for said in view.log),
        ]
    parts += [Text(remark, style="yellow") for remark in remarks(view)]
    if export := _export(view):
        parts.append(Text(export))
    if view.cause:
        parts.append(Text(f"cause: {view.cause}", style="red" if view.state == "failed" else "yellow"))
    if score := _score(view):
        parts.append(
            Text(f"{score}; {command('results', '--to', 'DIR')} brings model and curve", style="green")
        )
    return Group(*parts)


def remarks(view: View) -> list[str]:
    """What is to be said beside state and cause, each thing once.

    A data Job that failed is told by its Job, by its record and by every pod that waited for it.
    """
    waits = "" if view.over or not (view.progress or view.state in _RESTING) else _waits(view)
    of_ranks = _by_reason([rank for rank in view.ranks if rank.reason])
    of_jobs = [(f"{job.name}: ", job.reason) for job in (view.data, view.training) if job and job.reason]
    told = [("", waits and f"waits for {waits}"), *(("", note) for note in view.notes), *of_ranks, *of_jobs]
    known, said = [view.cause.removeprefix(DATA_FAILED)], []
    for who, what in told:
        first = what.strip()[:KNOWN_BY]
        if first and not any(first in other or (other and other[:KNOWN_BY] in what) for other in known):
            known.append(what)
            said.append(who + what)
    return said


def _by_reason(ranks: Sequence[Rank]) -> list[tuple[str, str]]:
    """(all ranks with this reason, the reason)."""
    grouped: dict[str, list[str]] = {}
    for rank in ranks:
        grouped.setdefault(rank.reason, []).append(f"rank {rank.rank} ({rank.pod})")
    return [(f"{', '.join(who)}: ", reason) for reason, who in grouped.items()]


def curves(passes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The training loss and each score over the passes, a line each: first value, curve, last value."""
    names = ["train_loss", *sorted({key for row in passes for key in row if key.startswith("test_")})]
    rows = []
    for name in names:
        values = [float(row[name]) for row in passes if name in row]
        if values:
            rows.append((name, number(values[0]), spark(values), number(values[-1])))
    return table((f"{len(passes)} pass{'' if len(passes) == 1 else 'es'}", ">first", "curve", ">last"), rows)


def spark(values: Sequence[float]) -> str:
    """A curve of one line: the lowest value is the lowest block; a value that is none is a gap."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def _restarts(restarts: Sequence[Restart]) -> RenderableType:
    """The newest restarts, each with the first line of its cause."""
    hidden = len(restarts) - SHOWN_RESTARTS
    title = f"Restarts ({len(restarts)}" + (f", the last {SHOWN_RESTARTS})" if hidden > 0 else ")")
    rows = [(at_time(r.at), f"{r.attempt}", Text(r.brief)) for r in restarts[-SHOWN_RESTARTS:]]
    return table(("when", ">attempt", "why it ended"), rows, title)


def progress_bar(progress: Progress) -> RenderableType:
    """A bar of all passes."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=progress.fraction, width=50), f"{progress.fraction:4.0%}")
    return grid


def consoles() -> tuple[Console, Console]:
    """(stdout, stderr). Without a terminal lines are not wrapped: scripts read them."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    for console in (out, err):
        if not console.is_terminal:
            console.width = 400
            console.soft_wrap = True
    return out, err


def print_json(value: Any) -> None:
    """An answer for scripts."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON has no nan: a loss that is none becomes null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
