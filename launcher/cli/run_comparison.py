"""How the runs of a job differ: what `runs` and `compare` print, and the dashboard shows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from launcher.cli.errors import UsageError
from launcher.cli.run_files import CURRENT, SavedRun, differing_settings, find_run
from launcher.reporting import text_formats


def run_rows(found: Sequence[SavedRun]) -> tuple[list[str], list[list[str]]]:
    """Return (columns, a row for each run), with a column for each setting that differs between the runs."""
    keys = [key for key in differing_settings(found) if key != "passes"]
    columns = ["run", "state", "started", ">duration", ">pod hours", ">passes", ">restarts", "score", *keys]
    rows = []
    for run in found:
        scores = (text_formats.scores(run.record.score), text_formats.best_pass(run.best))
        rows.append(
            [
                run.name + (" (current)" if run.folder == CURRENT else ""),
                run.state,
                text_formats.utc_time(run.record.started or None),
                text_formats.duration(run.seconds),
                "-" if run.pod_hours is None else f"{run.pod_hours:.2f}",
                str(len(run.passes)),
                str(len(run.record.restarts)),
                ", ".join(filter(None, scores)) or "-",
                *(str(run.settings.get(key, "-")) for key in keys),
            ]
        )
    return columns, rows


def choose_pair(found: Sequence[SavedRun], one: str, other: str | None) -> list[SavedRun]:
    """Return the two runs with these names; without `other`, `one` and the newest other run.

    Raises UsageError if there is no such run, or no second one.
    """
    first = find_run(found, one)
    if other is not None:
        return [first, find_run(found, other)]
    second = next((run for run in found if run is not first), None)
    if second is None:
        raise UsageError(
            f"the job has one run only, {first.name}; `compare` needs two",
            "train again with another setting: run PROGRAM --set KEY=VALUE",
        )
    return [first, second]


def setting_rows(pair: Sequence[SavedRun]) -> list[list[str]]:
    """Return a row for each setting that differs between two runs: its name and both values."""
    return [[key, *(str(run.settings.get(key, "-")) for run in pair)] for key in differing_settings(pair)]


def diff_programs(one: SavedRun, other: SavedRun) -> list[str]:
    """Return the lines of a unified diff of the two programs, or a line that their text is unknown."""
    if one.settings.get("program") == other.settings.get("program"):
        return []
    lines: list[str] = []
    for name in sorted({*one.program, *other.program} if one.program and other.program else ()):
        old, new = (run.program.get(name, "").splitlines() for run in (one, other))
        lines += difflib.unified_diff(old, new, f"{one.name}/{name}", f"{other.name}/{name}", lineterm="")
    return lines or ["the programs differ, but their text was not saved"]
