"""How long a trainer may stay in one state (progress.json) before it counts as hung. Pure."""

from __future__ import annotations

from collections.abc import Mapping

FLOOR = 180.0
"""Seconds that every state but `training` and `done` gets. Longer than `Timings.storage`, so that the storage
probe reports a hung storage first."""
TIMES = 5
"""A state may take so many times its longest stay in this run."""
SLOW = 10
"""What was not measured yet may take so many times training.stallSeconds at most: 100 minutes by default."""
BYTES_PER_SECOND = 10e6
"""The least at which a checkpoint is written, or read and loaded."""
FIXES = {
    "training": "a batch that takes longer needs a larger training.stallSeconds",
    "saving": "see whether the storage of that rank's node answers",
    "writing": "see whether the storage of that rank's node answers",
    "loading": "see whether the storage and the pservers answer that rank's node",
    "meeting": "see whether that rank's node reaches the others (lost packets, a network policy)",
    "starting": "see whether that rank's node reaches the others (lost packets, a network policy)",
}


def deadline(
    state: str, *, stall: float, leave: float, longest: Mapping[str, float], spent: float, size: float | None
) -> tuple[float, str]:
    """Return (seconds that a trainer may stay in `state`, where that number comes from).

    Args:
        state: `state` of progress.json.
        stall: training.stallSeconds.
        leave: seconds for a trainer that is done to end.
        longest: state → its longest stay on this rank so far, in seconds; without `training`.
        spent: seconds of this attempt before this state: what a first save writes was trained in that time.
        size: bytes of the checkpoint that was loaded or saved last; None when they are unknown.
    """
    if state == "training":
        return stall, "training.stallSeconds"
    if state == "done":
        return leave, "for a trainer that is done"
    if state == "waiting":  # others train, or write the model; rank 0 sees when none does (`machine.decide`)
        return SLOW * stall, f"{SLOW} times training.stallSeconds"
    moved = 0.0 if size is None else size / BYTES_PER_SECOND
    least = FLOOR + moved
    if state in longest:
        seconds = max(least, TIMES * longest[state])
        return seconds, f"{TIMES} times its longest stay before, at least {least:.0f} s"
    known = float("inf") if size is None else max(spent, TIMES * max(longest.values(), default=0.0))
    first = max(stall, min(SLOW * stall, known))
    return max(first, least), "not measured in this run yet: by training.stallSeconds"
