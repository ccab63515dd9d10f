"""Publish complete data: move it to its final names, the manifest last; check what data is published.

Also list a shard's files, make the job's folder, remove what killed data Jobs left, and find out whether another
release replaced the data.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import schema
from launcher.errors import DataError, StorageError
from launcher.io import files
from launcher.log import log
from launcher.paths import JobPaths
from launcher.schema import ManifestOrigin, ShardFiles
from launcher.settings import DataSettings, PodSettings

PUBLICATION = "publish.json"
"""File of the work folder with the manifest of a publication that has begun."""
LIST = "files.json"
"""File next to a shard of several files, with their names, sizes and sha256."""
REPLACED = 20
"""How many replaced releases a manifest lists at most: more than ever share a folder by mistake."""


def is_published(settings: DataSettings) -> bool:
    """Return whether the manifest has this data's digest, and each file in it exists with its size.

    A training pod checks only the files of its own shard, and those without a shard: with hundreds of trainers,
    all files would be so many that the check would take minutes in each pod.
    """
    shard = settings.completion_index if settings.in_training_pod else None
    try:
        manifest = files.read_json(settings.layout.manifest, shape=schema.ManifestFile)
    except files.UnreadableError as error:
        log.info("%s The data and the manifest are made again.", error)
        return False
    return (
        manifest is not None
        and manifest.get("dataDigest") == settings.data_digest
        and is_complete(settings, manifest, shard)
    )


def is_complete(settings: DataSettings, manifest: dict[str, Any], only_shard: int | None = None) -> bool:
    """Return whether the number of shards is right, and each file of all shards, or of one, exists with its size."""
    layout = settings.layout
    try:
        listed = files_of_manifest(manifest, layout, only_shard)
        sizes = {path: int(entry["bytes"]) for path, entry in listed.items()}
        wrong = files.retry_storage(
            layout.job,
            lambda: [p for p, size in sizes.items() if not p.is_file() or p.stat().st_size != size],
        )
    except (KeyError, TypeError, ValueError, DataError):  # DataError: a damaged files.json
        wrong = [layout.manifest]
    if wrong or manifest.get("splitCount") != settings.split_count:
        log.info("the published data is incomplete (wrong: %s): preparing it again", wrong or "splitCount")
        return False
    return True


def files_of_manifest(
    manifest: dict[str, Any], layout: JobPaths, only_shard: int | None = None
) -> dict[Path, dict[str, Any]]:
    """Return {"bytes", "sha256"} of each file that a manifest lists; of all shards, or of one.

    Raises:
        KeyError, TypeError, ValueError: the manifest is damaged.
    """
    if why := schema.mismatch(manifest, schema.ManifestFile):
        raise ValueError(why)
    found = {layout.tables / str(table["name"]): table for table in manifest["tables"]}
    found[layout.test] = manifest["test"]
    for shard in manifest["shards"]:
        if only_shard not in (None, int(shard["index"])):
            continue
        folder = layout.shard(int(shard["index"]))
        for file in list_shard_files(layout, shard):
            found[folder / str(file["name"])] = file
    return found


def origin(settings: DataSettings) -> dict[str, Any]:
    """Return the manifest's fields that identify the release of the data: `madeBy`, and `replaced`.

    `replaced` lists the data of other releases that this data replaced, oldest first. A training pod
    whose own data is in this list fails: two releases would replace each other's data again and again.
    """
    try:
        earlier = files.read_json(settings.layout.manifest, shape=ManifestOrigin) or {}
    except files.UnreadableError:
        earlier = {}
    own = {"namespace": settings.namespace, "release": settings.release}
    replaced = [*earlier.get("replaced", ())]
    if earlier:
        replaced.append({"dataDigest": earlier.get("dataDigest"), **earlier.get("madeBy", {})})
    others = [one for one in replaced if any(one.get(key) != value for key, value in own.items())]
    made_by = {**own, "job": settings.k8s_job, "runId": settings.chart_run_id}
    return {"madeBy": made_by, "replaced": others[-REPLACED:]}


def is_replaced(manifest: Mapping[str, Any] | None, settings: PodSettings) -> bool:
    """Return whether the data of `manifest` replaced that of this pod's release.

    A release with a new `runId` makes its data again.
    """
    return any(
        lost.get("dataDigest") == settings.data_digest and lost.get("runId") in (None, settings.chart_run_id)
        for lost in (manifest or {}).get("replaced", ())
    )


def describe_conflict(manifest: Mapping[str, Any], settings: PodSettings) -> str:
    """Return the message that the data of `manifest` replaced that of this pod's release."""
    theirs = describe_maker(manifest)
    return (
        f"jobName is {settings.job_name!r} in two releases on one storage: {theirs} has replaced the data of "
        f"release {settings.release} in namespace {settings.namespace} in {settings.layout.job}, a folder "
        "that can hold the data of one release only. Fix: give one of them another jobName; or uninstall "
        f"{theirs}, then start this one again with another runId, which makes its data again."
    )


