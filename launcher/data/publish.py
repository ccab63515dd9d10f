"""From a whole `.<digest>.tmp/` to the final names, the manifest last; and whether that was done before."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any

from launcher.data.pieces import pieces
from launcher.errors import StorageError
from launcher.files import UnreadableError, fsync_dir, patient, read_json, sealed, storage, write_json
from launcher.layout import Layout
from launcher.reporting.log import log
from launcher.settings import DataSettings

REPLACED = 20
"""Releases that a manifest remembers: more than ever share a folder by mistake."""


def is_published(settings: DataSettings) -> bool:
    """Whether a manifest of this digest is there and each file that it names has the size that it says."""
    layout = settings.layout
    try:
        manifest = read_json(layout.manifest)
    except UnreadableError as error:
        log.info("%s It is made again, with the data.", error)
        return False
    if manifest is None or manifest.get("dataDigest") != settings.data_digest:
        return False
    try:
        named = {path: int(about["bytes"]) for path, about in named_files(manifest, layout).items()}
        wrong = patient(layout.job, lambda: [path for path, size in named.items() if not _has(path, size)])
    except (KeyError, TypeError, ValueError):
        wrong = [layout.manifest]
    if wrong or manifest.get("splitCount") != settings.split_count:
        log.info(
            "the data of this digest is there, but not whole (%s): it is made again", wrong or "splitCount"
        )
        return False
    return True


def _has(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def named_files(manifest: dict[str, Any], layout: Layout) -> dict[Path, dict[str, Any]]:
    """Return {"bytes", "sha256"} of each file that a manifest names.

    Raises KeyError and such for a damaged one.
    """
    found = {layout.tables / str(table["name"]): table for table in manifest["tables"]}
    found[layout.test] = manifest["test"]
    if "rows" in manifest:  # an older launcher's has none
        found[layout.rows] = manifest["rows"]
    for shard in manifest["shards"]:
        folder = layout.shard(int(shard["index"]))
        for piece in pieces(layout, shard):
            found[folder / str(piece["name"])] = piece
    return found


def origin(settings: DataSettings) -> dict[str, Any]:
    """Return the manifest's fields that say whose data it is: `madeBy`, and `replaced`.

    `replaced` lists the data of other releases that lay here before, oldest first. A training pod whose own
    data is in it waits in vain: its data Job is complete, and Kubernetes does not start it again.
    """
    try:
        earlier = read_json(settings.layout.manifest) or {}
    except UnreadableError:
        earlier = {}
    own = {"namespace": settings.namespace, "release": settings.release}
    lost = [*earlier.get("replaced", ())]
    if earlier:
        lost.append({"dataDigest": earlier.get("dataDigest"), **earlier.get("madeBy", {})})
    others = [one for one in lost if any(one.get(key) != value for key, value in own.items())]
    made_by = {**own, "job": settings.k8s_job, "runId": settings.chart_run_id}
    return {"madeBy": made_by, "replaced": others[-REPLACED:]}


def publish(tmp: Path, layout: Layout, shards: int, manifest: dict[str, Any]) -> None:
    """Puts what is in `tmp` into place. A reader sees the old data, no manifest, or the new data whole.

    What was there before, and shards beyond the last, is moved into `tmp`, which is removed at the end.
    """
    with storage(layout.job):
        layout.manifest.unlink(missing_ok=True)
        fsync_dir(layout.job)
        old = tmp / "old"
        old.mkdir()
        for index in range(shards):
            target = layout.shard(index)
            target.parent.mkdir(exist_ok=True)
            _swap(tmp / "shards" / str(index), target, old / str(index))
            fsync_dir(target.parent)
        _swap(tmp / "tables", layout.tables, old / "tables")
        _swap(tmp / "test.txt", layout.test, old / "test.txt")
        _swap(tmp / "rows.json", layout.rows, old / "rows.json")
        for folder in list(layout.job.iterdir()):
            if is_shard_name(folder.name) and int(folder.name) >= shards and (folder / "data").is_dir():
                folder.rename(old / f"beyond-{folder.name}")
        fsync_dir(layout.job)
    write_json(layout.manifest, sealed(manifest))
    with contextlib.suppress(OSError):
        layout.data_failed.unlink()
    remove(tmp)


def _swap(new: Path, target: Path, old: Path) -> None:
    if target.exists() or target.is_symlink():
        target.rename(old)
    if new.exists():
        new.rename(target)


def is_shard_name(name: str) -> bool:
    """Whether a folder of the job is named like a shard: a number without leading zeros."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def remove(tmp: Path) -> None:
    """Removes a folder of ours. `shards`, by which it is known, goes last: this may be killed, too."""
    with contextlib.suppress(OSError):
        for child in list(tmp.iterdir()):
            if child.is_file():
                child.unlink()
            elif child.name != "shards":
                shutil.rmtree(child, ignore_errors=True)
    shutil.rmtree(tmp, ignore_errors=True)


def remove_leftovers(layout: Layout, keep: Path | None = None) -> None:
    """Removes what killed data Jobs left behind. Only with the folder for itself."""
    for folder in layout.job.glob(".*.tmp"):
        if folder != keep and folder.is_dir() and (folder / "shards").is_dir():
            log.info("removing %s, left behind by a data Job that was killed", folder)
            remove(folder)


def make_job_folder(layout: Layout) -> None:
    """Makes the job's folder. Raises `StorageError` when the volume is not there or not ours to write."""
    if not layout.job_path.is_dir():
        raise StorageError(
            f"{layout.job_path} (JOB_PATH) is not there: the shared storage is not mounted. See the pod's "
            "volume and the claim (kubectl describe pod)."
        )
    with storage(layout.job):
        layout.job.mkdir(exist_ok=True)
        if not os.access(layout.job, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(layout.job))
