"""Show a run: as a screen of tables for a terminal, or as single lines for a log, once or until the run is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.cli.cluster_api import UnreachableError
from launcher.cli.errors import RunFailedError, WaitTimeoutError
from launcher.cli.job_sessions import LOG_LINES, Session
from launcher.cli.reader_commands import FINAL_STATES
from launcher.cli.releases import ReleaseNotFoundError
from launcher.cli.run_files import check_intact
from launcher.cli.run_view import (
    DATA_JOB_FAILED,
    JobView,
    RankView,
    RunProgress,
    RunView,
    describe_running_data,
)
from launcher.cli.terminal import command_text, console, curve_table, print_line, report, text_table
from launcher.reporting.text_formats import best_pass, duration, number, rate, scores, utc_time
from launcher.schema import RestartRecord

_COLOURS = {"complete": "green", "failed": "red", "missing": "red", "training": "cyan", "running": "cyan"}
_LOST_PHASES = ("missing", "Failed", "Unknown", "Deleting")  # phases of a pod that a new pod will replace
STALE_SECONDS = 30  # rank 0 writes status.json every 2 s
SHOWN_RESTARTS = 5  # a run on spot instances may have many
JOB_COLUMNS = ("Job", "name", "state", "pods")
RANK_COLUMNS = (">rank", "pod", "node", "phase", ">pass", ">batch", ">samples/s", ">s/step", ">loss")
"""Headings of the tables of Jobs and ranks; a heading that begins with `>` belongs to a right-aligned column."""
COMPARED_CHARACTERS = 160
"""Two remarks say the same if one of them contains the first characters of the other, up to this number."""
_PAUSED = {
    "stopped": "the run's pods to be created again; the run then resumes from its newest checkpoint",
    "suspended": "`resume`: the Job is suspended and will continue from its newest checkpoint",
}


def first_line(cause: str) -> str:
    """Return the first line of a failure's cause, up to `; the last lines of …`, which introduces log lines."""
    line = cause.strip().partition("\n")[0].partition("; the last lines of ")[0]
    return line or "cause unknown"


def progress_text(progress: RunProgress) -> str:
    """Return pass, batch, speed, loss, time left, attempt and the checkpoint to resume from, on one line.

    Attempts count from 0, as in log lines and folder names.
    """
    parts = []
    if progress.number is not None:
        current = min(progress.number + 1, progress.passes or progress.number + 1)
        parts.append(f"pass {current} of {progress.passes}")
        if progress.batches:
            parts.append(f"batch {progress.batch}/{progress.batches}")
        parts.append(f"{rate(progress.samples_per_second)} samples/s")
        parts.append(f"loss {number(progress.loss)}")
    if progress.log_progress:
        parts.append(f"{progress.log_progress} (read from the log)")
    if progress.script_file and progress.script_file_written:
        age = max(0.0, time.time() - progress.script_file_written)
        parts.append(f"newest file {progress.script_file}, {duration(age)} old")
    if progress.eta is not None and progress.state not in FINAL_STATES:
        parts.append(f"ETA {duration(progress.eta)}")
    parts.append(f"attempt {progress.attempt}")
    if count := len(progress.restarts):
        parts.append(f"{count} restart{'' if count == 1 else 's'}")
    if progress.number is None and progress.resumes_from:
        parts.append(f"resumes from {progress.resumes_from}")
    return ", ".join(parts)


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
    if block := _describe_block(view):
        return block
    if view.training and view.training.reason:
        return f"training Job {view.training.name}: {view.training.reason}"
    if view.progress:
        return _export_text(view) or progress_text(view.progress)
    return "; ".join(view.notes) or f"the training to {'finish' if view.state == 'finishing' else 'start'}"


def _describe_block(view: RunView) -> str:
    """Return what keeps a run from training, according to its Jobs, pods and status.json; empty if nothing does."""
    for kind, job in (("training", view.training), ("data", view.data)):
        if job and job.queue and job.state == "suspended":
            return f"{kind} Job {job.name}: {job.reason}"
    pending = [rank for rank in view.ranks if rank.reason and rank.phase == "Pending"]
    if pending:
        reasons = "; ".join(f"{prefix}{reason}" for prefix, reason in _group_by_reason(pending))
        return f"{reasons}{_describe_losses(view)}{_describe_wait_end(view)}"
    if view.state in _PAUSED:
        return _PAUSED[view.state] + (_describe_losses(view) if view.state == "stopped" else "")
    # While a run finishes, the last status.json may still say what it waited for.
    if not view.progress or view.state == "finishing":
        return ""
    lost = [f"a new pod of rank {rank.rank}" for rank in view.ranks if rank.phase in _LOST_PHASES]
    wait = "; ".join(lost) or view.progress.waiting_for or ""
    wait = wait and wait + _describe_losses(view)
    return f"{wait}{_describe_wait_end(view)}" if wait else ""


