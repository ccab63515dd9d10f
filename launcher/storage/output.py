"""Which earlier output a run goes on with, and which is moved aside (DESIGN, decision 7).

    run.json fits this run        → go on with it
    runs/<id>/run.json fits       → move output/ aside and bring that one back
    run.json is another's         → move output/ aside and begin anew
    no readable run.json, no save → the same
    no readable run.json, saves   → refused: it is unknown which run saved them

A damaged or missing run.json is read from its copy, run.copy.json.
A read that fails is none of these: it is tried again, and then ends this launcher.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files, record
from launcher.errors import DataError, StorageError
from launcher.layout import Layout, Output, position
from launcher.reporting.log import log
from launcher.settings import TrainSettings
from launcher.storage.lock import LockLostError, RunLock


def fingerprint(settings: TrainSettings, program_sha256: str) -> dict[str, Any]:
    """What two runs must share for one to go on where the other ended.

    Not in it: passes, image, resources, log periods, and the number of pservers a pod (`portsNum`) with a
    runtime whose saves any number of them can load.
    """
    return {
        "program": program_sha256,
        "dataDigest": settings.data_digest,
        "trainers": settings.trainers,
        **({} if settings.runtime == "fleet" else {"portsNum": settings.ports_num}),
        "runtime": settings.runtime,
        "mode": settings.mode,
        "batchSize": settings.batch_size,
        "extraArgs": list(settings.extra_args),
        **({"initFrom": settings.init_from} if settings.init_from else {}),
        **({"fresh": settings.fresh} if settings.fresh else {}),
    }


@dataclass(frozen=True)
class Adopted:
    """The output folder that this run writes to."""

    output: Output
    attempt: int
    """0 in a fresh output, one more than the newest attempt in one that is gone on with."""
    earlier: dict[str, Any]
    """run.json as it was, or {}."""


def check_folders(layout: Layout) -> None:
    """Refuse to write to output/ or runs/ when that would follow a symbolic link, or is no folder.

    Raises:
        StorageError: with the path and the fix; also for a link directly in output/.
    """
    for path in (layout.output, layout.runs, *(layout.output / name for name in files.names(layout.output))):
        with files.storage(path):
            what = "a symbolic link" if path.is_symlink() else ""
            folder = path.parent == layout.job or path.name.startswith("node_")
            if folder and not what and path.exists() and not path.is_dir():
                what = "a file"
        if what:
            raise StorageError(
                f"{path} is {what}, but the launcher writes there and follows no link out of the job's "
                "folder. Fix: remove it, or move what it points to into its place, then start the run again."
            )


def adopt(settings: TrainSettings, print_: dict[str, Any], lock: RunLock) -> Adopted:
    """With the lock held and kept: keeps `output/`, or moves it aside and begins (or brings back) another.

    Only rank 0 calls this. Raises `DataError` for saves whose run.json is missing or unreadable, what
    `files.storage` makes of a failing storage, and `LockLostError` when a rival takes the name in between.
    """
    layout, pause = settings.layout, lock.pause
    output = Output(layout.output)
    earlier = _earlier(output, pause)
    if earlier is not None and earlier.get("fingerprint") == print_:
        log.info("going on with output/ of run %s: same fingerprint", earlier.get("runId"))
        return Adopted(output, _next_attempt(output, earlier, pause), earlier)
    back = _matching(layout, print_, pause)
    if back is None and not any(_kept(name) for name in files.names(output.root, pause)):
        return Adopted(output, 0, {})
    moved = _swap(layout, earlier, back, run_id=settings.run_id, lock=lock)
    log.info("moved output/ of another fingerprint to %s", moved.relative_to(layout.job))
    if back is None:
        return Adopted(output, 0, {})
    log.info("brought back runs/%s: same fingerprint", back.name)
    earlier = _earlier(output, pause) or {}
    return Adopted(output, _next_attempt(output, earlier, pause), earlier)


def _kept(name: str) -> bool:
    """Whether something in an output is worth being moved aside: not the lock, nor temporary files."""
    return not name.startswith((".", "run.lock"))


def _earlier(output: Output, pause: Callable[[float], None]) -> dict[str, Any] | None:
    """run.json; None when it is absent or no JSON object, and nothing can be lost by that."""
    why = "is missing"
    try:
        found = read_run(output, pause)
    except files.UnreadableError as error:
        found, why = None, f"cannot be used ({error})"
    saves = [name for name in files.names(output.root, pause) if name.startswith("pass-")]
    if found is None and saves:
        raise DataError(
            f"{output.run_json} {why}, but {output.root} holds saves ({saves[0]} to {saves[-1]}): it is "
            "unknown which run saved them, so nothing was moved or started from scratch. Put run.json or "
            "run.copy.json back from a backup of the volume; or, to start from scratch, move the folder "
            f"away: mv {output.root} {output.root}-kept."
        )
    return found


def read_run(output: Output, pause: Callable[[float], None] = time.sleep) -> dict[str, Any] | None:
    """Return an output's run record: run.json, else its copy; None when neither is there.

    Raises:
        UnreadableError: it is damaged, and there is no intact copy.
        StorageError, StorageFailedError: as `files.read_bytes`.
    """
    found, damage = record.read(output, pause)
    if damage is not None and found is None:
        raise damage
    if damage is not None:
        copy = output.run_copy.name
        log.warning("%s Its copy %s is used, and run.json is written again.", damage, copy)
    return found


def _glance(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """What can be done without: {} when it is absent or damaged, never when a read fails."""
    try:
        return read() or {}
    except files.UnreadableError as error:
        log.warning("%s It counts as absent.", error)
        return {}


def _matching(layout: Layout, print_: dict[str, Any], pause: Callable[[float], None]) -> Path | None:
    """The newest earlier run with this fingerprint, for a rollback."""
    found = []
    for name in files.names(layout.runs, pause):
        if name.startswith("."):  # `clean` is removing it
            continue
        run = _glance(functools.partial(read_run, Output(layout.run(name)), pause))
        if run.get("fingerprint") == print_:
            found.append((float(run.get("started") or 0), name))
    return layout.run(max(found)[1]) if found else None


def _swap(
    layout: Layout, earlier: dict[str, Any] | None, back: Path | None, *, run_id: str, lock: RunLock
) -> Path:
    """Moves output/ to runs/ and another folder, which already holds our lock, into its place."""
    with files.storage(layout.job), lock.still():
        layout.runs.mkdir(exist_ok=True)
        aside = _free_name(layout, str((earlier or {}).get("runId") or "unknown"))
        incoming = back or layout.output_tmp(run_id)
        incoming.mkdir(exist_ok=True)
        lock.plant(Output(incoming).lock)
        layout.output.rename(aside)
        try:
            incoming.rename(layout.output)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise LockLostError(
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


def _next_attempt(output: Output, earlier: dict[str, Any], pause: Callable[[float], None]) -> int:
    """One more than the newest that run.json or status.json knows."""
    told = (
        earlier.get("attempt"),
        _glance(lambda: files.read_json(output.status_json, pause)).get("attempt"),
    )
    return 1 + max((number for number in told if isinstance(number, int)), default=0)


def make_room(output: Output, rank: int, attempt: int) -> None:
    """Before attempt `attempt`: this rank's logs of the one before go to `attempt-<attempt - 1>/`.

    Safe to be called again, and for a rank that left nothing. What is there already is not overwritten.
    """
    node = output.node(rank)

    def move() -> None:
        node.mkdir(parents=True, exist_ok=True)
        logs = [name for name in files.names(node) if name.endswith(".log")] if attempt else []
        if not logs:
            return
        earlier = output.attempt(rank, attempt - 1)
        earlier.mkdir(exist_ok=True)
        there = set(files.names(earlier))
        for name in logs:
            new, count = name, 1
            while new in there:
                count += 1
                new = f"{name.removesuffix('.log')}.{count}.log"
            with contextlib.suppress(FileNotFoundError):  # another pod of this rank did it
                (node / name).rename(earlier / new)

    files.patient(node, move)


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
    attempt: int,
    restarts: list[dict[str, Any]],
    holder: str,
    plan: Mapping[str, Any] | None = None,
    cause: str | None = None,
    exit_code: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write run.json and its copy. The score is of `model/score.json`, or what an earlier end wrote.

    `state`: training|stopped|complete|failed. `restarts`: `{"attempt", "cause", "at": unix seconds}` each.
    `holder`: the lock's token. `plan`: what else a later rank 0 needs (`launcher/gang/lead.py: again`).
    `cause` and `exit_code` stand there only when they are given. `check` raises when the lease was lost
    (`RunLock.check`): the file is another's then.
    """
    score = _glance(lambda: files.read_json(output.model / "score.json"))
    score = score or _glance(lambda: read_run(output)).get("score", {})
    end = {"cause": cause, "exitCode": exit_code}
    value = {
        "runId": settings.run_id,
        "outputId": output_id,
        "namespace": settings.namespace,
        "release": settings.release,
        "fingerprint": print_,
        "config": f"{settings.config_dir}/{settings.config_file}",
        "passes": settings.passes,
        **_best(output, settings),
        "started": started,
        "finished": finished,
        "state": state,
        "attempt": attempt,
        "restarts": restarts,
        "holder": holder,
        **(plan or {}),
        **{key: told for key, told in end.items() if told is not None},
        "score": score,
        "exported": exported,
    }
    for path in (output.run_json, output.run_copy):
        files.patient(path, functools.partial(files.write_json, path, files.sealed(value), check))


def _best(output: Output, settings: TrainSettings) -> dict[str, Any]:
    """With `training.keepBest`: that, `training.patience`, and the pass (from 0) that the model is of."""
    if not settings.keep_best:
        return {}
    at = position(str(_glance(lambda: files.read_json(output.model / "model.json")).get("checkpoint")))
    of_model = {"modelPass": at.passes - 1} if at else {}
    return {"keepBest": settings.keep_best, "patience": settings.patience, **of_model}
