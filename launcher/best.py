"""The best pass of a run by a test metric, and when training stops early. Pure.

`scores` are (finished passes, value of the metric) in the order of the passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

HIGHER = ("acc", "auc", "precision", "recall", "f1", "ndcg", "hit", "r2")
"""Of a metric whose name contains one of these, a higher value is better; of any other, a lower one."""
Scores = Sequence[tuple[int, float]]


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of the metric is better, by its name."""
    return any(word in metric.lower() for word in HIGHER)


def ranked(metric: str, scores: Scores) -> list[int]:
    """Return the passes with a finite score, the best first; of equal ones the earliest."""
    sign = -1 if higher_is_better(metric) else 1
    return [at for _, at in sorted((sign * value, at) for at, value in scores if math.isfinite(value))]


def ends_early(metric: str, scores: Scores, patience: int) -> bool:
    """Return whether `patience` passes in a row did not improve on the best one; never with 0."""
    best = max(ranked(metric, scores)[:1], default=0)
    return 0 < patience <= sum(at > best for at, _ in scores)


def of_run(run: Mapping[str, Any], passes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return {"metric", "pass", "value", "endedEarly"} of a run with `training.keepBest`; else {}.

    Args:
        run: run.json. Of a complete run it says which pass the model is of.
        passes: `curve.pass_table` of the run; passes count from 0, as in the answer.
    """
    metric = str(run.get("keepBest") or "")
    values = {row["pass"]: row[f"test_{metric}"] for row in passes if f"test_{metric}" in row}
    best = ranked(metric, list(values.items()))
    if not best:
        return {}
    complete = run.get("state") == "complete"
    of_model = run.get("modelPass") if complete else None
    number = best[0] if of_model not in values else of_model
    ended = complete and max(values) + 1 < int(run.get("passes") or 0)
    return {"metric": metric, "pass": number, "value": values[number], "endedEarly": ended}
