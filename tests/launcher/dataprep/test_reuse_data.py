"""Tests of jobs on one storage that hard-link the data of another job with the same content."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.dataprep import data_job, publish_data
from launcher.io.files import with_checksum, write_json
from tests.launcher.dataprep.conftest import LINES, Pod, zipped
from tests.launcher.supervisor.failing_calls import fail_calls


def tree(job: Path) -> dict[str, bytes]:
    """Return relative path → content of a job's files, without those that contain the job's name."""
    own = ("manifest.json", ".prepare")
    return {
        path.relative_to(job).as_posix(): path.read_bytes()
        for path in sorted(job.rglob("*"))
        if path.is_file() and not path.name.startswith(own)
    }


def other(pod: Pod, name: str = "job-2") -> Pod:
    """Return a data pod of another job on the same storage, with the same settings."""
    own = {"JOB_NAME": name, "PADDLE_LAUNCHER_DATA_DIGEST": name, "PADDLE_LAUNCHER_RELEASE": name}
    return Pod(pod.storage, {**pod.environ, **own})


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the number of each part that a pod reads and splits during the test."""
    made: list[str] = []
    run = data_job.PartSplitter.run

    def counted(self: Any, number: int, rows: int) -> dict[str, Any]:
        made.append(str(number))
        return run(self, number, rows)

    monkeypatch.setattr(data_job.PartSplitter, "run", counted)
    return made


@pytest.mark.parametrize("kind", ["file", "archive", "parts"])
def test_a_second_job_links_the_same_data_and_keeps_it_when_the_first_is_removed(
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
    assert manifest["reusedFrom"] == first["madeBy"]["job"]
    made = tree(pod.job)
    assert tree(second.job) == made
    assert not second.leftovers()
    shutil.rmtree(pod.job)
    assert tree(second.job) == made
    assert second.prepare(part_bytes=size, **values) == manifest


def scheduled(pod: Pod, number: int) -> Pod:
    """Return the same pod in Job `number` of a CronJob: its Job's name is part of the data digest."""
    own = {"PADDLE_LAUNCHER_K8S_JOB": f"job-{number}", "PADDLE_LAUNCHER_DATA_DIGEST": f"d-job-{number}"}
    return Pod(pod.storage, {**pod.environ, **own})


@pytest.mark.parametrize("size", [None, 5000])
def test_a_later_job_with_an_unchanged_source_keeps_the_data_and_says_so(
    pod: Pod, parts: list[str], size: int | None
) -> None:
    pod.source(LINES)
    first = scheduled(pod, 1).prepare(part_bytes=size)
    count, made = len(parts), tree(pod.job)
    assert first.get("reusedFrom") is None
    for number in (2, 3):
        later = scheduled(pod, number).prepare(part_bytes=size)
        assert (later["dataDigest"], later["madeBy"]["job"]) == (f"d-job-{number}", f"job-{number}")
        assert later["reusedFrom"] == "job-1"
        assert later["shards"] == first["shards"]
    assert (len(parts), tree(pod.job)) == (count, made)
    pod.source(LINES + b"1\ta new line\n")
    changed = scheduled(pod, 4).prepare(part_bytes=size)
    assert len(parts) > count
    assert "reusedFrom" not in changed
    (pod.job / "1" / "data" / "train.list").unlink()
    (pod.job / "test.txt").unlink()
    assert "reusedFrom" not in scheduled(pod, 5).prepare(part_bytes=size), "incomplete data is made again"


def test_other_data_is_not_linked(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    pod.prepare()
    other(pod, "b").prepare(SEED="3")
    assert len(parts) == 2
    path = pod.storage / "sources" / "in.txt"
    os.utime(path, (1, 1))  # another modification time: the content may be another one
    other(pod, "c").prepare()
    assert len(parts) == 3
    (pod.storage / "c" / "1" / "data" / "train.txt").write_bytes(b"cut\n")
    other(pod, "d").prepare()
    assert len(parts) == 4


@pytest.mark.parametrize("name", ["1/data/train.txt", "test.txt", "tables/t"])
@pytest.mark.parametrize("size", [None, 5000])
def test_data_with_other_bytes_of_the_same_length_is_not_linked(
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


def test_data_of_an_older_launcher_is_used_although_it_has_rows_json(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    manifest = pod.prepare()
    (pod.job / "rows.json").write_text("{}")
    manifest["rows"] = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    write_json(pod.job / "manifest.json", with_checksum(manifest))
    pod.prepare()
    assert other(pod, "b").prepare().keys().isdisjoint({"rows"})
    pod.environ["PADDLE_LAUNCHER_DATA_DIGEST"] = "fedcba"
    pod.prepare()
    assert len(parts) == 1


def test_hard_links_of_an_interrupted_run_are_not_written_to(
    pod: Pod, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write through a hard link would change the other job's data, since both names are of one file."""
    pod.source(LINES)
    pod.prepare(TEST_FRACTION=0.1)
    second = other(pod)
    remove = publish_data.remove_folder

    def remove_later(tmp: Path) -> None:
        if (tmp / "plan.json").exists():  # the links stay, as if their removal had failed
            remove(tmp)

    monkeypatch.setattr(publish_data, "remove_folder", remove_later)
    with fail_calls("link", "*/2/data/train.list", errno.EPERM):
        second.prepare(TEST_FRACTION=0.1)
    assert len(parts) == 2
    for name in tree(second.job):
        assert not (second.job / name).samefile(pod.job / name), name


def test_a_storage_without_hard_links_makes_the_data_again(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    pod.prepare()
    second = other(pod)
    with fail_calls("link", "*/test.txt", errno.EPERM):
        second.prepare()
    assert len(parts) == 2
    assert tree(second.job) == tree(pod.job)
    assert not second.leftovers()
