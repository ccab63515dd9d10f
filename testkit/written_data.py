"""Write a job's data as the data Job leaves it, without preparing it from a source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.paths import DataPaths, JobPaths


def data_folder(job: Path, digest: str) -> DataPaths:
    """Return the folder of the data that `write_data` writes for this data digest."""
    return JobPaths(job.parent, job.name).data(hashlib.sha256(digest.encode()).hexdigest())


def write_data(
    job: Path,
    train: Sequence[Sequence[str] | bytes],
    test: Sequence[str] | bytes = ("test line",),
    digest: str = "d1",
    tables: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Write the rows of the shards and of the test set, side tables and a program `mine`; return the manifest.

    Rows are lines, or record batches in bytes. For record batches, the numbers of lines in the manifest are numbers of
    bytes.
    """

    def write(path: Path, content: str | bytes) -> dict[str, Any]:
        content = content.encode() if isinstance(content, str) else content
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def write_lines(path: Path, lines: Sequence[str] | bytes) -> dict[str, Any]:
        content = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines)
        return {"lines": len(lines), **write(path, content)}

    data = data_folder(job, digest)
    shards = [
        {"index": index, **write_lines(data.shard(index) / "train.txt", lines)}
        for index, lines in enumerate(train)
    ]
    manifest = {
        **{"version": 2, "dataDigest": digest, "source": "file://x", "sha256": "", "member": ""},
        **{"format": "lines", "seed": 0, "testFraction": 0.1, "splitCount": len(train)},
        **{"content": data.root.name, "lines": sum(map(len, train)), "shards": shards},
        "test": write_lines(data.test, test),
        "tables": [{"name": name, **write(data.tables / name, text)} for name, text in tables.items()],
    }
    write(job / "mine" / "trainer_config.py", "settings()\n")
    write_manifest(job, manifest)
    return manifest


def write_manifest(job: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of the data digest in it, and that of the job."""
    layout = JobPaths(job.parent, job.name)
    for path in (layout.data_record(str(manifest["dataDigest"])), layout.manifest):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest))
