"""Follow a run until it is over, on a screen or as lines: for `wait`, `run`, `sweep` and `resume --follow`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from launcher.cli.cluster.cluster_api import UnreachableError
from launcher.cli.cluster.releases import ReleaseNotFoundError
from launcher.cli.errors import CliError, RunFailedError, WaitTimeoutError
from launcher.cli.storage.run_files import check_intact
from launcher.cli.terminal import command_text, console, print_line, report
from launcher.cli.views.run_view import RunView
from launcher.cli.views.status_text import describe_wait, restart_text, status_line, status_screen
from launcher.reporting import text_formats

LINE_SECONDS = 5.0  # changed figures are printed at most once in this time; a new state or pass immediately
UNREACHABLE_SECONDS = 120.0  # an API server that is being replaced is unreachable for less
PAUSE_SECONDS = 2.0  # between two polls
Report = Callable[[str], None]


class ViewSource(Protocol):
    """Reads the present state of a run: a session on a cluster or on a folder."""

    def options(self) -> list[str]:
        """Return the options that select the run in a command, without those that are defaults."""
        ...

    def poll_view(self, log: bool = False) -> RunView:
        """Return the run's present state; no reader pod is created if the state of the Job is enough."""
        ...

    def read_view(self, log: bool = False) -> RunView:
        """Return the run's present state, including what only the files on the storage contain, such as the score."""
        ...


@dataclass
class LinePrinter:
    """Prints the views of a run as lines, each when enough has changed since the last one."""

    report: Report
    _key: tuple[object, ...] = ()
    _line: str = ""
    _printed_at: float = float("-inf")
    _restarts: tuple[str | None, int] = (None, 0)
    """The run that is followed, and how many of its restarts were seen."""

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
                self.report(restart_text(restart, count))
            self._restarts = view.run_id, max(known, len(progress.restarts))
        key = (
            view.state,
            view.run_id,
            progress.number if progress else None,
            progress.attempt if progress else None,
            bool(view.score),
        )
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

    `show` receives each view, `report` messages such as that the cluster is unreachable. `timeout` is in seconds,
    `options` select the run in suggested commands.

    Raises:
        RunFailedError: the run failed, or its release was removed; the message has the cause.
        WaitTimeoutError: `timeout` expired; the message says what the run waits for.
        CliError: the release does not exist, or the cluster is unreachable for UNREACHABLE_SECONDS.
        DataError: a file is damaged, so that the state of the run is unknown.
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
            _check_not_failed(view, options)
            check_intact(view.damage, view.where)
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"the time-out of {text_formats.duration(timeout)} expired; the run still waits for: "
                f"{describe_wait(view)}",
                f"follow it again with a larger --timeout: {command_text('wait', *options)}",
            )
        time.sleep(min(PAUSE_SECONDS, max(0.1, deadline - time.monotonic())))


def _check_not_failed(view: RunView, options: Sequence[str]) -> None:
    if view.state == "failed":
        cause = view.cause or "no cause was recorded"
        logs = command_text("logs", *options)
        fix = "" if "Fix:" in cause else f"find the reason in the log of rank 0: {logs}"
        raise RunFailedError(f"the run failed: {cause}", fix)
    if view.state == "missing":
        raise RunFailedError(f"there is no run to wait for: {'; '.join(view.notes)}")


def follow_run(session: ViewSource, timeout: float, *, to_stderr: bool = False) -> RunView:
    """Show a run until it is complete; return its last view, with the score. Raises as `poll_until_over`.

    The run is shown as a screen that is redrawn if stdout is a terminal, else as lines. With `to_stderr`, which
    leaves stdout to the JSON of the command, it is shown as lines on stderr.
    """
    out, options = console(), session.options()
    drawn = out.is_terminal and not to_stderr
    print_to = report if to_stderr else print_line
    with open_screen(out if drawn else None) as draw:
        lines = LinePrinter(print_to)

        def show(view: RunView) -> None:
            draw(status_screen(view, options)) if drawn else lines.print_view(view)

        def report_between(text: str) -> None:
            out.print(Text(text)) if drawn else report(text)

        try:
            view = poll_until_over(
                lambda: session.poll_view(log=drawn), show, report_between, timeout, options
            )
        except RunFailedError as failed:
            try:
                view = session.read_view()  # `poll_view` reads no file once the pods are gone
            except CliError:
                raise failed from None
            for damaged in view.damage.values():
                report(damaged)
            show(view)
            if drawn and view.cause:
                raise RunFailedError(
                    "the run failed",
                    "correct the cause that is shown above, then start the training again",
                ) from failed
            _check_not_failed(view, options)  # with the cause from the files
            raise
        if not view.score:
            view = session.read_view()
            show(view)
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

    If `terminal` is None, the function draws nothing. `transient` removes the last screen after the block.
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
