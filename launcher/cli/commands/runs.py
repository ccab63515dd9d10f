"""`runs`: list the runs of a job."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from launcher.cli.job_sessions import Session
from launcher.cli.shared_options import Format, OutputFormat, with_storage
from launcher.cli.storage.run_files import CURRENT, SavedRun, check_intact, differing_settings, read_runs
from launcher.cli.storage.storage_access import StorageRequest
from launcher.cli.terminal import console, print_json, text_table
from launcher.reporting import text_formats


@with_storage
def runs(session: Session, request: StorageRequest, output: Format = OutputFormat.text) -> None:
    """List the job's current and earlier runs: settings, score, duration and pod hours (pods times hours)."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    if output is OutputFormat.json:
        print_json([run.as_json() for run in found])
    else:
        console().print(_run_table(found) if found else "the job has no runs yet")
    for run in found:
        check_intact(run.damage, storage.where)


def _run_table(found: Sequence[SavedRun]) -> RenderableType:
    """Return a table with a row for each run, and a column for each setting that differs between them."""
    keys = [key for key in differing_settings(found) if key != "passes"]
    columns = ["run", "state", "started", ">duration", ">pod hours", ">passes", ">restarts", "score", *keys]
    rows: list[list[RenderableType]] = []
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
                *(Text(str(run.settings.get(key, "-"))) for key in keys),
            ]
        )
    return text_table(columns, rows)