def _describe_losses(view: RunView) -> str:
    """Return why pods were lost whose replacements a run waits for; empty if the reasons are unknown."""
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


def job_row(kind: str, job: JobView) -> tuple[str | Text, ...]:
    """Return the cells of a Job below JOB_COLUMNS; `kind` is data or training."""
    pods = f"{job.active} active, {job.succeeded} done" + (f", {job.failed} failed" if job.failed else "")
    return kind, job.name, _state_text(job.state), pods


def rank_row(rank: RankView) -> tuple[str, ...]:
    """Return the cells of a rank below RANK_COLUMNS."""
    return (
        str(rank.rank),
        rank.pod or "-",
        rank.node or "-",
        rank.phase + (f" ({rank.state})" if rank.state else ""),
        "-" if rank.number is None else str(rank.number + 1),
        "-" if rank.batch is None else str(rank.batch),
        rate(rank.samples_per_second),
        _step_text(rank),
        number(rank.loss),
    )


def _step_text(rank: RankView) -> str:
    """Return a rank's own seconds per step, and whether the rank is slow; `-` if the seconds are not measured."""
    return "-" if rank.step_seconds is None else f"{rank.step_seconds:.3g}{' slow' if rank.is_slow else ''}"


def status_screen(view: RunView, options: Sequence[str] = (), now: float | None = None) -> RenderableType:
    """Return the view as a screen for a terminal.

    `options` select the run in suggested commands; `now` is the time in unix seconds, for tests.
    """
    parts: list[RenderableType] = [Text.assemble((view.where, "bold"), "  ", _state_text(view.state))]
    jobs = [job_row(kind, job) for kind, job in (("data", view.data), ("training", view.training)) if job]
    if jobs:
        parts.append(text_table(JOB_COLUMNS, jobs))
    if view.progress:
        done = view.progress.fraction
        if done or view.progress.number is not None:  # the share of a script that reports no step is unknown
            bar = Table.grid(padding=(0, 1))
            bar.add_row(ProgressBar(total=1.0, completed=done, width=50), f"{done:4.0%}")
            parts.append(bar)
        parts.append(Text(progress_text(view.progress)))
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
        parts.append(text_table(RANK_COLUMNS, [rank_row(rank) for rank in view.ranks]))
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

    For example, the Job, its record and every waiting pod report the failure of a data Job; the result has it once.
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


LINE_SECONDS = 5.0  # changed figures are printed at most once in this time; a new state or pass immediately
UNREACHABLE_SECONDS = 120.0  # an API server that is being replaced is unreachable for less
PAUSE_SECONDS = 2.0  # between two polls
Report = Callable[[str], None]


@dataclass
class LinePrinter:
    """Prints the views of a run as lines, and skips a view if too little has changed since the last line."""

    report: Report
    _key: tuple[object, ...] = ()
    _line: str = ""
    _printed_at: float = float("-inf")
    _restarts: tuple[str | None, int] = (None, 0)
    """(id of the run that is followed, number of its restarts that were printed or are older than the first view)."""

    def print_view(self, view: RunView) -> None:
        """Print a line for each new restart, and one for the view.

        The view is printed immediately if state, pass, attempt or run changed or the score is new, and after
        LINE_SECONDS if other figures changed.
        """
        progress = view.progress
        if progress:
            run, seen = self._restarts
            known = len(progress.restarts) if run != view.run_id else seen
            for count, restart in enumerate(progress.restarts[known:], known + 1):
                self.report(
                    f"restart {count}, at {utc_time(restart.at)}: attempt {restart.attempt} failed, attempt "
                    f"{restart.attempt + 1} starts; cause: {first_line(restart.cause)}"
                )
            self._restarts = view.run_id, max(known, len(progress.restarts))
        at = (progress.number, progress.attempt) if progress else None
        key = (view.state, view.run_id, at, bool(view.score))
        text, now = status_line(view), time.monotonic()
        if text != self._line and (key != self._key or now - self._printed_at >= LINE_SECONDS):
            self._key, self._line, self._printed_at = key, text, now
            self.report(text)


