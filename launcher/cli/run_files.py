"""Read the small files that describe a job and its runs from the shared storage, and choose and compare runs.

`runs`, `compare` and the dashboard use this module in addition to `launcher.reporting.saved_runs`.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher import metrics
from launcher.cli.errors import UsageError
from launcher.cli.storage import Storage, read_small_files
from launcher.errors import DataError
from launcher.reporting.saved_runs import (
    CURRENT,
    DATA_FAILED,
    EARLIER,
    JOB,
    MANIFEST,
    OUTPUT,
    Damage,
    FoundFiles,
    Passes,
    SavedRun,
    differing_settings,
    parse_runs,
    run_patterns,
)
from launcher.schema import DataFailure, ManifestFile, RunFile, StatusFile

STATUS = OUTPUT.status_json.as_posix()
AGAIN_SECONDS = 3.0
"""If status.json is damaged, all files are read again after this time, because rank 0 of a live run writes status.json
every 2 s."""


@dataclass(frozen=True)
class JobFiles:
    """The contents of the files that describe a job's data and a run; None for a file that is absent or damaged."""

    status: StatusFile | None = None
    run: RunFile | None = None
    manifest: ManifestFile | None = None
    data_failure: DataFailure | None = None
    passes: Passes = ()
    """One row for each pass, from metrics.csv (`launcher.metrics.pass_table`)."""
    damage: Damage = field(default_factory=dict)
    was_read: bool = True
    """Whether the files were read; if not, None does not mean that a file is absent."""
    problem: str = ""
    """Why the files cannot be read; empty if they were read, or if no pod could read them."""


def check_intact(damage: Mapping[str, str], where: str) -> None:
    """Raise DataError if a file is damaged. Most commands call this after they have shown what intact files contain.

    `damage` has a message for each damaged file. `where` is the job's folder or the release, for the error.
    """
    if damage:
        raise DataError(f"{where}: {' '.join(damage.values())}")


def read_job_files(storage: Storage, *, again: bool = True) -> JobFiles:
    """Read the files that describe the data and the current run of the storage's job.

    With `again`, wait AGAIN_SECONDS and read all files once more if status.json is damaged.
    """
    names = [path.as_posix() for path in (OUTPUT.run_json, OUTPUT.run_copy, OUTPUT.metrics_csv)]
    found = FoundFiles(read_small_files(storage, [STATUS, MANIFEST, DATA_FAILED, *names]))
    status = found.read(StatusFile, OUTPUT.status_json)
    if again and found.damage:
        time.sleep(AGAIN_SECONDS)
        return read_job_files(storage, again=False)
    return JobFiles(
        status=status,
        run=found.run(OUTPUT),
        manifest=found.read(ManifestFile, JOB.manifest),
        data_failure=found.read(DataFailure, JOB.data_failed),
        passes=metrics.pass_table(found.metrics(OUTPUT)),
        damage=found.damage,
    )


def read_runs(storage: Storage) -> list[SavedRun]:
    """Return the runs of the job: the current one first, then the others, newest first."""
    return parse_runs(read_small_files(storage, run_patterns(CURRENT, EARLIER)))


def find_run(runs: Sequence[SavedRun], name: str) -> SavedRun:
    """Return the run with the name `name`, or the only run whose name begins with `name`.

    Raises UsageError if there is no such run, or more than one.
    """
    matching = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(run.name for run in runs) or "(the job has none yet)"
    problem = "matches several runs" if matching else "is not a run of this job"
    raise UsageError(f"the name {name!r} {problem}", f"choose one of: {listed}")


def best_run(runs: Sequence[SavedRun]) -> SavedRun | None:
    """Return the run with the best score; None if no run has a score.

    The runs are compared by one score: the first score of the newest run that has any.
    """
    name = next((next(iter(run.record.score)) for run in runs if run.record.score), "")
    pick = max if metrics.higher_is_better(name) else min
    having = [run for run in runs if isinstance(run.record.score.get(name), int | float)]
    return pick(having, key=lambda run: run.record.score[name], default=None)


def choose_pair(found: Sequence[SavedRun], one: str, other: str | None) -> list[SavedRun]:
    """Return the two runs with the names `one` and `other`. If `other` is None, the second run is the newest other run.

    Raises UsageError if there is no such run, or if the job has only one run.
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
    """Return the lines of a unified diff of the programs of two runs; empty if the programs are the same.

    If the programs differ but their text was not saved, return one line that says so.
    """
    if one.settings.get("program") == other.settings.get("program"):
        return []
    lines: list[str] = []
    for name in sorted({*one.program, *other.program} if one.program and other.program else ()):
        old, new = (run.program.get(name, "").splitlines() for run in (one, other))
        lines += difflib.unified_diff(old, new, f"{one.name}/{name}", f"{other.name}/{name}", lineterm="")
    return lines or ["the programs differ, but their text was not saved"]
