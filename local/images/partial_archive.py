"""Write image archives without the layers that a node already has.

The import of a changed launcher then takes 1 s.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

_NAME = "io.containerd.image.name"  # containerd's annotation with the name of an imported image


def write_partial_archive(archive: Path, out: IO[bytes], image: str, present: Collection[str]) -> int:
    """Copy an OCI archive without the layers that are already present.

    Args:
        archive: The complete archive.
        out: Stream to write the new archive to.
        image: Name of the image in the new archive.
        present: Digests (`sha256:<hex>`) of the blobs to leave out.

    Returns:
        The number of blobs that were left out.
    """
    left_out = 0
    with tarfile.open(archive) as source, tarfile.open(fileobj=out, mode="w|") as target:
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
