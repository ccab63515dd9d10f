"""Parse the content of metrics.csv, find the best pass by a test metric, and decide when to stop early.

metrics.csv has one row per pass (epoch) and rank (training pod), with speed, training loss and test scores.
Passes, ranks and attempts (starts of the run) count from 0. The functions read and write no files.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

DEFAULT_PASSES = 10
"""Passes of a training without `training.passes`; the chart's values.yaml has the same number."""
TEST = "test_"
"""Prefix of the columns with scores on the test set; only rank 0's rows have them."""
COLUMNS = ("pass", "rank", "attempt", "samples", "seconds", "samples_per_second", "train_loss")
"""The first columns of metrics.csv; after them there is one column per test metric."""
HIGHER = ("acc", "auc", "precision", "recall", "f1", "ndcg", "hit", "r2")
"""A higher value is better for metrics whose name contains one of these words, a lower one for all others."""
Scores = Sequence[tuple[int, float]]
"""A test metric's values after each pass: (number of finished passes, value), sorted by pass."""


@dataclass(frozen=True)
class MetricsRow:
    """One row of metrics.csv."""

    number: int
    """The pass, counted from 0."""
    rank: int
    attempt: int
    samples: int
    seconds: float
    samples_per_second: float
    train_loss: float
    """Mean training loss over the samples that this rank trained on in this pass."""
    tests: dict[str, float] = field(default_factory=dict)
    """Test scores by metric name (without the prefix test_); empty for ranks other than 0."""


def parse_metrics(text: str) -> list[MetricsRow]:
    """Return the rows in the text of a metrics.csv, sorted by pass and rank.

    If a pass was trained in several attempts, only the rows of the newest of these attempts are returned. In an elastic
    run it may have fewer ranks than an earlier one, and they have trained the samples of all. Incomplete and damaged
    lines are skipped.
    """
    latest: dict[int, dict[int, MetricsRow]] = {}
    newest: dict[int, int] = {}
    header, *lines = split_fields(text)
    if set(COLUMNS) - set(header):  # a damaged header: the first columns are always the same
        header = [*COLUMNS, *(name for name in header if name.startswith(TEST))]
    for line in lines:
        row = _parse_row(dict(zip(header, line, strict=False)))
        if row is None:
            continue
        if row.attempt > newest.get(row.number, -1):
            newest[row.number], latest[row.number] = row.attempt, {}
        if row.attempt == newest[row.number]:
            latest[row.number][row.rank] = row
    return [latest[number][rank] for number in sorted(latest) for rank in sorted(latest[number])]


def find_damage(content: bytes) -> str:
    """Return a description of the first damage in the content of a metrics.csv; empty for an intact file.

    `parse_metrics` skips damaged lines without an error.
    """
    try:
        header, *lines = split_fields(content.decode())
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 ({error.reason})"
    if set(COLUMNS) - set(header):
        return "its first line does not have the names of the columns"
    for number, fields in enumerate(lines, 2):
        if len(fields) != len(header) or not is_row(fields):
            return f"line {number} is incomplete or damaged"
    return "" if content.endswith(b"\n") else "its last line is incomplete"


def split_fields(text: str) -> list[list[str]]:
    """Return one list of fields for each line in the text of a metrics.csv; the first line is the header.

    Each line is parsed alone, so that a damaged quotation mark does not swallow the lines after it. The list of an
    empty line, and of a line that is not valid CSV, is empty; nothing is raised.
    """
    return [_split_line(line) for line in text.removesuffix("\n").split("\n")]


