"""Print the result lines of benchmarks."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def print_ratio(
    name: str,
    ours: float,
    theirs: float,
    unit: str = "s",
    *,
    limit: float | None = None,
    most: float | None = None,
) -> bool:
    """Print `name ratio=… ours=… theirs=…` and, if given, the limit.

    Args:
        name: Name of the result.
        ours: The value of this project.
        theirs: The value that `ours` is compared with: of another program, or a budget.
        unit: Unit of both.
        limit: Upper limit of `ours`, in `unit`.
        most: Upper limit of the ratio.

    Returns:
        Whether the limit is kept.
    """
    ratio = ours / theirs
    kept = (limit is None or ours <= limit) and (most is None or ratio <= most)
    text = f"{name} ratio={ratio:.3f} ours={ours:.2f}{unit} theirs={theirs:.2f}{unit}"
    if limit is not None or most is not None:
        shown = f"{limit:g}{unit}" if limit is not None else f"{most:g}"
        text += f" limit={shown} {'ok' if kept else 'TOO MUCH'}"
    print(text, flush=True)
    return kept


def median_of_part(parts: Sequence[dict[str, float]], key: str) -> float:
    """Return the median of the part `key` over several measurements, each of which maps part to seconds."""
    return statistics.median(p[key] for p in parts)


def print_median_parts(parts: Sequence[dict[str, float]]) -> None:
    """Print the median of each part of a duration in one line."""
    shown = " ".join(f"{key}={median_of_part(parts, key):.2f}" for key in parts[0])
    print(f"# medians of {len(parts)}, seconds: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
