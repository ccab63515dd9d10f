"""An image archive without the layers that a node has: a changed launcher is then imported in a second."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

_NAME = "io.containerd.image.name"  # by which containerd names what it imports


def write_slim(whole: Path, out: IO[bytes], image: str, present: Collection[str]) -> int:
    """Copy the OCI archive `whole` to `out` without the blobs of `present` (`sha256:<hex>`), named `image`.

    Manifests and configurations are always written. Returns how many layers were left out.
    """
    left_out = 0
    with tarfile.open(whole) as source, tarfile.open(fileobj=out, mode="w|") as target:
        for entry in source:
            digest = ":".join(Path(entry.name).parts[-2:])
            if entry.isfile() and digest in present:
                left_out += 1
                continue
            stream = source.extractfile(entry) if entry.isfile() else None
            if entry.name.removeprefix("./") == "index.json" and stream is not None:
                index = json.load(stream)
                for manifest in index["manifests"]:
                    manifest["annotations"] = {_NAME: image}
                data = json.dumps(index).encode()
                entry.size = len(data)
                target.addfile(entry, io.BytesIO(data))
            else:
                target.addfile(entry, stream)
    return left_out
