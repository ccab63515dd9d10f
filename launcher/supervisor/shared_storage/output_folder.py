"""Resume the output of an earlier run, or move it to runs/ and start from scratch.

A run matches an output if both have the same fingerprint: the settings and program that decide what is
trained.

    run.json matches this run                → resume output/
    runs/<id>/run.json matches               → move output/ to runs/ and move that run's folder back to output/
    run.json is another run's                → move output/ to runs/ and start from scratch
    no readable run.json and no checkpoint   → move output/ to runs/, unless it is empty, and start from scratch
    no readable run.json, but checkpoints    → an error: it is unknown which run saved them

If run.json is damaged or missing, its copy run.copy.json is read. A read error of the storage is retried; if it
persists, this launcher exits.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launcher.errors import DataError, StorageError, setting_error
from launcher.io import checkpoints, files, run_record
from launcher.log import log
from launcher.paths import JobPaths, OutputPaths
from launcher.schema import RunFile, StatusFile, from_json, read_fields
from launcher.settings import PREVIOUS, SCRIPT_RUNTIMES, TrainSettings
from launcher.supervisor.shared_storage.output_lease import LeaseLostError, OutputLease

T = TypeVar("T")
_PARTS = "(program, data, trainers, mode, batch size and others)"


def run_fingerprint(settings: TrainSettings, program_sha256: str) -> dict[str, Any]:
    """Return the settings that must be equal for a run to resume the output of another run.

    Passes, image, resources and log periods may differ, so the fingerprint does not contain them. It contains the
    number of pservers per pod (`portsNum`) except with runtime fleet, whose checkpoints most other numbers of
    pservers can restore.
    """
    source = settings.source_digest or settings.data_digest
    return {
        "program": program_sha256,
        **({"sourceDigest": source} if settings.runtime in SCRIPT_RUNTIMES else {}),
        "dataDigest": settings.data_digest,
        "trainers": settings.shards,
        **({} if settings.runtime == "fleet" else {"portsNum": settings.ports_num}),
        "runtime": settings.runtime,
        "mode": settings.mode,
        "batchSize": settings.batch_size,
        "args": list(settings.args),
        **({"initModelPath": settings.init_model} if settings.init_model else {}),
        **({"startFromScratch": settings.start_from_scratch} if settings.start_from_scratch else {}),
    }


def _can_resume(earlier: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Return whether a run with the fingerprint `ours` resumes a run with the fingerprint `earlier`.

    For a user's script, the number of processes may differ, and so may the shards, which depend on this number. All
    processes of a script have the same parameters, so its checkpoints do not depend on the number of trainers. Whether
    they can be loaded with another number of parameter servers is up to the script.
    """
    free = {"trainers", "portsNum", "dataDigest"} if ours.get("runtime") in SCRIPT_RUNTIMES else set()
    return all(earlier.get(key) == ours.get(key) for key in {*earlier, *ours} - free)


def check_folders(layout: JobPaths) -> None:
    """Check that output/ and runs/ are folders or absent, and that the launcher follows no link in output/.

    Checked are output/, runs/, and the entries of output/.

    Raises:
        StorageError: one of these paths is a symbolic link, or a file where a folder is needed.
    """
    entries = [layout.output / name for name in files.list_names(layout.output)]
    for path in (layout.output, layout.runs, *entries):
        with files.storage_errors(path):
            what = "a symbolic link" if path.is_symlink() else ""
            folder = path.parent == layout.job or path.name.startswith("node_")
            if folder and not what and path.exists() and not path.is_dir():
                what = "a file"
        if what:
            raise StorageError(
                f"{path} is {what}, but the launcher writes there and does not follow links out of the job's "
                "folder. Fix: remove it, or move its target into its place, then start the run again."
            )


def open_output(
    settings: TrainSettings, fingerprint: dict[str, Any], lock: OutputLease
) -> tuple[int, RunFile]:
    """Resume output/; or move it to runs/, and use an earlier output from runs/ or a new, empty one instead.

    Only rank 0 calls this, while it holds the lease.

    Returns:
        (number of the next attempt, run.json of the output as it was read). For a new output these are 0 and an empty
        record.

    Raises:
        DataError: there are checkpoints, but no readable run.json.
        LeaseLostError: the lease was lost, or another run has created output/ in the meantime.
        StorageError, StorageFailedError: the storage cannot be read or written.
    """
    layout, pause = settings.layout, lock.pause
    output = OutputPaths(layout.output)
    earlier = _read_earlier_run(output, pause)
    if earlier is not None and _can_resume(earlier.fingerprint, fingerprint):
        log.info(
            "resuming output/ of run %s, which has the fingerprint of this run %s", earlier.run_id, _PARTS
        )
        return _next_attempt(output, earlier, pause), earlier
    back = _find_matching_run(layout, fingerprint, pause)
    if back is None and not any(_must_be_kept(name) for name in files.list_names(output.root, pause)):
        return 0, RunFile()
    moved = _replace_output(layout, earlier, back, run_id=settings.run_id, lock=lock)
    log.info(
        "moved output/ to %s, because this run has another fingerprint %s",
        moved.relative_to(layout.job),
        _PARTS,
    )
    if back is None:
        return 0, RunFile()
    log.info("moved runs/%s back to output/: it has the fingerprint of this run %s", back.name, _PARTS)
    earlier = _read_earlier_run(output, pause) or RunFile()
    return _next_attempt(output, earlier, pause), earlier


