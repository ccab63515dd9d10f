"""A one-layer image archive written by hand: enough for the pause image, and no builder is needed for it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from local.errors import LocalError
from local.files import write_whole

_CATATONIT = Path("/usr/bin/catatonit")  # Debian's static init; `-P` makes it pause, as a pod's sandbox needs

_OCI = "application/vnd.oci.image"


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def pause_archive(target: Path, name: str, program: Path = _CATATONIT) -> Path:
    """Write the pause image `name` as an archive that containerd imports; the same program gives the same
    bytes.

    Raises:
        LocalError: catatonit is not installed.
    """
    if not program.is_file():
        raise LocalError(f"{program} is missing, of which the pause image is made; `make tools` installs it.")
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "pause", program.read_bytes(), 0o755)
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
        "config": _described(blobs[1], "config.v1+json"),
        "layers": [_described(blobs[0], "layer.v1.tar")],
    }
    blobs.append(json.dumps(manifest).encode())
    index = {
        "schemaVersion": 2,
        "manifests": [
            {**_described(blobs[2], "manifest.v1+json"), "annotations": {"io.containerd.image.name": name}}
        ],
    }
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for blob in blobs:
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        _add(tar, "index.json", json.dumps(index).encode())
    write_whole(target, whole.getvalue())
    return target


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _described(data: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(data), "size": len(data)}
