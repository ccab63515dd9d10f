"""The settings of a run as its run.json records them, for the report and for comparisons of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.settings import SCRIPT_RUNTIMES

DIGEST_CHARACTERS = 12
"""So many characters of a digest are shown: it is only compared."""


def with_options(run: Mapping[str, Any], program: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of run.json with the key `options`: all options of the program, from program.json if it exists."""
    return {**run, "options": dict((program or {}).get("options") or {})}


def settings_of_run(run: Mapping[str, Any], passes: int | None) -> dict[str, Any]:
    """Return the settings in which two runs may differ: name to show → value.

    `run` is the content of run.json, or the result of `with_options`; without the key `options`, only the options in
    args are returned. `passes` is the number of finished passes; None leaves it out.
    """
    kept = dict(run.get("fingerprint") or {})
    if kept.get("runtime") in SCRIPT_RUNTIMES:  # a script itself decides about these
        kept = {key: value for key, value in kept.items() if key not in ("mode", "portsNum")}
    for key in ("program", "dataDigest"):
        kept[key] = str(kept.get(key, ""))[:DIGEST_CHARACTERS]
    if run.get("config"):
        kept["program"] = f"{run['config']}, sha256 {kept['program']}"
    given = (argument.lstrip("-").partition("=") for argument in kept.pop("args", []))
    options = run.get("options") or {key.replace("-", "_"): value for key, _, value in given}
    best = {key: run[key] for key in ("keepBest", "patience") if key in run}
    settings = {**kept, **best, **{f"--{key}": value for key, value in options.items()}}
    return settings if passes is None else {**settings, "passes": passes}
