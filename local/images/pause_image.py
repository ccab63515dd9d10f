"""Write the archive of the pause image (one layer with one program) without an image builder."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from local.errors import LocalError
from local.files_and_locks import write_file_atomically

_CATATONIT = Path(
    "/usr/bin/catatonit"
)  # Debian's static init; with `-P` it only waits, as the pause container of a pod must

_OCI = "application/vnd.oci.image"


def _add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def write_pause_archive(target: Path, name: str, program: Path = _CATATONIT) -> Path:
    """Write the image `name` with `program` as an OCI archive for containerd, and return `target`.

    The same program gives the same bytes.

    Raises:
        LocalError: `program` does not exist.
    """
    if not program.is_file():
        raise LocalError(f"{program} is missing, from which the pause image is built. Fix: make tools")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add_file(tar, "pause", program.read_bytes(), 0o755)
    config = {
        "architecture": platform.machine().replace("x86_64", "amd64").replace("aarch64", "arm64"),
        "os": "linux",
        "config": {"Entrypoint": ["/pause", "-P"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
    }
    blobs = [layer.getvalue(), json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _blob_descriptor(blobs[1], "config.v1+json"),
        "layers": [_blob_descriptor(blobs[0], "layer.v1.tar")],
    }
    blobs.append(json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **_blob_descriptor(blobs[2], "manifest.v1+json"),
                "annotations": {"io.containerd.image.name": name},
            }
        ],
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        _add_file(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for blob in blobs:
            _add_file(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        _add_file(tar, "index.json", json.dumps(index).encode())
    write_file_atomically(target, content.getvalue())
    return target


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob_descriptor(data: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(data), "size": len(data)}
