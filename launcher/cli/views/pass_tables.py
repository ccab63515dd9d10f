"""The passes of one or more runs as text: a row for each pass, or a curve for each score.

`passes` are rows of `launcher.metrics.pass_table`, whose passes count from 0; users see them
counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from launcher.cli.terminal import spark_line, text_table
from launcher.reporting import text_formats

Passes = Sequence[Mapping[str, Any]]
_SPEED = {
    "samples": lambda value: f"{value:,}",
    "seconds": lambda value: f"{value:.1f}",
    "samples_per_second": text_formats.rate,
}


def score_columns(*runs: Passes) -> list[str]:
    """Return the keys of the training loss and of all scores that at least one pass of `runs` has."""
    scores = {key for passes in runs for row in passes for key in row if key.startswith("test_")}
    return ["train_loss", *sorted(scores)]


def pass_table(runs: Mapping[str, Passes]) -> RenderableType:
    """Return a table with a row for each pass: its loss and scores, and for a single run also its speed.

    `runs` are the passes by the run's name. The columns of several runs stand side by side, with that name.
    """
    single = len(runs) == 1
    keys = [*(_SPEED if single else ()), *score_columns(*runs.values())]
    columns = [">pass", *(f">{key}" if single else f">{key} {name}" for key in keys for name in runs)]
    rows = []
    for number in range(max(map(len, runs.values()), default=0)):
        cells = []
        for key in keys:
            for passes in runs.values():
                value = passes[number].get(key) if number < len(passes) else None
                cells.append(_SPEED.get(key, text_formats.number)(value))
        rows.append([str(number + 1), *cells])
    return text_table(columns, rows)


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
