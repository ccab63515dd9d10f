"""Data that another job on the same storage has made already: linked instead of made again.

Hard links are names of their own: removing or replacing one job's data leaves the other's as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.data.finish import VERSION
from launcher.data.publish import named_files
from launcher.errors import DeadlineError, LauncherError, StoppedError
from launcher.files import fsync_dir, read_json, sha256_file
from launcher.layout import Layout
from launcher.reporting.log import log
from launcher.settings import DataSettings


def content_of(settings: DataSettings, plan: list[Any], named: bool) -> str:
    """Return a digest of everything that determines the shards' bytes; the job's name is not part of it.

    Empty when nothing shows that the source is unchanged. `plan` lists the source's objects with size and
    version; `named`: it does so for all of the source.
    """
    if not named:
        return ""
    s = settings
    shape = [s.format, s.delimiter, s.header, s.columns, s.encoding, s.seed, s.split_count]
    source = [s.source, s.sha256, s.member, s.tables, s.test_source, s.test_fraction, s.test_rows]
    return hashlib.sha256(json.dumps([VERSION, shape, source, plan]).encode()).hexdigest()


def link(layout: Layout, content: str, tmp: Path, check: Callable[[], None]) -> dict[str, Any] | None:
    """Link another job's data of this content into `tmp`; return its manifest, or None when there is none.

    Data of which a file does not have the manifest's sha256 is left out. `check` is called while the files
    are read, and may raise `DeadlineError` to end it.
    """
    for path in sorted(layout.job_path.glob("*/manifest.json")) if content else ():
        other = Layout(layout.job_path, path.parent.name)
        if other.job in {layout.job, layout.sources}:
            continue
        try:
            manifest = read_json(path)
            if not manifest or manifest.get("content") != content:
                continue
            _link_all(other, manifest, tmp, check)
            if read_json(path) == manifest:  # a data Job that replaces data removes the manifest first
                log.info("the data of job %s has the same content: linked, not made again", other.job_name)
                return manifest
        except (DeadlineError, StoppedError):
            raise
        except (LauncherError, OSError, KeyError, TypeError, ValueError) as error:
            log.info("the data of job %s is not used: %s", other.job_name, error)
    return None


def _link_all(other: Layout, manifest: dict[str, Any], tmp: Path, check: Callable[[], None]) -> None:
    (tmp / "shards").mkdir(parents=True, exist_ok=True)  # there `check` shows that this pod is alive
    for path, about in named_files(manifest, other).items():
        # The size first: it costs nothing. Staging would reject other bytes in each job that links them.
        if path.stat().st_size != about["bytes"] or sha256_file(path, check) != about["sha256"]:
            raise ValueError(f"{path} has not the bytes of its manifest")
    targets = {other.tables: tmp / "tables"} if manifest["tables"] else {}
    for shard in manifest["shards"]:
        targets[other.shard(shard["index"])] = tmp / "shards" / str(shard["index"])
    for source, target in targets.items():
        target.mkdir(parents=True)
        for file in source.iterdir():
            os.link(file, target / file.name)
        fsync_dir(target)
    for file in (other.test, other.rows):
        os.link(file, tmp / file.name)
