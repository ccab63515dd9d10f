"""Which earlier output a run goes on with, and which is moved aside (DESIGN, decision 7)."""

from __future__ import annotations

import contextlib
import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import LauncherError
from launcher.gang.lock import Holder, RunLock
from launcher.gang.log import log
from launcher.layout import Layout, Output, pass_number
from launcher.settings import TrainSettings

_ATTEMPT = re.compile(r"attempt-(\d+)")


def fingerprint(settings: TrainSettings, program_sha256: str) -> dict[str, Any]:
    """What two runs must share for one to go on where the other ended.

    Not in it: passes, image, resources, log periods. `portsNum` is in it because it is the number of pservers
    a pod, and each saves its own part of the tables.
    """
    return {
        "program": program_sha256,
        "dataDigest": settings.data_digest,
        "trainers": settings.trainers,
        "portsNum": settings.ports_num,
        "runtime": settings.runtime,
        "mode": settings.mode,
        "batchSize": settings.batch_size,
        "extraArgs": list(settings.extra_args),
    }


def difference(ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
    """What two fingerprints do not share, for a message."""
    theirs = theirs or {}
    return "; ".join(
        f"{key} {ours.get(key)!r} against {theirs.get(key)!r}"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    )


@dataclass(frozen=True)
class Adopted:
    """The output folder that this run writes to."""

    output: Output
    attempt: int
    """0 in a fresh output, one more than the newest attempt in one that is gone on with."""
    earlier: dict[str, Any]
    """run.json as it was, or {}."""


def adopt(settings: TrainSettings, print_: dict[str, Any], lock: RunLock, holder: Holder) -> Adopted:
    """With the lock held: keeps `output/`, or moves it aside and begins (or brings back) another.

    Only rank 0 calls this. Raises `LauncherError` when a rival takes the name in between.
    """
    layout = settings.layout
    output = Output(layout.output)
    earlier = files.read_json(output.run_json)
    if earlier is not None and earlier.get("fingerprint") == print_:
        log.info("going on with output/ of run %s: same fingerprint", earlier.get("runId"))
        return Adopted(output, next_attempt(output), earlier)
    back = _matching(layout, print_)
    if earlier is None and back is None and not _holds_anything(output):
        return Adopted(output, 0, {})
    moved = _swap(layout, earlier, back, run_id=settings.run_id, holder=holder, lock=lock)
    log.info("moved output/ of another fingerprint to %s", moved.relative_to(layout.job))
    if back is not None:
        log.info("brought back runs/%s: same fingerprint", back.name)
        return Adopted(output, next_attempt(output), files.read_json(output.run_json) or {})
    return Adopted(output, 0, {})


def _holds_anything(output: Output) -> bool:
    """Whether an output without a run.json holds anything besides the lock (and its temporary files)."""
    return any(not p.name.startswith((".", "run.lock")) for p in output.root.iterdir())


def _matching(layout: Layout, print_: dict[str, Any]) -> Path | None:
    """The newest earlier run with this fingerprint, for a rollback."""
    if not layout.runs.is_dir():
        return None
    found = []
    for folder in layout.runs.iterdir():
        run = files.read_json(Output(folder).run_json)
        if run is not None and run.get("fingerprint") == print_:
            found.append((float(run.get("started") or 0), folder.name, folder))
    return max(found)[2] if found else None


def _swap(
    layout: Layout,
    earlier: dict[str, Any] | None,
    back: Path | None,
    *,
    run_id: str,
    holder: Holder,
    lock: RunLock,
) -> Path:
    """Moves output/ to runs/ and another folder, which already holds our lock, into its place."""
    aside = _free_name(layout, str((earlier or {}).get("runId") or "unknown"))
    with files.storage(layout.job):
        layout.runs.mkdir(exist_ok=True)
        incoming = back
        if incoming is None:
            incoming = layout.output_tmp(run_id)
            incoming.mkdir(exist_ok=True)
        RunLock(Output(incoming).lock, holder, lock.timings).write()
        layout.output.rename(aside)
        try:
            incoming.rename(layout.output)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise LauncherError(
                    f"another run made {layout.output} while this one moved the earlier output aside; "
                    "it writes there now. Two live releases must not have the same jobName."
                ) from error
            raise
        files.fsync_dir(layout.job)
    with contextlib.suppress(OSError):
        Output(aside).lock.unlink()
    return aside


def _free_name(layout: Layout, run_id: str) -> Path:
    """`runs/<run id>`, or with a number behind it when that run has been moved aside before."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", run_id).lstrip(".") or "unknown"
    path, count = layout.run(name), 1
    while path.exists():
        count += 1
        path = layout.run(f"{name}.{count}")
    return path


def next_attempt(output: Output) -> int:
    """One more than the newest attempt that left a trace in `output`; 0 when there is none."""
    newest = -1
    status = files.read_json(output.status_json)
    if status is not None and isinstance(status.get("attempt"), int):
        newest = status["attempt"]
    if output.root.is_dir():
        for node in output.root.glob("node_*"):
            numbers = [int(m[1]) for m in map(_ATTEMPT.fullmatch, _names(node)) if m]
            has_logs = any(name.endswith(".log") for name in _names(node))
            newest = max([newest, *(n + has_logs for n in numbers), 0 if has_logs else -1])
    return newest + 1


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def move_logs(output: Output, rank: int, attempt: int) -> None:
    """Before attempt `attempt` > 0: this rank's logs of the one before go to `attempt-<k>/`."""
    node = output.node(rank)
    with files.storage(node):
        node.mkdir(parents=True, exist_ok=True)
        logs = sorted(node.glob("*.log"))
        if not logs:
            return
        earlier = output.attempt(rank, max(attempt - 1, 0))
        earlier.mkdir(exist_ok=True)
        for path in logs:
            path.rename(earlier / path.name)


def newest_done_pass(output_dir: Path) -> int | None:
    """The highest n with `pass-<n>/done`: the runtimes' shared answer to `newest_pass`."""
    done = [
        number
        for name in _names(output_dir)
        if (number := pass_number(name)) is not None and Output(output_dir).pass_done(number).exists()
    ]
    return max(done, default=None)


def write_run(
    output: Output,
    settings: TrainSettings,
    print_: dict[str, Any],
    *,
    state: str,
    started: float,
    finished: float | None,
    output_id: str,
    exported: dict[str, Any] | None,
) -> None:
    """run.json. The score is trainer 0's (`model/score.json`), or what an earlier end wrote."""
    earlier = files.read_json(output.run_json) or {}
    score = files.read_json(output.model / "score.json") or earlier.get("score") or {}
    files.write_json(
        output.run_json,
        {
            "runId": settings.run_id,
            "outputId": output_id,
            "namespace": settings.namespace,
            "release": settings.release,
            "fingerprint": print_,
            "started": started,
            "finished": finished,
            "state": state,
            "score": score,
            "exported": exported,
        },
    )
