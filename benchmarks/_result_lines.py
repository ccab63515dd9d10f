"""Print the result lines of benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Parts = dict[str, float]
"""Consecutive parts of a duration → seconds, with their sum as `total`."""


def print_ratio(
    name: str,
    ours: float,
    theirs: float,
    unit: str = "s",
    *,
    limit: float | None = None,
    most: float | None = None,
    least: float | None = None,
    digits: int = 2,
) -> bool:
    """Print `name ratio=… ours=… theirs=…` and, if there is one, the limit; return whether it is kept.

    Args:
        name: Name of the result.
        ours: The value of this project.
        theirs: The value that `ours` is compared with: of another program, or a budget.
        unit: Unit of both.
        limit: Upper limit of `ours`.
        most: Upper limit of the ratio.
        least: Lower limit of the ratio.
        digits: Decimals of both values.
    """
    ratio = ours / theirs
    text = f"{name} ratio={ratio:.3f} ours={ours:.{digits}f}{unit} theirs={theirs:.{digits}f}{unit}"
    too_much = (limit is not None and ours > limit) or (most is not None and ratio > most)
    too_little = least is not None and ratio < least
    if limit is not None:
        text += f" limit={limit:g}{unit}"
    elif most is not None or least is not None:
        text += f" most={most:g}" if most is not None else f" least={least:g}"
    if (limit, most, least) != (None, None, None):
        text += " TOO MUCH" if too_much else " TOO LITTLE" if too_little else " ok"
    print(text, flush=True)
    return not (too_much or too_little)


def median_of_part(found: Sequence[Parts], key: str) -> float:
    """Return the median seconds of the part `key` over several measurements."""
    return statistics.median(parts[key] for parts in found)


def print_parts(name: str, found: Sequence[Parts], theirs: float, limit: float | None = None) -> bool:
    """Print the result line of the median total, then the median of each part; return whether `limit` is kept."""
    kept = print_ratio(name, median_of_part(found, "total"), theirs, limit=limit)
    print_median_parts(found)
    return kept


def print_median_parts(found: Sequence[Parts]) -> None:
    """Print the median of each part in one line."""
    shown = " ".join(f"{key}={median_of_part(found, key):.2f}" for key in found[0])
    print(f"# medians of {len(found)}, seconds: {shown}", flush=True)
