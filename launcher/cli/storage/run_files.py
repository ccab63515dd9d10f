"""The small files that describe a job and its runs, read from the shared storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import metrics
from launcher.cli.storage.storage_access import Storage, read_small_files
from launcher.io import run_record
from launcher.io.files import UnreadableError, parse_json_object
from launcher.paths import JobPaths, OutputPaths
from launcher.schema import DataFailure, ManifestFile, RunFile, StatusFile, read_fields

OUTPUT = OutputPaths(Path("output"))
"""Paths of the current output, below the job's folder."""
_JOB = JobPaths(Path(), "")
_MANIFEST, _DATA_FAILED = _JOB.manifest.as_posix(), _JOB.data_failed.as_posix()
STATUS = OUTPUT.status_json.as_posix()


@dataclass(frozen=True)
class JobFiles:
    """The contents of the files that describe a job's data and a run; None for an absent or damaged one."""

    status: StatusFile | None = None
    run: RunFile | None = None
    manifest: ManifestFile | None = None
    data_failure: DataFailure | None = None
    passes: Sequence[Mapping[str, Any]] = ()
    """One row for each pass, from metrics.csv (`launcher.metrics.pass_table`)."""
    was_read: bool = True
    """Whether the files were read; if not, None does not mean that a file is absent."""
    problem: str = ""
    """Why the files cannot be read; empty if they were read."""


def parse_json(content: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object in a file's content; None if the file is absent or damaged."""
    try:
        return parse_json_object("it", content or b"")
    except UnreadableError:
        return None


def parse_run_file(found: Mapping[str, bytes], output: OutputPaths) -> RunFile | None:
    """Return an output's run record: run.json, or its copy if run.json is damaged; None if both are.

    `found` are contents by path, as `read_small_files` returns them.
    """
    names = (output.run_json.as_posix(), output.run_copy.as_posix())
    content, _ = run_record.first_intact((name, found.get(name)) for name in names)
    return None if content is None else read_fields(RunFile, content)


def parse_pass_table(found: Mapping[str, bytes], output: OutputPaths) -> list[dict[str, Any]]:
    """Return the table of the passes (`launcher.metrics.pass_table`) from the content of an output's metrics.csv.

    `found` are contents by path, as `read_small_files` returns them; without that file the table is empty.
    """
    content = found.get(output.metrics_csv.as_posix(), b"").decode(errors="replace")
    return metrics.pass_table(metrics.parse_metrics(content))


def read_job_files(storage: Storage) -> JobFiles:
    """Read the files that describe the data and the current run of the storage's job."""
    records = (OUTPUT.run_json.as_posix(), OUTPUT.run_copy.as_posix())
    found = read_small_files(
        storage, [STATUS, _MANIFEST, _DATA_FAILED, *records, OUTPUT.metrics_csv.as_posix()]
    )
    status, manifest, failure = (parse_json(found.get(name)) for name in (STATUS, _MANIFEST, _DATA_FAILED))
    return JobFiles(
        status=read_fields(StatusFile, status) if status else None,
        run=parse_run_file(found, OUTPUT),
        manifest=read_fields(ManifestFile, manifest) if manifest else None,
        data_failure=read_fields(DataFailure, failure) if failure else None,
        passes=parse_pass_table(found, OUTPUT),
    )