def _must_be_kept(name: str) -> bool:
    """Return whether file `name` of an output must be kept; False for run.lock and for hidden files, such as temporary
    ones."""
    return not name.startswith((".", "run.lock"))


def _read_earlier_run(output: OutputPaths, pause: Callable[[float], None]) -> RunFile | None:
    """Return the run record of output/; None if it is missing or damaged and there is no checkpoint.

    Raises:
        DataError: the run record is missing or damaged, but there are checkpoints.
    """
    why = "is missing"
    try:
        found = read_run_record(output, pause)
    except files.UnreadableError as error:
        found, why = None, f"cannot be used ({str(error).rstrip('.')})"
    checkpoints = [name for name in files.list_names(output.root, pause) if name.startswith("pass-")]
    if found is None and checkpoints:
        raise DataError(
            f"{output.run_json} {why}, but {output.root} contains checkpoints ({checkpoints[0]} to {checkpoints[-1]}): "
            "it is unknown which run saved them, so nothing was moved or started from scratch. Fix: restore run.json "
            "or run.copy.json from a backup of the volume; or, to start from scratch, move the folder away: mv "
            f"{output.root} {output.root}-kept."
        )
    return found


def read_run_record(output: OutputPaths, pause: Callable[[float], None] = time.sleep) -> RunFile | None:
    """Return an output's run record: run.json, else its copy; None if both are missing.

    Raises:
        UnreadableError: run.json or its copy is damaged, and neither of the two is intact.
    """
    found, damage = run_record.read(output, pause)
    if damage is not None and found is None:
        raise damage
    if damage is not None:
        copy = output.run_copy.name
        log.warning("%s Its copy %s is used, and run.json will be written again.", damage, copy)
    return None if found is None else from_json(RunFile, found)


def read_if_intact(read: Callable[[], T | None], default: T) -> T:
    """Return the result of `read`, which reads a JSON file that the run can do without.

    Return `default` if the file is absent or damaged; damage is logged.
    """
    try:
        found = read()
    except files.UnreadableError as error:
        log.warning(
            "%s The run continues as if this file did not exist. Fix: if you need what it contained, restore it from "
            "a copy",
            error,
        )
        found = None
    return default if found is None else found


def read_earlier_runs(
    layout: JobPaths, pause: Callable[[float], None]
) -> Iterator[tuple[OutputPaths, RunFile]]:
    """Yield (folder, run record) of each run in runs/; the record is empty if it is absent or damaged.

    Links and folders with a hidden name are left out.
    """
    for name in files.list_names(layout.runs, pause):
        # A hidden name: `clean` is removing the run. A link: it may lead out of the job's folder.
        if not name.startswith(".") and not layout.run(name).is_symlink():
            output = OutputPaths(layout.run(name))
            yield output, read_if_intact(functools.partial(read_run_record, output, pause), RunFile())


def find_previous_model(
    settings: TrainSettings,
    program: str,
    exported: Mapping[str, Any] | None,
    pause: Callable[[float], None],
) -> str:
    """Return the value of training.initModelPath that `previous` stands for; "" if no run is complete yet.

    The value is the path of the newest complete run in runs/ with the same program as this run. Only runs with a
    complete folder model/ count. If runs/ has no such run, the value is the address of the job's newest export, if this
    export has the same program. Rank 0 calls this once for each output, after it has moved the earlier output to runs/.

    Args:
        program: sha256 of this run's program.
        exported: `to` (address) and `program` (sha256) of the newest export; None if there is none.

    Raises:
        SettingsError: there are complete runs, or an export, but all of them are of another program.
    """
    layout = settings.layout
    found: list[tuple[float, str, Any]] = []
    for output, record in read_earlier_runs(layout, pause):
        if record.state != "complete":
            continue
        if not checkpoints.is_model_complete(output.model):
            log.warning(
                "%s is not used as the initial model: its run is complete, but its folder model/ is not. Fix: if this "
                "run must start with that model, restore model/ from a copy, then start the run again",
                output.root,
            )
            continue
        path = output.root.relative_to(layout.job_path).as_posix()
        found.append((record.finished or record.started, path, record.fingerprint.get("program")))
    if not found and exported:
        found.append((0.0, str(exported["to"]).rstrip("/"), exported.get("program")))
    if not found:
        log.info(
            "training.initModelPath is previous, but no run of this job is complete: starting from scratch"
        )
        return ""
    fitting = [run for run in found if run[2] == program]
    if not fitting:
        newest = max(found)[1]
        raise setting_error(
            "training.initModelPath",
            PREVIOUS,
            "used with a program that an earlier run has trained",
            f"all complete runs of this job trained another program; the newest one is {newest}. Its parameters "
            "could have another meaning, so they are not used without your decision",
            f"Set it to {newest} for one run, if that model fits; or restore the earlier program; or set it to an "
            "empty text for one run, which then starts from scratch",
        )
    log.info(
        "training.initModelPath is previous: starting with the model of %s, the newest complete one of the same "
        "program",
        max(fitting)[1],
    )
    return max(fitting)[1]


