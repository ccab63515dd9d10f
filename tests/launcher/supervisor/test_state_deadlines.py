"""Tests of the deadlines of a trainer's states."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.supervisor.state_deadlines import BYTES_PER_SECOND, LEAST_SECONDS, find_state_deadline

GB = 1_000_000_000


def seconds(state: str, **changes: Any) -> float:
    known: dict[str, Any] = {
        "progress_deadline": 600.0,
        "exit_deadline": 60.0,
        "longest_stays": {},
        "before": 0.0,
        "size": 0.0,
    }
    return find_state_deadline(state, **{**known, **changes})[0]


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        ("training", {"longest_stays": {"training": 9999.0}}, 600),
        ("done", {}, 60),
        ("saving", {"longest_stays": {"saving": 3.0}}, LEAST_SECONDS),
        ("saving", {"longest_stays": {"saving": 100.0}}, 500),
        ("saving", {"longest_stays": {"saving": 3.0}, "progress_deadline": 10.0}, LEAST_SECONDS),
        ("saving", {"longest_stays": {"saving": 20.0}, "size": 5.0 * GB}, LEAST_SECONDS + 500),
        (
            "joining",
            {"longest_stays": {"joining": 2.0}, "size": 40.0 * GB},
            LEAST_SECONDS + 40 * GB / BYTES_PER_SECOND,
        ),
        ("saving", {"before": 1200.0}, 1200),
        ("saving", {"before": 99999.0}, 6000),
        ("saving", {"longest_stays": {"loading": 300.0}}, 1500),
        ("starting", {}, 600),
        ("starting", {"progress_deadline": 10.0}, LEAST_SECONDS),
        ("loading", {"size": 400.0 * GB}, LEAST_SECONDS + 400 * GB / BYTES_PER_SECOND),
        ("loading", {"size": None}, 6000),
        ("waiting", {"longest_stays": {"waiting": 2.0}}, 6000),
    ],
)
def test_the_deadline_of_a_state_follows_from_earlier_stays_and_sizes(
    state: str, changes: dict[str, Any], expected: float
) -> None:
    assert seconds(state, **changes) == expected
