"""A run on the terminal, until it is over: a screen that is drawn anew, or lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.live import Live

from launcher.cli import render, waiting
from launcher.cli.options import say
from launcher.cli.session import Session
from launcher.cli.view import View


def to_stdout(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def to_the_end(session: Session, timeout: float, lines_to: Callable[[str], None] = to_stdout) -> View:
    """Shows the run until it is complete, its score with it, and returns the last view.

    `timeout`: seconds. `lines_to` gets the lines where there is no screen. Raises as `waiting.follow`.
    """
    with _shower(lines_to) as (show, say):
        view = waiting.follow(session.glance, show, say, timeout)
        if not view.score:  # a glance reads no file once the pods are gone
            view = session.look()
            show(view)
    return view


@contextmanager
def _shower(
    lines_to: Callable[[str], None],
) -> Iterator[tuple[Callable[[View], None], Callable[[str], None]]]:
    """(what shows a view, what says a sentence between two of them)."""
    out, _ = render.consoles()
    if lines_to is not to_stdout or not out.is_terminal:
        yield waiting.Teller(lines_to).tell, say
        return
    with Live(console=out, auto_refresh=False) as screen:
        yield lambda view: screen.update(render.screen(view), refresh=True), screen.console.print
