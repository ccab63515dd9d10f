"""Tests of the choice of the best pass and of early stopping."""

from __future__ import annotations

from math import inf, nan

import pytest

from launcher import metrics
from launcher.reporting import text_formats

ERRORS = [(1, 0.5), (2, 0.3), (3, 0.3), (4, nan), (5, 0.4)]


@pytest.mark.parametrize(
    ("metric", "scores", "expected"),
    [
        ("error", ERRORS, [2, 3, 5, 1]),
        ("test_AUC", [(3, 0.7), (4, 0.9), (5, inf)], [4, 3]),
        ("loss", [(1, nan)], []),
        ("loss", [], []),
    ],
)
def test_rank_passes_puts_the_best_score_first_and_skips_scores_that_are_not_finite(
    metric, scores, expected
) -> None:
    assert metrics.rank_passes(metric, scores) == expected


@pytest.mark.parametrize(
    ("scores", "patience", "ended"),
    [
        (ERRORS, 0, False),
        (ERRORS, 3, True),
        (ERRORS, 4, False),
        (ERRORS[:2], 1, False),
        ([(4, nan), (5, nan)], 2, True),
        ([(4, nan), (5, nan)], 3, False),
        ([], 1, False),
    ],
)
def test_stops_early_after_as_many_passes_without_a_better_score_as_patience_allows(
    scores, patience, ended
) -> None:
    assert metrics.stops_early("error", scores, patience) is ended


PASSES = [{"pass": n, "test_error": value} for n, value in enumerate((0.5, 0.3, 0.4))]


@pytest.mark.parametrize(
    ("run", "number", "ended"),
    [
        ({"state": "training", "passes": 9}, 1, False),
        ({"state": "complete", "passes": 9, "modelPass": 1}, 1, True),
        ({"state": "complete", "passes": 3, "modelPass": 2}, 2, False),
        ({"state": "training", "passes": 9, "modelPass": 2}, 1, False),
    ],
)
def test_best_pass_is_the_models_pass_of_a_complete_run_else_the_best_so_far(run, number, ended) -> None:
    found = metrics.best_pass({"keepBest": "error", **run}, PASSES)
    value = PASSES[number]["test_error"]
    assert found == {"metric": "error", "pass": number, "value": value, "endedEarly": ended}
    assert (
        text_formats.best_pass(found)
        == f"best error {value:.4f} after pass {number + 1}" + ", stopped early" * ended
    )


def test_best_pass_is_empty_without_keep_best() -> None:
    assert metrics.best_pass({"state": "complete", "passes": 9}, PASSES) == {}
    assert text_formats.best_pass({}) == ""
    assert metrics.best_pass({"keepBest": "auc"}, PASSES) == {}
