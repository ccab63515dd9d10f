"""`results`: the score and the passes of a run, and a verified copy of what it left behind."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from launcher.best import of_run
from launcher.cli import render
from launcher.cli.problems import CliError, UsageError
from launcher.cli.session import OUTPUT
from launcher.cli.storage import Storage, buffered, entries, json_file, run_record, small_files
from launcher.cli.view import exported_to
from launcher.layout import Output
from launcher.reader import place
from launcher.reporting import curve as report
from launcher.reporting import figures
from launcher.retry import Retry, TransientError
from launcher.tarstream import ReaderError, save_tar

COPIED = ("model", "curve.png", "report.html", "metrics.csv", "run.json", "status.json")
LOGS = "node_*"
TRIES = 3


@dataclass(frozen=True)
class Results:
    """What a run has to show so far. `passes` is `report.pass_table` of its metrics."""

    where: str
    state: str
    run_id: str | None
    score: dict[str, Any]
    passes: list[dict[str, Any]]
    has_model: bool
    exported: str
    """Where a copy of the model lies in a bucket; empty without one."""
    restarts: list[dict[str, Any]]
    """As in run.json."""
    finished: float | None
    """When the run ended, in unix seconds."""
    best: dict[str, Any]
    """`launcher.best.of_run`; empty without `training.keepBest`."""


def load(storage: Storage, where: str, output: Output = OUTPUT) -> Results:
    """Read the small files. Raises CliError when the run has left nothing yet."""
    read = (output.run_json, output.status_json, output.metrics_csv, output.run_copy)
    names = [path.as_posix() for path in read]
    found = small_files(storage, names)
    run, status = run_record(found, output), json_file(found.get(names[1]))
    if run is None and status is None and names[2] not in found:
        raise CliError(
            f"no results in {where}: no training has written there yet (`status` tells what it waits for), "
            "or the folder was removed after its Jobs were complete: then set another runId and it runs anew."
        )
    rows = report.parse_metrics(found.get(names[2], b"").decode(errors="replace"))
    state = str((status or {}).get("state") or (run or {}).get("state") or "unknown")
    return Results(
        where=where,
        state=state,
        run_id=(run or status or {}).get("runId"),
        score=dict((run or {}).get("score") or {}),
        passes=report.pass_table(rows),
        has_model=bool(entries(storage, output.model.as_posix())),
        exported=exported_to(run or {}),
        restarts=list((run or status or {}).get("restarts") or []),
        finished=(run or {}).get("finished"),
        best=of_run(run or {}, report.pass_table(rows)),
    )


def copy(
    storage: Storage, target: Path, force: bool, say: Callable[[str], None], output: Output = OUTPUT
) -> dict[str, int]:
    """Copy model, curve, metrics and logs into the folder `target`; returns {name below target: bytes}.

    All of it is received into a hidden folder, checked against the sender's sha256 and only then gets its
    names. What is there already is refused, or with `force` replaced; other files in `target` stay.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(f"--to {target} is a file. Name a folder.")
    taken = [name for name in COPIED if os.path.lexists(target / name)] if target.exists() else []
    taken += [path.name for path in target.glob(LOGS)] if target.exists() else []
    if taken and not force:
        raise UsageError(
            f"--to {target} holds {', '.join(sorted(taken))} already; nothing was copied. Name another "
            "folder, or "
            "replace them with --force."
        )
    made = not target.exists()
    hidden = target / f".results-{secrets.token_hex(4)}.tmp"
    try:
        saved = _receive(storage, hidden, output)
        for entry in sorted((hidden / output.root).iterdir()):
            place(entry, target / entry.name, replace=force)
    except OSError as error:
        _remove(target if made else hidden)
        raise CliError(
            f"cannot write to {target}: {error.strerror or error}. Nothing there is half-written."
        ) from error
    except BaseException:
        _remove(target if made else hidden)
        raise
    _remove(hidden)
    say(f"{sum(saved.values()):,} bytes in {len(saved)} files, every sha256 as on the storage")
    return {name.removeprefix(f"{output.root}/"): size for name, size in saved.items()}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _receive(storage: Storage, into: Path, output: Output) -> dict[str, int]:
    mend = "Nothing was copied. Try again."
    retry = Retry(tries=TRIES, base=0.2, doing="copied", error=CliError, mend=mend)
    saved = retry.call("the run's output", lambda: _receive_once(storage, into, output))
    if not saved:
        raise CliError(f"nothing to copy: {storage.where} has no output yet.")
    return saved


def _receive_once(storage: Storage, into: Path, output: Output) -> dict[str, int]:
    """Raises TransientError where the stream lost its end although the sender ended well: on a busy node a
    container runtime may close it before the last bytes are through."""
    _remove(into)
    into.mkdir(parents=True)
    patterns = [f"{output.root}/{name}" for name in (*COPIED, LOGS)]
    answer = storage.run(["tar", "--root", str(storage.job), "--optional", *patterns])
    try:
        saved = save_tar(buffered(answer), into)
    except ReaderError as error:
        answer.result()  # the far side's own sentence is the better one
        raise TransientError(str(error)) from error
    except BaseException:
        answer.close()
        raise
    answer.result()
    return saved


def best_columns(passes: Sequence[dict[str, Any]]) -> list[str]:
    """The test metrics that appear in any pass."""
    return sorted({key for row in passes for key in row if key.startswith("test_")})


def pass_table(passes: list[dict[str, Any]]) -> RenderableType:
    """One line a pass, which counts from 1."""
    tests = best_columns(passes)
    columns = [">pass", ">samples", ">seconds", ">samples/s", ">train loss", *(f">{name}" for name in tests)]
    rows = [
        [
            str(row["pass"] + 1),
            f"{row['samples']:,}",
            f"{row['seconds']:.1f}",
            figures.rate(row["samples_per_second"]),
            figures.number(row["train_loss"]),
            *(figures.number(row.get(name)) for name in tests),
        ]
        for row in passes
    ]
    return render.table(columns, rows)
