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
from launcher.io.files import UnreadableError, parse_json_object
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


def parse_json(
    found: Mapping[str, bytes], path: Path, damage: Damage, shape: Any = dict[str, Any]
) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is absent, or damaged, which is added to `damage`.

    `found` are contents by path, as `read_small_files` returns them; `shape` is the type of the object
    (`schema.mismatch`).
    """
    name = path.as_posix()
    try:
        return parse_json_object(name, found[name], shape) if name in found else None
    except UnreadableError as error:
        damage[name] = _describe_damage(name, str(error))
        return None


def parse_run_file(found: Mapping[str, bytes], output: OutputPaths, damage: Damage) -> RunFile | None:
    """Return an output's run record: run.json, or its copy if run.json is damaged.

    The record is None if both are absent, or damaged, which is added to `damage`. `found` is as for `parse_json`.
    """
    names = (output.run_json.as_posix(), output.run_copy.as_posix())
    content, error = run_record.first_intact((name, found.get(name)) for name in names)
    if content is None and error is not None:
        damage[names[0]] = _describe_damage(names[0], str(error))
    return None if content is None else read_fields(RunFile, content)


def parse_pass_table(found: Mapping[str, bytes], output: OutputPaths, damage: Damage) -> list[dict[str, Any]]:
    """Return the table of the passes (`launcher.metrics.pass_table`) from the intact rows of an output's metrics.csv.

    It is empty without that file. Damaged rows are added to `damage`. `found` is as for `parse_json`.
    """
    name = output.metrics_csv.as_posix()
    content = found.get(name, b"")
    if name in found and (why := metrics.find_damage(content)):
        damage[name] = _describe_damage(name, f"{name} is damaged: {why}. The other rows are shown.")
    return metrics.pass_table(metrics.parse_metrics(content.decode(errors="replace")))


def read_job_files(storage: Storage, *, again: bool = True) -> JobFiles:
    """Read the files that describe the data and the current run of the storage's job."""
    records = (OUTPUT.run_json.as_posix(), OUTPUT.run_copy.as_posix())
    found = read_small_files(
        storage, [STATUS, MANIFEST, DATA_FAILED, *records, OUTPUT.metrics_csv.as_posix()]
    )
    damage: Damage = {}
    status, manifest, failure = (
        parse_json(found, Path(name), damage, shape)
        for name, shape in ((STATUS, StatusFile), (MANIFEST, ManifestFile), (DATA_FAILED, DataFailure))
    )
    if again and STATUS in damage:
        time.sleep(AGAIN_SECONDS)
        return read_job_files(storage, again=False)
    return JobFiles(
        status=read_fields(StatusFile, status) if status is not None else None,
        run=parse_run_file(found, OUTPUT, damage),
        manifest=read_fields(ManifestFile, manifest) if manifest is not None else None,
        data_failure=read_fields(DataFailure, failure) if failure is not None else None,
        passes=parse_pass_table(found, OUTPUT, damage),
        damage=damage,
    )