def _split_line(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def is_row(fields: Sequence[str]) -> bool:
    """Return whether the fields of a line of metrics.csv are a complete row.

    A complete row has a number in each of COLUMNS; the fields of test scores are numbers or empty.
    """
    values = [_parse_float(field) for field in fields if field]
    return None not in values and _parse_row(dict(zip(COLUMNS, fields, strict=False))) is not None


def _parse_row(line: Mapping[str, str]) -> MetricsRow | None:
    scores = {key.removeprefix(TEST): _parse_float(line[key]) for key in line if key.startswith(TEST)}
    try:
        return MetricsRow(
            number=int(line["pass"]),
            rank=int(line["rank"]),
            attempt=int(line["attempt"]),
            samples=int(line["samples"]),
            seconds=float(line["seconds"]),
            samples_per_second=float(line["samples_per_second"]),
            train_loss=float(line["train_loss"]),
            tests={name: score for name, score in scores.items() if score is not None},
        )
    except (KeyError, ValueError):
        return None


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def mean_loss(rows: Sequence[MetricsRow]) -> float:
    """Return the mean training loss of the rows, each weighted by its number of samples; NaN for no samples."""
    samples = sum(row.samples for row in rows)
    return sum(row.train_loss * row.samples for row in rows) / samples if samples else math.nan


def pass_table(rows: Iterable[MetricsRow]) -> list[dict[str, Any]]:
    """Combine the rows of all ranks into one dict per pass, sorted by pass.

    Keys of each dict: pass (from 0), ranks (how many), samples, seconds (of the slowest rank),
    samples_per_second (sum of the ranks), train_loss (`mean_loss`), and each test metric's column, such as
    test_auc.
    """
    table = []
    number_of = attrgetter("number")
    for number, found in itertools.groupby(sorted(rows, key=number_of), number_of):
        group = list(found)
        tests = {TEST + key: value for row in group for key, value in row.tests.items()}
        table.append(
            {
                "pass": number,
                "ranks": len(group),
                "samples": sum(row.samples for row in group),
                "seconds": max(row.seconds for row in group),
                "samples_per_second": sum(row.samples_per_second for row in group),
                "train_loss": mean_loss(group),
                **tests,
            }
        )
    return table


def restart_marks(rows: Iterable[MetricsRow]) -> list[tuple[float, str]]:
    """Return (position, label) of each restart between two passes, for a plot.

    The position is a number on an axis on which passes count from 1, such as 3.5; a label is for example `attempt 2`.
    """
    attempts: dict[int, int] = {}
    for row in rows:
        attempts[row.number] = max(row.attempt, attempts.get(row.number, 0))
    return [
        ((before + after) / 2 + 1, f"attempt {attempt}")
        for (before, earlier), (after, attempt) in itertools.pairwise(sorted(attempts.items()))
        if attempt != earlier
    ]


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of this metric is better; the words in HIGHER decide."""
    return any(word in metric.lower() for word in HIGHER)


def rank_passes(metric: str, scores: Scores) -> list[int]:
    """Return the passes with a finite score, sorted from the best score to the worst.

    A pass is given by the first number of its pair in `scores`. Of passes with equal scores the earliest comes first.
    """
    sign = -1 if higher_is_better(metric) else 1
    return [at for _, at in sorted((sign * value, at) for at, value in scores if math.isfinite(value))]


def stops_early(metric: str, scores: Scores, patience: int) -> bool:
    """Return whether training should end because the last `patience` passes did not improve the metric.

    The result is always False if `patience` is 0.
    """
    best = max(rank_passes(metric, scores)[:1], default=0)
    return 0 < patience <= sum(at > best for at, _ in scores)


def best_pass(run: Mapping[str, Any], passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pass of a run with the best score of the metric in `training.keepBest`.

    After a complete run this is the pass whose model was exported.

    Args:
        run: content of run.json.
        passes: `pass_table` of the run.

    Returns:
        A dict with the keys metric, pass (from 0), value (the score) and endedEarly (whether early stopping ended the
        run). The dict is empty if `training.keepBest` is not set, or if there is no score yet.
    """
    metric = str(run.get("keepBest") or "")
    values = {row["pass"]: row[TEST + metric] for row in passes if TEST + metric in row}
    best = rank_passes(metric, list(values.items()))
    if not best:
        return {}
    complete = run.get("state") == "complete"
    of_model = run.get("modelPass") if complete else None
    number = best[0] if of_model not in values else of_model
    ended = complete and max(values) + 1 < int(run.get("passes") or 0)
    return {"metric": metric, "pass": number, "value": values[number], "endedEarly": ended}