def poll_until_over(
    poll: Callable[[], RunView],
    show: Callable[[RunView], None],
    report: Report,
    timeout: float,
    options: Sequence[str] = (),
) -> RunView:
    """Poll a run every PAUSE_SECONDS until it is complete; return its last view.

    Args:
        poll: returns the current view of the run.
        show: receives each view.
        report: receives messages, for example that the cluster is unreachable.
        timeout: longest time to poll, in seconds.
        options: the options that select the run in suggested commands.

    Raises:
        RunFailedError: the run failed or does not exist, or its release was removed; the message has the cause.
        WaitTimeoutError: `timeout` expired; the message says what the run waits for.
        CliError: the release does not exist, or the cluster is unreachable at the first poll, or later for
            UNREACHABLE_SECONDS.
        DataError: a file of the run is damaged.
    """
    deadline = time.monotonic() + timeout
    run_id: str | None = None
    view: RunView | None = None
    lost: float | None = None
    stopped = False
    while True:
        try:
            view = poll()
        except UnreachableError as error:
            lost = time.monotonic() if lost is None else lost
            if view is None or time.monotonic() - lost > UNREACHABLE_SECONDS:
                raise
            report(f"{error}. Retrying.")
        except ReleaseNotFoundError as error:
            if view is not None:
                raise RunFailedError(f"the release was removed while waiting: {error}") from error
            raise
        else:
            lost = None
            if run_id is not None and view.run_id != run_id:
                report(f"run {run_id} was replaced by an upgrade; now following {view.run_id}")
            run_id = view.run_id
            show(view)
            stopped, was_stopped = view.state == "suspended", stopped
            if stopped and not was_stopped and view.training and not view.training.queue:
                report(
                    f"the training was stopped ({view.training.reason}): its Job is suspended. Resume it: "
                    f"{command_text('resume', *options)}. This command follows it when it continues; Ctrl-C ends only "
                    "this command"
                )
            if view.state == "complete":
                return view
            _check_not_failed(view, report, options)
            check_intact(view.damage, view.where)
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"the time-out of {duration(timeout)} expired; the run still waits for: "
                f"{describe_wait(view)}",
                f"follow it again with a larger --timeout: {command_text('wait', *options)}",
            )
        time.sleep(min(PAUSE_SECONDS, max(0.1, deadline - time.monotonic())))


def _check_not_failed(view: RunView, report: Report, options: Sequence[str]) -> None:
    if view.state == "failed":
        for damaged in view.damage.values():
            report(damaged)
        cause = view.cause or "no cause was recorded"
        logs = command_text("logs", *options)
        fix = "" if "Fix:" in cause else f"find the reason in the log of rank 0: {logs}"
        raise RunFailedError(f"the run failed: {cause}", fix)
    if view.state == "missing":
        raise RunFailedError(f"there is no run to wait for: {'; '.join(view.notes)}")


def follow_run(session: Session, timeout: float, *, to_stderr: bool = False) -> RunView:
    """Show a run until it is complete; return its last view, with the score.

    If stdout is a terminal, the run is shown as a screen that is redrawn, else as lines. With `to_stderr` it is always
    shown as lines on stderr, because stdout is for the JSON of the command. Raises the errors of `poll_until_over`.
    """
    out, options = console(), session.options()
    drawn = out.is_terminal and not to_stderr
    print_to = report if to_stderr else print_line
    log_lines, is_cause_shown = LOG_LINES if drawn else 0, False
    with open_screen(out if drawn else None) as draw:
        lines = LinePrinter(print_to)

        def show(view: RunView) -> None:
            nonlocal is_cause_shown
            is_cause_shown = drawn and view.state == "failed" and bool(view.cause)
            draw(status_screen(view, options)) if drawn else lines.print_view(view)

        def report_between(text: str) -> None:
            out.print(Text(text)) if drawn else report(text)

        try:
            view = poll_until_over(
                lambda: session.read_view(log_lines), show, report_between, timeout, options
            )
        except RunFailedError as failed:
            if is_cause_shown:
                raise RunFailedError(
                    "the run failed", "correct the cause that is shown above, then start the training again"
                ) from failed
            raise
        if not drawn:  # the screen shows them
            for note in view.notes:
                print_to(note)
    check_intact(view.damage, view.where)
    return view


@contextlib.contextmanager
def open_screen(
    terminal: Console | None, transient: bool = False
) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that draws a screen on `terminal`, replacing the last one.

    If `terminal` is None, the function draws nothing. With `transient`, the last screen is removed after the block.
    """
    if terminal is None:
        yield lambda _: None
        return
    with Live(console=terminal, auto_refresh=False, transient=transient) as screen:
        yield lambda drawn: screen.update(drawn, refresh=True)


@contextlib.contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C or a signal ends the block, print the text of `describe` to stderr before the process exits."""
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            report(f"\n{describe()}")
        raise


def describe_following(options: Sequence[str]) -> str:
    """Return how to show, follow and stop a training that continues.

    `options` select its release in the suggested commands.
    """
    return (
        f"the training continues on the cluster. Show it: {command_text('status', *options)}; "
        f"follow it: {command_text('wait', *options)}; stop it: {command_text('stop', *options)} "
        "(`resume` continues it)"
    )
