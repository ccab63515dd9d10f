"""Fixtures that run the data preparation in this process, on a temporary folder as shared storage."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.dataprep import data_job, sources, text_lines
from launcher.dataprep.prepared_data import PreparedData
from launcher.io import files
from launcher.io.retry import Retry
from launcher.paths import JobPaths
from launcher.settings import DataSettings
from testkit.pod_settings import pod_environ

LINES = b"".join(b"%d\tthe text of line %d\n" % (number % 2, number) for number in range(1000))
ALL = sorted(LINES.split(b"\n")[:-1])
"""The lines of LINES, sorted."""
PART = 4000
"""Bytes of a part in tests; LINES are some 25 kB."""


Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Names and contents of an archive's files; pairs may repeat a name."""


def _pairs(members: Members) -> Iterable[tuple[str, bytes]]:
    return members.items() if isinstance(members, Mapping) else members


def zipped(members: Members, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, content in _pairs(members):
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: Members, mode: str = "w:gz", form: int = tarfile.PAX_FORMAT, **headers: str) -> bytes:
    """Return a tar archive; `headers` are PAX headers of each file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in _pairs(members):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), headers
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@dataclass
class Pod:
    """A stand-in for one pod of the data Job: its shared storage, and `prepare` to run it with settings."""

    storage: Path
    environ: dict[str, Any]
    """Fields of DataSettings, and environment variables."""

    @property
    def job(self) -> Path:
        return self.storage / self.environ["JOB_NAME"]

    def source(self, content: bytes, name: str = "in.txt") -> str:
        """Write a file into sources/ on the storage, make it data.source; return its file:// address."""
        path = self.storage / "sources" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (zlib.crc32(content),) * 2)  # what two storages have of it is the same
        self.environ["source"] = f"file://{name}"
        return f"file://{name}"

    def folder(self, contents: Mapping[str, bytes], name: str = "days") -> str:
        """Write files by their paths below a folder of sources/ on the storage; return the folder's address."""
        for path, content in contents.items():
            file = self.storage / "sources" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return f"file://{name}"

    def env(self, **values: Any) -> dict[str, str]:
        """Return the pod's environment variables; `values` are fields of DataSettings, in upper case too."""
        own = {key.lower(): value for key, value in values.items()}
        return pod_environ(DataSettings, **self.environ | own)

    def settings(self, **values: Any) -> DataSettings:
        return DataSettings.from_environ(self.env(**values))

    def prepare(
        self, chunk: int = text_lines.CHUNK, part_bytes: int | None = None, **values: Any
    ) -> Mapping[str, Any]:
        """Run the data preparation in this process, and return the content of manifest.json.

        Args:
            chunk: bytes that are read at once.
            part_bytes: bytes of a part; None: as in a pod.
            values: see `env`.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_lines, "CHUNK", chunk)
            if part_bytes:
                patch.setattr(sources, "part_size", lambda _: part_bytes)
            assert data_job.main(self.settings(**values), retry=Retry(tries=5, base=0.001)) == 0
        manifest = files.read_json(self.job / "manifest.json")
        assert manifest is not None
        return manifest

    def lines(self, shard: int, name: str = "train.txt") -> list[bytes]:
        content = (self.job / str(shard) / "data" / name).read_bytes()
        assert not content or content.endswith(b"\n")
        return content.split(b"\n")[:-1]

    def test(self) -> list[bytes]:
        """Return the lines of the test set, test.txt."""
        return (self.job / "test.txt").read_bytes().split(b"\n")[:-1]

    def shards(self, count: int = 3) -> list[list[bytes]]:
        return [self.lines(index) for index in range(count)]

    def train(self, count: int = 3) -> list[bytes]:
        """Return the train lines of all shards, one shard after the other."""
        return [line for shard in self.shards(count) for line in shard]

    def listed_lines(self) -> list[bytes]:
        """Return the train lines of all shards of the manifest, after checking each file's size and sha256."""
        layout = JobPaths(self.storage, "job")
        manifest = json.loads((self.job / "manifest.json").read_text())
        found: list[bytes] = []
        for shard in manifest["shards"]:
            before = len(found)
            data = PreparedData(layout, manifest)
            for file in data.shard_files(shard):
                content = (data.paths.shard(shard["index"]) / file["name"]).read_bytes()
                assert hashlib.sha256(content).hexdigest() == file["sha256"]
                assert len(content) == file["bytes"]
                found += content.split(b"\n")[:-1]
            assert len(found) - before == shard["lines"]
        return found

    def failure(self) -> Mapping[str, Any]:
        failed: dict[str, Any] = json.loads((self.job / "data-failed.json").read_text())
        return failed

    def leftovers(self) -> list[str]:
        """Return names of temporary files and folders that are left in `.data/` and in the job's folder."""
        paths = (*self.job.iterdir(), *self.data.iterdir())
        return [path.name for path in paths if path.suffix in (".tmp", ".alive")]

    @property
    def data(self) -> Path:
        """Return the folder of the prepared data of all jobs."""
        return self.storage / ".data"

    def inode(self) -> int:
        """Return a number that changes when the data is prepared again."""
        return (self.job / "0" / "data" / "train.txt").stat().st_ino

    def work_folder(self) -> Path:
        """Return the only work folder of data Jobs."""
        (found,) = self.data.glob(".*.tmp")
        return found


def prepared_files(pod: Pod) -> dict[str, bytes]:
    """Return the prepared files by name, after a comparison with their list and the manifest."""
    manifest = json.loads((pod.job / "manifest.json").read_text())
    folder = pod.data / manifest["content"]
    content = (folder / "files.jsonl").read_bytes()
    assert hashlib.sha256(content).hexdigest() == manifest["files"]["list"]["sha256"]
    root = folder / "files"
    found = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    read = {name: path.read_bytes() for name, path in found.items()}
    entries = [json.loads(line) for line in content.splitlines()]
    assert {one["name"]: (one["bytes"], one["sha256"]) for one in entries} == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in read.items()
    }
    assert (manifest["files"]["count"], manifest["files"]["bytes"]) == (
        len(read),
        sum(map(len, read.values())),
    )
    assert not any(path.stat().st_mode & 0o222 for path in found.values())
    assert not pod.leftovers()
    return read


def make_pod(storage: Path) -> Pod:
    storage.mkdir(exist_ok=True)
    environ = {
        "JOB_NAME": "job",
        "JOB_PATH": str(storage),
        "JOB_NAMESPACE": "paddle",
        "release": "paddle-training",
        "PADDLE_LAUNCHER_K8S_JOB": "job-data-12345678",
        "data_digest": "0123456789abcdef",
        "PADDLE_LAUNCHER_TERMINATION_LOG": str(storage / "termination-log"),
        "test_fraction": 0,
        "SPLIT_COUNT": "3",
    }
    return Pod(storage, environ)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return make_pod(tmp_path / "storage")


@pytest.fixture
def new_pod(tmp_path: Path) -> Callable[[], Pod]:
    """Return a function that makes another pod, with a storage of its own."""
    made = iter(range(10_000))
    return lambda: make_pod(tmp_path / f"storage-{next(made)}")
