"""A run on the terminal, until it is over: a screen that is drawn anew, or lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from launcher.cli import render, waiting
from launcher.cli.options import say
from launcher.cli.problems import CliError, RunFailed
from launcher.cli.session import Session
from launcher.cli.view import View


def to_stdout(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def to_the_end(session: Session, timeout: float, lines_to: Callable[[str], None] = to_stdout) -> View:
    """Shows the run until it is complete, its score with it, and returns the last view.

    `timeout`: seconds. `lines_to` gets the lines where there is no screen. Raises as `waiting.follow`.
    """
    out, _ = render.consoles()
    drawn = lines_to is to_stdout and out.is_terminal
    with _shower(out if drawn else None, lines_to) as (show, say):
        try:
            view = waiting.follow(lambda: session.glance(log=drawn), show, say, timeout)
        except RunFailed as failed:
            with contextlib.suppress(CliError):
                view = session.look()  # a glance reads no file once the pods are gone
                show(view)
                if drawn and view.cause:
                    raise RunFailed("the run failed; its cause stands above") from failed
            raise
        if not view.score:
            view = session.look()
            show(view)
            waiting.ended(view)  # another release's run may have moved the output meanwhile
        if not drawn:  # a screen has them
            for note in view.notes:
                lines_to(note)
    return view


@contextlib.contextmanager
def _shower(
    terminal: Console | None, lines_to: Callable[[str], None]
) -> Iterator[tuple[Callable[[View], None], Callable[[str], None]]]:
    """(what shows a view, what says a sentence between two of them)."""
    if terminal is None:
        yield waiting.Teller(lines_to).tell, say
        return
    with Live(console=terminal, auto_refresh=False) as screen:
        yield (
            lambda view: screen.update(render.screen(view), refresh=True),
            lambda text: terminal.print(Text(text)),
        )
