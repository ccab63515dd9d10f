"""Output on the terminal: messages, suggested commands, questions, tables of passes, curves of one line, and JSON.

Texts may come from the storage or the cluster, where others write. So everything is printed with its control
characters escaped (`escape_controls`): a name or a log line must not move the cursor, hide text or set the title. Only
`print_blocks` writes logs unchanged if stdout is a file or pipe.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from launcher.reporting import text_formats
from launcher.reporting.saved_runs import Passes, score_columns

INSTALLED = "paddle-training"  # the name of the command after `pip install`
_BLOCKS = "▁▂▃▄▅▆▇█"
_PIPE_WIDTH = 400  # width of a line that is not printed on a terminal
# C0 without tab and newline, C1, marks and overrides of the direction of text, line separators, lone surrogates.
_CONTROLS = re.compile(
    "[\0-\b\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_reserved: list[int] = []
"""After `reserve_stdout`: a copy of file descriptor 1."""


def escape_controls(text: str) -> str:
    """Return the text with its control characters as escapes of JSON, such as `\\u001b`; tabs and newlines stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def reserve_stdout() -> None:
    """Leave stdout to `print_json`: all else that this process and its children print there goes to stderr.

    Programs of users, and libraries, print to stdout when they are imported, run, or exit. If a caller has replaced
    sys.stdout by another object, this function does nothing.
    """
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        sys.stdout.flush()
        _reserved.append(os.dup(1))
        os.dup2(2, 1)
        sys.stdout = sys.stderr


def confirm(question: str) -> bool:
    """Ask a yes-or-no question on stderr; return the answer, or False without asking if stdin is not a terminal."""
    try:
        return sys.stdin.isatty() and typer.confirm(escape_controls(question), err=True)
    except typer.Abort:  # Ctrl-D
        return False


def report(text: str) -> None:
    """Print a progress message to stderr; stdout is for the results of a command."""
    print(escape_controls(text), file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """Print one line to stdout and flush it."""
    print(escape_controls(text), flush=True)


def print_blocks(blocks: Iterable[bytes]) -> None:
    """Write the bytes of a log or file to stdout.

    If stdout is a terminal, the bytes are decoded and control characters are escaped. Into a file or pipe the bytes are
    written unchanged.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=True)  # \r, of progress bars, becomes \n
    for block in blocks:
        if sys.stdout.isatty():
            print(escape_controls(decoder.decode(block)), end="", flush=True)
        else:
            sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
    print(escape_controls(decoder.decode(b"", final=True)), end="", flush=True)


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


class _EscapingConsole(Console):
    """A console that escapes control characters in what it renders, but not its own codes for colours and cursor."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def console() -> Console:
    """Return a console for stdout. Lines are not wrapped unless they go to a terminal: scripts read them."""
    out = _EscapingConsole(highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
        out.soft_wrap = True
    return out


def print_json(value: Any) -> None:
    """Print a value as JSON on stdout, with null for NaN and infinity."""
    text = json.dumps(_replace_non_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    if not _reserved:
        print_line(text)
        return
    with os.fdopen(_reserved[0], "wb", closefd=False) as out:
        out.write(f"{escape_controls(text)}\n".encode())


def _replace_non_finite(value: Any) -> Any:
    """Return `value` with null in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _replace_non_finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def program_name() -> str:
    """Return how this command line was started: `paddle-training` or `python -m launcher`."""
    return INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "python -m launcher"


def command_text(*arguments: str) -> str:
    """Return a command of this command line with these arguments, quoted for a shell."""
    return f"{program_name()} {shlex.join(arguments)}"


def curve_table(runs: Mapping[str, Passes]) -> RenderableType:
    """Return a table with a row for each score of each run: first value, curve, last value."""
    rows = []
    for key in score_columns(*runs.values()):
        for name, passes in runs.items():
            values = [float(row[key]) for row in passes if key in row]
            if values:
                title = key if len(runs) == 1 else f"{key} of {name}"
                first, last = text_formats.number(values[0]), text_formats.number(values[-1])
                rows.append((title, first, spark_line(values), last))
    count = max(map(len, runs.values()), default=0)
    return text_table((f"{count} pass{'' if count == 1 else 'es'}", ">first", "curve", ">last"), rows)
