"""Lines that the commands of `local` print, each with the seconds since the command started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

_STARTED = time.monotonic()
terminal = Console(highlight=False, soft_wrap=True)


def _elapsed() -> str:
    return f"[dim]{time.monotonic() - _STARTED:6.1f} s[/dim]"


def info(text: str) -> None:
    """Print one line of information."""
    terminal.print(f"{_elapsed()}    {escape(text)}")


def success(text: str) -> None:
    """Print one line about something that was completed."""
    terminal.print(f"{_elapsed()}  [green]✓[/green] {escape(text)}")


def error(text: str) -> None:
    """Print the reason why the command fails."""
    terminal.print(f"{_elapsed()}  [red]✗[/red] {escape(text)}")


@contextlib.contextmanager
def timed_step(text: str) -> Iterator[None]:
    """Print `text` before the block. If the block succeeds, print `text` again with the duration of the block."""
    info(f"{text} …")
    started = time.monotonic()
    yield
    success(f"{text} ({time.monotonic() - started:.1f} s)")
