"""List the files of one shard: `train.txt`, or one file for each part of the source (`files.json`)."""

from __future__ import annotations

import hashlib
from typing import Any

from launcher.errors import DataError
from launcher.io.files import UnreadableError, parse_json_object, read_bytes
from launcher.paths import JobPaths
from launcher.schema import ShardFiles

LIST = "files.json"


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
    content = read_bytes(path) or b""
    if hashlib.sha256(content).hexdigest() != shard["sha256"]:
        raise DataError(
            f"{path} is missing, or its sha256 is not the one in manifest.json: it was changed after the data "
            f"Job. {make_again_fix(layout)}"
        )
    try:
        found: list[dict[str, Any]] = parse_json_object(path, content, ShardFiles)["files"]
    except UnreadableError as error:
        raise DataError(f"{error} {make_again_fix(layout)}") from error
    return found
