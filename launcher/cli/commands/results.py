"""`results`: show the score and the passes of a run, and copy its output with verified checksums.

`runs`: list the runs of a job. `compare`: show how two runs differ.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from launcher.cli.errors import CliError, DiskFullError, UsageError, describe_os_error
from launcher.cli.job_sessions import Session
from launcher.cli.reader_commands import move_into_place
from launcher.cli.run_files import (
    check_intact,
    choose_pair,
    diff_programs,
    find_run,
    read_runs,
    setting_rows,
)
from launcher.cli.shared_options import Format, with_storage
from launcher.cli.storage import COPY_SECONDS, Storage, StorageRequest, run_json_command
from launcher.cli.terminal import command_text, console, curve_table, print_json, report, text_table
from launcher.io.files import remove_path
from launcher.io.open_below import ReaderError
from launcher.io.retry import Retry, TransientError
from launcher.io.tar_stream import save_tar
from launcher.paths import OutputPaths, position
from launcher.reporting import text_formats
from launcher.reporting.saved_runs import CURRENT, SavedRun, differing_settings, pass_rows, run_rows

COPIED = ("model", "curve.png", "report.html", "metrics.csv", "run.json", "status.json")
NOT_COPIED = ("run.lock", "run.copy.json", "program.json", "before.json")
"""Files of an output that only the launcher uses, in addition to its checkpoints and hidden files."""
LOGS = "node_*"
TRIES = 3
SAME_CHECKPOINT_SECONDS = 60.0
"""Files in a script's checkpoint folder belong to its newest checkpoint if they were written at most this time before
the newest file."""


@with_storage
def results(
    session: Session,
    request: StorageRequest,
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Copy model, report, curve, metrics, logs and what a script wrote to this folder.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also copy the older files of a script's checkpoint folder.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what DIR already contains.")] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="An earlier run, by its name in the list of `runs`."),
    ] = None,
    output: Format = "text",
) -> None:
    """Show the score and a table of the passes; --to copies the run's output, and verifies every checksum."""
    request = replace(request, seconds=COPY_SECONDS, outlives_training=to is not None)
    with session.storage(request) as storage:
        found = read_runs(storage)
        if run is None and not (found and found[0].folder == CURRENT):
            raise CliError(
                f"no results in {storage.where}: no training has written to this folder yet, or somebody removed it",
                f"see what the training waits for: {command_text('status', *session.options())}; after a removal, "
                "train again: helm upgrade with --reset-then-reuse-values --set-string runId=TEXT (any new text)",
            )
        chosen = find_run(found, run or CURRENT)
        paths = OutputPaths(Path(chosen.folder))
        names = list_copied(storage, paths, everything) if to is not None else []
        copied = copy_output(storage, to, force, paths, names) if to is not None else {}
    if to is not None and not any(name.startswith("model/") for name in copied):
        report(f"the run is {chosen.state} and has no {chosen.folder}/model yet; the other files were copied")
    if output == "json":
        copy = {"to": str(to), "files": copied} if to else None
        print_json({**chosen.as_json(), "where": storage.where, "copied": copy})
    else:
        _print_results(chosen, storage.where, to, copied)
    check_intact(chosen.damage, storage.where)


def _print_results(run: SavedRun, where: str, to: Path | None, copied: Mapping[str, int]) -> None:
    """Print the results as text. `copied` has the size of each file that was copied to `to`, by the file's name."""
    out, record = console(), run.record
    finished = f" at {text_formats.utc_time(record.finished)}" if record.finished else ""
    count = len(record.restarts)
    restarts = f" (restarts: {count}; `status` shows their causes)" if count else ""
    out.print(f"run {record.run_id}: {run.state}{finished}{restarts}")
    none = "unknown" if run.is_unknown else "none yet"
    score = f"score on the test set: {text_formats.scores(record.score) or none}"
    out.print(", ".join(filter(None, (score, text_formats.best_pass(run.best)))))
    if run.passes:
        out.print(text_table(*pass_rows({"": run.passes})))
    if record.exported_to:
        out.print(f"exported to {record.exported_to}")
    if to is None:
        names = ", ".join(COPIED)
        out.print(
            f"on the storage: {where}/{run.folder} ({names}, node_*/, a script's files); --to DIR copies it"
        )
        return
    out.print(f"copied to {to}: " + ", ".join(sorted({name.split("/", 1)[0] for name in copied})))
    if "report.html" in copied:
        out.print(f"report, for any browser: {to / 'report.html'}")


def list_copied(storage: Storage, output: OutputPaths, everything: bool) -> list[str]:
    """Return which files and folders of an output are copied, as paths below the output.

    These are not copied: the launcher's own checkpoints and work files, links that a script made, and hidden files.
    From the folder for a script's own checkpoints, only the newest folder and the newest files are copied; with
    `everything`, all of its folders and files.
    """
    entries = run_json_command(storage, "ls", "--optional", str(output.root))
    own = output.script_checkpoints.name
    names = [str(one["name"]) for one in entries if one["type"] != "other" or _is_ours(str(one["name"]))]
    names = [name for name in names if not name.startswith(".") and name not in (*NOT_COPIED, own)]
    names = [name for name in names if position(name) is None]
    saved = run_json_command(storage, "ls", "--optional", str(output.script_checkpoints))
    for kind, seconds in (("folder", 0.0), ("file", SAME_CHECKPOINT_SECONDS)):
        of_kind = [one for one in saved if one["type"] == kind and not one["name"].startswith(".")]
        newest = max((one["mtime"] for one in of_kind), default=0.0)
        names += [f"{own}/{one['name']}" for one in of_kind if everything or one["mtime"] >= newest - seconds]
    return names


