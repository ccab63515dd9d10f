"""What a person sees: one line a step, with the time since the command began."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

_BEGAN = time.monotonic()
console = Console(highlight=False, soft_wrap=True)


def _clock() -> str:
    return f"[dim]{time.monotonic() - _BEGAN:6.1f} s[/dim]"


def note(text: str) -> None:
    """Print one line under the clock."""
    console.print(f"{_clock()}    {escape(text)}")


def done(text: str) -> None:
    """Print one line that says that something was finished."""
    console.print(f"{_clock()}  [green]✓[/green] {escape(text)}")


def error(text: str) -> None:
    """Print the reason why the command ends."""
    console.print(f"{_clock()}  [red]✗[/red] {escape(text)}")


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text`, and say how long it took when the block ends well."""
    note(f"{text} …")
    began = time.monotonic()
    yield
    done(f"{text} ({time.monotonic() - began:.1f} s)")
