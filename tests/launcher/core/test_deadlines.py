"""How long each state of a trainer may last."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.gang.deadlines import BYTES_PER_SECOND, FLOOR, deadline

GB = 1_000_000_000


def seconds(state: str, **changes: Any) -> float:
    known: dict[str, Any] = {"stall": 600.0, "leave": 60.0, "longest": {}, "spent": 0.0, "size": 0.0}
    return deadline(state, **{**known, **changes})[0]


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        ("training", {"longest": {"training": 9999.0}}, 600),
        ("done", {}, 60),
        ("saving", {"longest": {"saving": 3.0}}, FLOOR),
        ("saving", {"longest": {"saving": 100.0}}, 500),
        ("saving", {"longest": {"saving": 3.0}, "stall": 10.0}, FLOOR),
        ("saving", {"longest": {"saving": 20.0}, "size": 5.0 * GB}, FLOOR + 500),
        ("meeting", {"longest": {"meeting": 2.0}, "size": 40.0 * GB}, FLOOR + 40 * GB / BYTES_PER_SECOND),
        ("saving", {"spent": 1200.0}, 1200),
        ("saving", {"spent": 99999.0}, 6000),
        ("saving", {"longest": {"loading": 300.0}}, 1500),
        ("starting", {}, 600),
        ("starting", {"stall": 10.0}, FLOOR),
        ("loading", {"size": 400.0 * GB}, FLOOR + 400 * GB / BYTES_PER_SECOND),
        ("loading", {"size": None}, 6000),
        ("waiting", {"longest": {"waiting": 2.0}}, 6000),
    ],
)
def test_a_state_has_a_deadline_by_what_was_measured(
    state: str, changes: dict[str, Any], expected: float
) -> None:
    assert seconds(state, **changes) == expected