def _is_ours(name: str) -> bool:
    """Return whether the launcher writes a file or folder with this name.

    A link with such a name is not skipped as other links are, so that copying it fails.
    """
    return name in COPIED or Path(name).match(LOGS)


def copy_output(
    storage: Storage, target: Path, force: bool, output: OutputPaths, names: Sequence[str]
) -> dict[str, int]:
    """Copy files and folders of an output into the folder `target`; return the size in bytes of each file.

    The keys of the result are the files' paths below `target`. Everything is received into a hidden folder and compared
    with the sender's sha256 before it gets its final name. Files of an earlier copy that this run does not have are
    removed; other files in `target` stay.

    Args:
        storage: the storage of the job.
        target: the folder on this machine.
        force: whether to replace what `target` already contains.
        output: the paths of the output.
        names: the paths of the files and folders below the output.

    Raises:
        UsageError: `target` is a file or cannot be written, or it already contains one of the names and `force` is
            False.
        DiskFullError: the disk of `target` is full or read-only.
        CliError: the storage cannot be read, or the transfer failed. `target` is unchanged.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(f"--to {target} is a file", "give a folder")
    tops = {name.partition("/")[0] for name in (*COPIED, *names)}
    taken = [name for name in tops if os.path.lexists(target / name)]
    taken += [path.name for path in target.glob(LOGS) if path.name not in tops]
    if taken and not force:
        raise UsageError(
            f"--to {target} already contains {', '.join(sorted(taken))}; nothing was copied",
            "give another folder, or replace them with --force",
        )
    created = not target.exists()
    hidden = target / f".results-{secrets.token_hex(4)}.tmp"
    try:
        saved = _receive(storage, hidden, output, names)
        received = {entry.name: entry for entry in (hidden / output.root).iterdir()}
        for name, entry in sorted(received.items()):
            move_into_place(entry, target / name, replace=force)
        for name in set(taken) - set(received):  # these are of an earlier copy, perhaps of another run
            remove_path(target / name)
    except BaseException as error:
        shutil.rmtree(target if created else hidden, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        if isinstance(full := describe_os_error(error, target), DiskFullError):
            raise full from error
        problem = f"--to {target}: cannot write there: {error.strerror or error}"
        raise UsageError(problem, "give a folder that you may write to") from error
    shutil.rmtree(hidden, ignore_errors=True)
    report(f"copied {sum(saved.values()):,} bytes in {len(saved)} files; every sha256 matches the storage")
    return {name.removeprefix(f"{output.root}/"): size for name, size in saved.items()}


def _receive(storage: Storage, into: Path, output: OutputPaths, names: Sequence[str]) -> dict[str, int]:
    """Receive the files and folders `names` of the output into the new folder `into`.

    Return the size in bytes of each file, by its path relative to `into`.

    The transfer is repeated if the stream ends early although the sender succeeded: on a busy node a container runtime
    may close the stream before the last bytes are sent.
    """
    patterns = [f"{output.root}/{name}" for name in names]

    def receive_once() -> dict[str, int]:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        try:
            with storage.run("tar", "--optional", *patterns) as stream:
                return save_tar(stream, into)
        except ReaderError as error:
            raise TransientError(str(error)) from error

    fix = "Nothing was copied. Fix: run the same command again."
    retry = Retry(tries=TRIES, base=0.2, doing="copied", error=CliError, fix=fix)
    saved = retry.call("the run's output", receive_once)
    if not saved:
        raise CliError(
            f"{storage.where}/{output.root} was moved or removed before it was copied",
            "run the same command again",
        )
    return saved


@with_storage
def runs(session: Session, request: StorageRequest, output: Format = "text") -> None:
    """List the job's current and earlier runs: settings, score, duration and pod hours (pods times hours)."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    if output == "json":
        print_json([run.as_json() for run in found])
    else:
        console().print(text_table(*run_rows(found)) if found else "the job has no runs yet")
    for run in found:
        check_intact(run.damage, storage.where)


DIFF_LINES = 100  # longest diff of two programs in a terminal


@with_storage
def compare(
    session: Session,
    request: StorageRequest,
    *,
    one: Annotated[
        str,
        typer.Argument(metavar="A", help="A run's name in `runs`, or its start; default: the current run."),
    ] = CURRENT,
    other: Annotated[
        str | None, typer.Argument(metavar="B", help="Another run; default: the newest one except A.")
    ] = None,
    output: Format = "text",
) -> None:
    """Show the settings in which two runs differ, and their losses and scores pass by pass."""
    with session.storage(request) as storage:
        found = read_runs(storage)
    pair = choose_pair(found, one, other)
    for run in pair:
        check_intact(run.damage, storage.where)
    if output == "json":
        differences = {"differing": differing_settings(pair), "diff": diff_programs(*pair)}
        print_json({**differences, "runs": [run.as_json() for run in pair]})
    else:
        console().print(_comparison(*pair))


def _comparison(one: SavedRun, other: SavedRun) -> RenderableType:
    """Return what `compare` prints: the settings and programs that differ; losses and scores side by side."""
    pair = (one, other)
    settings: RenderableType = Text("the settings are the same")
    if rows := setting_rows(pair):
        settings = text_table(["setting", one.name, other.name], rows)
    passes = {run.name: run.passes for run in pair}
    lines = [Text(text_formats.best_pass(run.best) + f" in {run.name}") for run in pair if run.best]
    diff = diff_programs(one, other)
    hidden = [f"{len(diff) - DIFF_LINES} more lines; -o json prints all"] if len(diff) > DIFF_LINES else []
    lines += map(Text, [*diff[:DIFF_LINES], *hidden])
    return Group(settings, text_table(*pass_rows(passes)), curve_table(passes), *lines)
