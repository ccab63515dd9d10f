"""Figures as people read them, in a terminal and on a page. Only the standard library: pods use it too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

DIGEST = 12  # characters of a digest that is only compared


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 42 s, 3 min 20 s, 2 h 05 min."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: float | None, digits: int = 4) -> str:
    """A loss or score, or - if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def rate(value: float | None) -> str:
    """Samples per second with thousands separators."""
    return "-" if value is None else f"{value:,.0f}"


def at_time(seconds: float | None) -> str:
    """A time of day as the pods' logs tell it, in UTC."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def scores(values: Mapping[str, Any]) -> str:
    """A run's score, as `error 0.1234, …`."""
    return ", ".join(
        f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )


def best(found: Mapping[str, Any]) -> str:
    """What `launcher.best.of_run` found, as `best error 0.1234 after pass 2, ended early`; empty for {}."""
    if not found:
        return ""
    early = ", ended early" if found["endedEarly"] else ""
    return f"best {found['metric']} {number(found['value'])} after pass {found['pass'] + 1}{early}"


def with_options(run: Mapping[str, Any], program: Mapping[str, Any] | None) -> dict[str, Any]:
    """run.json with all options of the program, defaults among them, if program.json has them."""
    return {**run, "options": dict((program or {}).get("options") or {})}


def settings(run: Mapping[str, Any], passes: int | None) -> dict[str, Any]:
    """What two runs may differ in, as run.json keeps it; with the number of passes unless that is None.

    `with_options` adds the program's defaults to it.
    """
    kept = dict(run.get("fingerprint") or {})
    for key in ("program", "dataDigest"):
        kept[key] = str(kept.get(key, ""))[:DIGEST]
    if run.get("config"):
        kept["program"] = f"{run['config']}, sha256 {kept['program']}"
    given = (argument.lstrip("-").partition("=") for argument in kept.pop("extraArgs", []))
    options = run.get("options") or {key.replace("-", "_"): value for key, _, value in given}
    best = {key: run[key] for key in ("keepBest", "patience") if key in run}
    told = {**kept, **best, **{f"--{key}": value for key, value in options.items()}}
    return told if passes is None else {**told, "passes": passes}
