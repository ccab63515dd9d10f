"""The files of a shard: one, or one of each part of a large source, listed beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from launcher.errors import DataError
from launcher.files import read_bytes
from launcher.layout import Layout

LIST = "files.json"


def pieces(
    layout: Layout, shard: dict[str, Any], pause: Callable[[float], None] | None = None
) -> list[dict[str, Any]]:
    """[{"name", "bytes", "sha256"}] of a manifest's entry of a shard, in the order of the source.

    Raises `DataError` when the list is not the one that the manifest means.
    """
    if not shard.get("parts"):
        return [{"name": "train.txt", "bytes": shard["bytes"], "sha256": shard.get("sha256")}]
    path = layout.shard(int(shard["index"])) / LIST
    content = (read_bytes(path, pause) if pause else read_bytes(path)) or b""
    if hashlib.sha256(content).hexdigest() != shard["sha256"]:
        raise DataError(
            f"{path} is missing, or not the one that the manifest means: it was changed or cut after the "
            "data Job. Run the data Job again (delete manifest.json)."
        )
    found: list[dict[str, Any]] = json.loads(content)["files"]
    return found
