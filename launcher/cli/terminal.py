"""Output on the terminal: messages, questions, tables, curves of one line, and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"
_PIPE_WIDTH = 400  # of a line that is not printed on a terminal


def confirm(question: str) -> bool:
    """Ask a yes-or-no question on stderr; return the answer, or False without asking if stdin is no terminal."""
    try:
        return sys.stdin.isatty() and typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-D
        return False


def report(text: str) -> None:
    """Print a progress message to stderr; stdout is for the results of a command."""
    print(text, file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """Print one line to stdout and flush it."""
    print(text, flush=True)


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[RenderableType]], title: str | None = None
) -> Table:
    """Return a table without borders; a column whose heading begins with '>' is right-aligned."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    return table


def spark_line(values: Sequence[float]) -> str:
    """Return a curve of one line: the lowest block is the lowest value, a space is NaN or infinity."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def console() -> Console:
    """Return a console for stdout. Lines are not wrapped unless they go to a terminal: scripts read them."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
        out.soft_wrap = True
    return out


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout, with null for NaN and infinity."""
    print(json.dumps(_replace_non_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _replace_non_finite(value: Any) -> Any:
    """Return `value` with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