def describe_maker(manifest: Mapping[str, Any]) -> str:
    """Return text that identifies the release which made the data; older manifests do not contain it."""
    made_by = manifest.get("madeBy") or {}
    if not made_by.get("release"):
        return "an unknown release"
    return f"release {made_by['release']} in namespace {made_by.get('namespace')}"


def publish(tmp: Path, layout: JobPaths, manifest: dict[str, Any]) -> None:
    """Move the data in `tmp` to its final place in the job's folder, and then write the manifest.

    At any moment, a reader finds the old data, no manifest, or the new data. Earlier data, and shards beyond the last
    one, move into `tmp`, which is removed at the end. If this pod is killed before that, another pod calls `publish`
    again with the manifest of PUBLICATION, which skips the files that are already in their final place.
    """
    files.write_json(tmp / PUBLICATION, manifest)
    shards = manifest["splitCount"]
    with files.storage_errors(layout.job):
        layout.manifest.unlink(missing_ok=True)
        files.fsync_dir(layout.job)
        old = tmp / "old"
        old.mkdir(exist_ok=True)
        for index in range(shards):
            target = layout.shard(index)
            target.parent.mkdir(exist_ok=True)
            _swap(tmp / "shards" / str(index), target, old / str(index))
            files.fsync_dir(target.parent)
        if manifest["tables"]:
            _swap(tmp / "tables", layout.tables, old / "tables")
        elif layout.tables.exists():
            layout.tables.rename(old / "tables")
        _swap(tmp / "test.txt", layout.test, old / "test.txt")
        for folder in list(layout.job.iterdir()):
            if is_shard_name(folder.name) and int(folder.name) >= shards and (folder / "data").is_dir():
                folder.rename(old / f"beyond-{folder.name}")
        files.fsync_dir(layout.job)
    files.write_json(layout.manifest, files.with_checksum(manifest))
    with contextlib.suppress(OSError):
        layout.data_failed.unlink()
    remove_folder(tmp)


def _swap(new: Path, target: Path, old: Path) -> None:
    if not new.exists():  # moved before this pod continued the publication
        return
    if target.exists() or target.is_symlink():
        target.rename(old)
    new.rename(target)


def is_shard_name(name: str) -> bool:
    """Return whether a folder of the job has the name of a shard: a number without leading zeros."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def remove_folder(tmp: Path) -> None:
    """Remove a data Job's work folder.

    Its folder `shards`, by which a work folder is recognised, is removed last: after a kill, the next Job finds
    and removes the rest.
    """
    with contextlib.suppress(OSError):
        for child in list(tmp.iterdir()):
            if child.is_file():
                child.unlink()
            elif child.name != "shards":
                shutil.rmtree(child, ignore_errors=True)
    shutil.rmtree(tmp, ignore_errors=True)


def remove_leftover_folders(layout: JobPaths, keep: Path | None = None) -> None:
    """Remove the work folders of killed data Jobs, except `keep`. The caller must hold the exclusive lock."""
    for folder in layout.job.glob(".*.tmp"):
        if folder != keep and folder.is_dir() and (folder / "shards").is_dir():
            log.info("removing %s, left by a data Job that was killed", folder)
            remove_folder(folder)


def make_job_folder(layout: JobPaths) -> None:
    """Make the job's folder. Raises `StorageError` when the volume is not mounted or not writable."""
    if not layout.job_path.is_dir():
        raise StorageError(
            f"JOB_PATH {layout.job_path} does not exist: the shared storage is not mounted. Fix: check the pod's "
            "volume and its claim (kubectl describe pod)."
        )
    with files.storage_errors(layout.job):
        layout.job.mkdir(exist_ok=True)
        if not os.access(layout.job, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(layout.job))


def make_again_fix(layout: JobPaths) -> str:
    """Return the `Fix:` of messages about published data that is damaged, which says how to make the data again.

    The manifest must be removed first: with it, the training pods of the new run would use the damaged data at once.
    """
    return (
        f"Fix: delete {layout.manifest} in a pod or on a machine that mounts the shared storage, then start the run "
        "again with another runId (helm upgrade with --reset-then-reuse-values --set-string runId=TEXT), which makes "
        "its data again."
    )


def list_shard_files(layout: JobPaths, shard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return [{"name", "bytes", "sha256"}] of a shard's files, in the order of the source.

    `shard` is the shard's entry in the manifest.

    Raises:
        DataError: `files.json` is not the one of the manifest.
    """
    if not shard.get("parts"):
        return [{"name": "train.txt", "bytes": shard["bytes"], "sha256": shard.get("sha256")}]
    path = layout.shard(int(shard["index"])) / LIST
    content = files.read_bytes(path) or b""
    if hashlib.sha256(content).hexdigest() != shard["sha256"]:
        raise DataError(
            f"{path} is missing, or its sha256 is not the one in manifest.json: it was changed after the data "
            f"Job. {make_again_fix(layout)}"
        )
    try:
        found: list[dict[str, Any]] = files.parse_json_object(path, content, ShardFiles)["files"]
    except files.UnreadableError as error:
        raise DataError(f"{error} {make_again_fix(layout)}") from error
    return found
