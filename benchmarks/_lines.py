"""How a measurement says what it found, and what it was measured on."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def say(
    name: str,
    ours: float,
    theirs: float,
    unit: str = "s",
    *,
    limit: float | None = None,
    most: float | None = None,
) -> bool:
    """Prints `name ratio=… ours=… theirs=…` with `limit` of ours, in its unit, or `most` of the ratio.

    Returns whether it is kept.
    """
    ratio = ours / theirs
    kept = (limit is None or ours <= limit) and (most is None or ratio <= most)
    text = f"{name} ratio={ratio:.3f} ours={ours:.2f}{unit} theirs={theirs:.2f}{unit}"
    if limit is not None or most is not None:
        shown = f"{limit:g}{unit}" if limit is not None else f"{most:g}"
        text += f" limit={shown} {'ok' if kept else 'TOO MUCH'}"
    print(text, flush=True)
    return kept


def median(parts: Sequence[dict[str, float]], key: str) -> float:
    """Of one part of several times."""
    return statistics.median(p[key] for p in parts)


def say_parts(parts: Sequence[dict[str, float]]) -> None:
    """The median of each part of a time, in a line of its own."""
    shown = " ".join(f"{key}={median(parts, key):.2f}" for key in parts[0])
    print(f"# medians of {len(parts)}, seconds: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
