"""The small files that describe a job and its runs, read from the shared storage; damaged ones are errors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import metrics
from launcher.cli.storage.storage_access import Storage, read_small_files
from launcher.dataprep.shard_files import make_again_fix
from launcher.errors import DataError
from launcher.io import run_record
from launcher.paths import JobPaths, OutputPaths
from launcher.schema import DataFailure, ManifestFile, RunFile, StatusFile, read_fields

OUTPUT = OutputPaths(Path("output"))
"""Paths of the current output, below the job's folder."""
_JOB = JobPaths(Path(), "")
MANIFEST, DATA_FAILED = _JOB.manifest.as_posix(), _JOB.data_failed.as_posix()
STATUS = OUTPUT.status_json.as_posix()
AGAIN_SECONDS = 3.0
"""A damaged status.json is read again after this time: rank 0 of a live run writes it every 2 s."""
Damage = dict[str, str]
"""What is wrong with each damaged file, with the fix, by the file's path below the job's folder."""


@dataclass(frozen=True)
class JobFiles:
    """The contents of the files that describe a job's data and a run; None for an absent or damaged one."""

    status: StatusFile | None = None
    run: RunFile | None = None
    manifest: ManifestFile | None = None
    data_failure: DataFailure | None = None
    passes: Sequence[Mapping[str, Any]] = ()
    """One row for each pass, from metrics.csv (`launcher.metrics.pass_table`)."""
    damage: Damage = field(default_factory=dict)
    was_read: bool = True
    """Whether the files were read; if not, None does not mean that a file is absent."""
    problem: str = ""
    """Why the files cannot be read; empty if they were read."""


def check_intact(damage: Mapping[str, str], where: str) -> None:
    """Raise DataError if a file is damaged. Commands call this after they have shown what the others contain.

    `where` is the job's folder or the release, for the message.
    """
    if damage:
        raise DataError(f"{where}: {' '.join(damage.values())}")


def _describe_damage(name: str, why: str) -> str:
    """Return the sentence for `Damage` about a file; `why` has its path and what is wrong with it."""
    fix = "Fix: restore it from a backup of the storage; without one, delete it, so that it counts as absent."
    if name in (MANIFEST, DATA_FAILED):
        fix = make_again_fix(JobPaths(Path(), "")).replace(MANIFEST, name)
    elif name.endswith(OUTPUT.run_json.name):
        fix = f"Fix: restore it, or its copy {OUTPUT.run_copy.name}, from a backup of the storage."
    return f"{why} {fix}"


class FoundFiles:
    """Parses files of the storage, given as contents by path (`read_small_files`); notes which are damaged."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        """Parse nothing yet."""
        self.contents = contents
        self.damage: Damage = {}

    def json(self, shape: Any, *paths: Path) -> dict[str, Any] | None:
        """Return the JSON object in the first intact file; None if all are absent or damaged.

        `shape` is the type of the object (`schema.mismatch`).
        """
        names = [path.as_posix() for path in paths]
        value, error = run_record.first_intact(((name, self.contents.get(name)) for name in names), shape)
        if value is None and error is not None:
            self.damage[names[0]] = _describe_damage(names[0], str(error))
        return value

    def run(self, output: OutputPaths) -> RunFile | None:
        """Return an output's run record: run.json, or its copy; None if both are absent or damaged."""
        content = self.json(RunFile, output.run_json, output.run_copy)
        return None if content is None else read_fields(RunFile, content)

    def passes(self, output: OutputPaths) -> list[dict[str, Any]]:
        """Return the table of the passes (`metrics.pass_table`) from the intact rows of an output's metrics.csv."""
        name = output.metrics_csv.as_posix()
        content = self.contents.get(name, b"")
        if name in self.contents and (why := metrics.find_damage(content)):
            self.damage[name] = _describe_damage(name, f"{name} is damaged: {why}. The other rows are shown.")
        return metrics.pass_table(metrics.parse_metrics(content.decode(errors="replace")))


def read_job_files(storage: Storage, *, again: bool = True) -> JobFiles:
    """Read the files that describe the data and the current run of the storage's job."""
    paths = (OUTPUT.run_json, OUTPUT.run_copy, OUTPUT.metrics_csv)
    found = FoundFiles(
        read_small_files(storage, [STATUS, MANIFEST, DATA_FAILED, *(path.as_posix() for path in paths)])
    )
    status = found.json(StatusFile, OUTPUT.status_json)
    if again and found.damage:
        time.sleep(AGAIN_SECONDS)
        return read_job_files(storage, again=False)
    manifest, failure = found.json(ManifestFile, _JOB.manifest), found.json(DataFailure, _JOB.data_failed)
    return JobFiles(
        status=read_fields(StatusFile, status) if status is not None else None,
        run=found.run(OUTPUT),
        manifest=read_fields(ManifestFile, manifest) if manifest is not None else None,
        data_failure=read_fields(DataFailure, failure) if failure is not None else None,
        passes=found.passes(OUTPUT),
        damage=found.damage,
    )
