"""Durations, numbers, times and scores as text, for terminals and pages.

Imports only the standard library.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


def duration(seconds: float | None) -> str:
    """Return a duration such as 42 s, 3 min 20 s or 2 h 05 min; `-` for None."""
    if seconds is None:
        return "-"
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def number(value: float | None, digits: int = 4) -> str:
    """Return a loss or score with a fixed number of digits; `-` for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Return samples per second with thousands separators; `-` for None."""
    return "-" if value is None else f"{value:,.0f}"


def utc_time(seconds: float | None) -> str:
    """Return a Unix time as date and time in UTC, as in the pods' logs; `-` for None."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def scores(values: Mapping[str, Any]) -> str:
    """Return scores by metric as `error 0.1234, auc 0.8000`."""
    return ", ".join(
        f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )


def best_pass(best: Mapping[str, Any]) -> str:
    """Return `best`, a result of `launcher.metrics.best_pass`, as `best error 0.1234 after pass 2`; empty for {}."""
    if not best:
        return ""
    early = ", stopped early" if best["endedEarly"] else ""
    return f"best {best['metric']} {number(best['value'])} after pass {best['pass'] + 1}{early}"