def _find_matching_run(
    layout: JobPaths, fingerprint: dict[str, Any], pause: Callable[[float], None]
) -> Path | None:
    """Return the folder of the newest run in runs/ that a run with this `fingerprint` can resume, or None."""
    runs = read_earlier_runs(layout, pause)
    found = [(run.started, output.root) for output, run in runs if _can_resume(run.fingerprint, fingerprint)]
    return max(found)[1] if found else None


def _replace_output(
    layout: JobPaths, earlier: RunFile | None, back: Path | None, *, run_id: str, lock: OutputLease
) -> Path:
    """Move output/ to runs/, and move another folder to output/; return the new path of the old output in runs/.

    Before the moves, this pod's lease is written to the other folder, so that output/ always has a lease.

    Args:
        earlier: run.json of the output that is moved away; None if there is none.
        back: the folder in runs/ that becomes output/; None: an empty folder.

    Raises:
        LeaseLostError: the lease was lost, or another run created output/ between the two moves.
        StorageError, StorageFailedError: the storage cannot be written.
    """
    with files.storage_errors(layout.job), lock.pause_renewals():
        layout.runs.mkdir(exist_ok=True)
        aside = _find_free_path(layout, (earlier.run_id if earlier else None) or "unknown")
        incoming = back or layout.output_tmp(run_id)
        incoming.mkdir(exist_ok=True)
        lock.write_to(OutputPaths(incoming).lock)
        layout.output.rename(aside)
        try:
            incoming.rename(layout.output)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise LeaseLostError(
                    f"another run created {layout.output} while this one moved the earlier output to runs/, and writes "
                    "there now. Fix: set another jobName in one of the two releases that use this folder."
                ) from error
            raise
        files.fsync_dir(layout.job)
    with contextlib.suppress(OSError):
        OutputPaths(aside).lock.unlink()
    return aside


def _find_free_path(layout: JobPaths, run_id: str) -> Path:
    """Return `runs/<run id>`, with a number appended if that exists."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id).lstrip(".")[:100] or "unknown"
    path, count = layout.run(name), 1
    while path.exists():
        count += 1
        path = layout.run(f"{name}.{count}")
    return path


def _next_attempt(output: OutputPaths, earlier: RunFile, pause: Callable[[float], None]) -> int:
    """Return 1 more than the last attempt in run.json and status.json."""
    status = read_if_intact(lambda: files.read_json(output.status_json, pause), dict[str, Any]())
    return 1 + max(earlier.attempt, read_fields(StatusFile, status).attempt)


LOG_FILES = (".log", ".txt", ".json", ".yaml", ".yml")
"""Endings of files that a script may write at every start, so that they are no sign of progress."""
LOOKED_AT = 20_000
"""At most this many files are looked at."""


def find_newest_save(folder: Path) -> tuple[float, str]:
    """Return (Unix time, name) of the newest file below a script's checkpoint folder; (0, "") if there is no file.

    The name is the path relative to the folder. Logs, event files and hidden files do not count. Only the first
    LOOKED_AT files are looked at. A file or folder that the storage cannot read is skipped. The result is for `status`;
    the launcher also uses it to count failures, and to decide when an elastic run takes in ranks.
    """
    newest = (0.0, "")
    files_below = (
        Path(root, name) for root, _, names in os.walk(folder) for name in names if not name.startswith(".")
    )
    for path in itertools.islice(files_below, LOOKED_AT):
        if path.suffix not in LOG_FILES and "tfevents" not in path.name and "vdlrecords" not in path.name:
            with contextlib.suppress(OSError):
                newest = max(newest, (path.lstat().st_mtime, path.relative_to(folder).as_posix()))
    return newest


def archive_logs(output: OutputPaths, rank: int, attempt: int) -> None:
    """Create this rank's folder, and move the logs in it to `attempt-<attempt - 1>/`, because `attempt` starts now.

    If a log with the same name already exists there, the moved log gets a number. For attempt 0 nothing is moved.

    Raises:
        StorageError, StorageFailedError: the storage cannot be written.
    """
    node = output.node(rank)

    def move() -> None:
        node.mkdir(parents=True, exist_ok=True)
        logs = [name for name in files.list_names(node) if name.endswith(".log")] if attempt else []
        if not logs:
            return
        earlier = output.attempt(rank, attempt - 1)
        earlier.mkdir(exist_ok=True)
        existing = set(files.list_names(earlier))
        for name in logs:
            new, count = name, 1
            while new in existing:
                count += 1
                new = f"{name.removesuffix('.log')}.{count}.log"
            with contextlib.suppress(FileNotFoundError):  # another pod of this rank did it
                (node / name).rename(earlier / new)

    files.retry_storage(node, move)
