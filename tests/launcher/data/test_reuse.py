"""Data of one content is made once on a storage, whatever the jobs are called."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.data import prepare
from tests.launcher.core.faulty import faulty
from tests.launcher.data.conftest import LINES, Pod, zipped


def tree(job: Path) -> dict[str, bytes]:
    """All files of a job but what names it."""
    own = ("manifest.json", ".prepare")
    return {
        path.relative_to(job).as_posix(): path.read_bytes()
        for path in sorted(job.rglob("*"))
        if path.is_file() and not path.name.startswith(own)
    }


def other(pod: Pod, name: str = "job-2") -> Pod:
    """A data pod of another job, with the same values."""
    own = {"JOB_NAME": name, "PADDLE_LAUNCHER_DATA_DIGEST": name, "PADDLE_LAUNCHER_RELEASE": name}
    return Pod(pod.storage, {**pod.environ, **own})


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were read and dealt."""
    made: list[str] = []
    run = prepare.PartJob.run

    def counted(self: Any, number: int, rows: int) -> dict[str, Any]:
        made.append(str(number))
        return run(self, number, rows)

    monkeypatch.setattr(prepare.PartJob, "run", counted)
    return made


@pytest.mark.parametrize("kind", ["file", "archive", "parts"])
def test_a_second_job_links_the_same_data_and_outlives_the_first(
    pod: Pod, parts: list[str], kind: str
) -> None:
    values: dict[str, Any] = {"TEST_FRACTION": 0.1}
    if kind == "archive":
        content = zipped({"in": LINES, "t": b"table"})
        pod.source(content, "z")
        values |= {"MEMBER": "in", "TABLES": ["t"], "SHA256": hashlib.sha256(content).hexdigest()}
    else:
        pod.source(LINES)
    size = 5000 if kind == "parts" else None
    first = pod.prepare(part_bytes=size, **values)
    count, second = len(parts), other(pod)
    manifest = second.prepare(part_bytes=size, **values)
    assert len(parts) == count, "the source was read once"
    assert (manifest["dataDigest"], manifest["madeBy"]["release"]) == ("job-2", "job-2")
    assert manifest["shards"] == first["shards"]
    made = tree(pod.job)
    assert tree(second.job) == made
    assert not second.leftovers()
    shutil.rmtree(pod.job)
    assert tree(second.job) == made
    assert second.prepare(part_bytes=size, **values) == manifest


def test_other_data_is_made_anew(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    pod.prepare()
    other(pod, "b").prepare(SEED="3")
    assert len(parts) == 2
    path = pod.storage / "sources" / "in.txt"
    os.utime(path, (1, 1))  # written again, who knows by what
    other(pod, "c").prepare()
    assert len(parts) == 3
    (pod.storage / "c" / "1" / "data" / "train.txt").write_bytes(b"cut\n")
    other(pod, "d").prepare()
    assert len(parts) == 4


@pytest.mark.parametrize("name", ["1/data/train.txt", "test.txt", "rows.json", "tables/t"])
@pytest.mark.parametrize("size", [None, 5000])
def test_data_with_other_bytes_of_the_same_length_is_made_anew(
    pod: Pod, parts: list[str], size: int | None, name: str
) -> None:
    values: dict[str, Any] = {"TEST_FRACTION": 0.1}
    if name.startswith("tables"):
        content = zipped({"in": LINES, "t": b"table"})
        pod.source(content, "z")
        values |= {"MEMBER": "in", "TABLES": ["t"], "SHA256": hashlib.sha256(content).hexdigest()}
    else:
        pod.source(LINES)
    pod.prepare(part_bytes=size, **values)
    made, count = tree(pod.job), len(parts)
    path = pod.job / name
    if not path.exists():
        path = path.with_name("train-00002.txt")
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    second = other(pod)
    second.prepare(part_bytes=size, **values)
    assert len(parts) == 2 * count
    assert tree(second.job) == made


def test_what_a_broken_off_linking_left_is_not_written_into(
    pod: Pod, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both names are of one file: what is written to one is in the other job's data, too."""
    pod.source(LINES)
    pod.prepare(TEST_FRACTION=0.1)
    second = other(pod)
    monkeypatch.setattr(prepare, "remove", lambda tmp: None)  # as one that failed
    with faulty("link", "*/rows.json", errno.EPERM):
        second.prepare(TEST_FRACTION=0.1)
    assert len(parts) == 2
    for name in tree(second.job):
        assert not (second.job / name).samefile(pod.job / name), name


def test_a_storage_without_hard_links_makes_the_data_anew(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    pod.prepare()
    second = other(pod)
    with faulty("link", "*/test.txt", errno.EPERM):
        second.prepare()
    assert len(parts) == 2
    assert tree(second.job) == tree(pod.job)
    assert not second.leftovers()
