"""Reuse data with the same content instead of making it again: this job's own, or that of another job on the
same storage by hard links.

Removing or replacing one job's data leaves the other job's as it was, since a file exists until its last
hard link is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.dataprep.publish_data import files_of_manifest, is_complete, origin
from launcher.dataprep.source import source_name
from launcher.errors import DeadlineError, LauncherError, StoppedError
from launcher.io.files import (
    UnreadableError,
    fsync_dir,
    read_json,
    sha256_file,
    storage_errors,
    with_checksum,
    write_json,
)
from launcher.log import log
from launcher.paths import JobPaths
from launcher.schema.data_files import MANIFEST_VERSION, ManifestFile
from launcher.settings import DataSettings


def content_digest(s: DataSettings, plan: list[Any]) -> str:
    """Return a digest of everything that determines the shards' bytes; the job's name does not.

    `plan` is the parts as JSON, with name, size and version of each object.
    """
    shape = [s.format, s.delimiter, s.header, s.columns, s.quoting, s.encoding, s.seed, s.split_count]
    name = source_name(s) if s.source_secret else s.source
    source = [name, s.sha256, s.member, s.tables, s.test_source, s.test_fraction, s.test_rows]
    return hashlib.sha256(json.dumps([MANIFEST_VERSION, shape, source, plan]).encode()).hexdigest()


def keep_unchanged_data(settings: DataSettings, content: str) -> bool:
    """Publish this job's data again for this Job if its source has not changed since it was read.

    Only the manifest is written: with this Job's data digest, and with `reusedFrom`. The pod must hold the exclusive
    lock. `content` is the data's `content_digest`; empty if it is unknown, and then no data is reused.

    Returns:
        False when the present data is incomplete or has other content.
    """
    layout = settings.layout
    try:
        manifest = read_json(layout.manifest, shape=ManifestFile) if content else None
    except UnreadableError:
        return False
    if not manifest or manifest.get("content") != content or not is_complete(settings, manifest):
        return False
    reader = _reader(manifest)
    log.info("the source has not changed since Job %s read it: its data is used again", reader)
    manifest |= {"dataDigest": settings.data_digest, "reusedFrom": reader, **origin(settings)}
    with storage_errors(layout.manifest):
        write_json(layout.manifest, with_checksum(manifest))
        layout.data_failed.unlink(missing_ok=True)
    return True


def _reader(manifest: dict[str, Any]) -> str:
    """Return the name of the Job that read the source."""
    return str(manifest.get("reusedFrom") or (manifest.get("madeBy") or {}).get("job") or "unknown")


def link_from_other_job(
    layout: JobPaths, content: str, tmp: Path, check: Callable[[], None]
) -> dict[str, Any] | None:
    """Hard-link the data files of another job with the same content into `tmp`.

    If one of the files does not have the sha256 that the manifest lists for it, that job's data is not used.
    `content` is as in `keep_unchanged_data`. `check` is called while files are read; it may raise `DeadlineError`.

    Returns:
        The other job's manifest, with `reusedFrom`; None when no job has such data.
    """
    for path in sorted(layout.job_path.glob("*/manifest.json")) if content else ():
        other = JobPaths(layout.job_path, path.parent.name)
        if other.job in {layout.job, layout.sources}:
            continue
        try:
            manifest = read_json(path, shape=ManifestFile)
            if not manifest or manifest.get("content") != content:
                continue
            _link_files(other, manifest, tmp, check)
            if read_json(path) == manifest:  # a data Job that replaces data removes the manifest first
                log.info("linked the data of job %s, which has the same content", other.job_name)
                manifest.pop("rows", None)  # a file of older launchers, which is not linked
                return manifest | {"reusedFrom": _reader(manifest)}
        except (DeadlineError, StoppedError):
            raise
        except (LauncherError, OSError, KeyError, TypeError, ValueError) as error:
            log.info(
                "not using the data of job %s (%s); trying other jobs, then the source", other.job_name, error
            )
    return None


def _link_files(other: JobPaths, manifest: dict[str, Any], tmp: Path, check: Callable[[], None]) -> None:
    (tmp / "shards").mkdir(parents=True, exist_ok=True)  # `check` touches a file there
    for path, entry in files_of_manifest(manifest, other).items():
        # The size first, since it costs nothing. Staging would reject wrong bytes in each job that links them.
        if path.stat().st_size != entry["bytes"] or sha256_file(path, check) != entry["sha256"]:
            raise ValueError(f"{path} does not have the sha256 of its manifest")
    targets = {other.tables: tmp / "tables"} if manifest["tables"] else {}
    for shard in manifest["shards"]:
        targets[other.shard(shard["index"])] = tmp / "shards" / str(shard["index"])
    os.link(other.test, tmp / other.test.name)
    for source, target in targets.items():
        target.mkdir(parents=True)
        for file in source.iterdir():
            os.link(file, target / file.name)
        fsync_dir(target)
