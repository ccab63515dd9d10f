"""Tests of data that jobs of one storage share: reuse, upgrades, rollbacks, schedules, two releases, links, `clean`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from launcher.dataprep import data_job, prepared_data
from launcher.dataprep.prepared_data import UNUSED_SECONDS, make_data_folder, unused_data
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.sources import ByteRange, PlannedPart, SourceObject, open_source
from launcher.errors import StorageError
from launcher.io.retry import Retry
from launcher.settings import DataSettings
from tests.launcher.dataprep.conftest import ALL, LINES, Pod, zipped
from tests.launcher.dataprep.test_concurrent_pods import run_together
from tests.launcher.supervisor.failing_calls import fail_calls


def other(pod: Pod, digest: str, **environ: str) -> Pod:
    """Return a data pod with another data digest on the same storage; `environ` has further variables."""
    return Pod(pod.storage, {**pod.environ, "data_digest": digest, **environ})


def other_job(pod: Pod, name: str = "job-2") -> Pod:
    """Return a data pod of another job and release on the same storage, with the same settings."""
    own = {"release": name, "PADDLE_LAUNCHER_K8S_JOB": f"{name}-data"}
    return other(pod, name, JOB_NAME=name, **own)


def other_release(pod: Pod, digest: str = "b") -> Pod:
    """Return a data pod of another release with the same jobName."""
    return other(pod, digest, release="other", PADDLE_LAUNCHER_K8S_JOB="other-data")


def folders(pod: Pod) -> list[str]:
    """Return the names of the folders of complete data."""
    return sorted(path.parent.name for path in pod.data.glob("[!.]*/manifest.json"))


def records(pod: Pod) -> list[str]:
    """Return the data digests of the manifests in `.data/`."""
    return sorted(path.stem for path in pod.data.glob("*.json"))


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the number of each part that a pod reads and splits during the test."""
    made: list[str] = []
    run = data_job.PartSplitter.run

    def counted(self: Any) -> dict[str, Any]:
        made.append(str(self._part.number))
        return run(self)

    monkeypatch.setattr(data_job.PartSplitter, "run", counted)
    return made


@pytest.mark.parametrize("kind", ["file", "archive", "parts"])
def test_a_second_job_uses_the_same_data_and_keeps_it_when_the_first_is_removed(
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
    count, second = len(parts), other_job(pod)
    manifest = second.prepare(part_bytes=size, **values)
    assert len(parts) == count, "the source was read once"
    assert (manifest["dataDigest"], manifest["madeBy"]["release"]) == ("job-2", "job-2")
    assert manifest["shards"] == first["shards"]
    assert manifest["reusedFrom"] == first["madeBy"]["job"]
    shutil.rmtree(pod.job)
    for name in ("0/data", "1/data", "2/data", "test.txt", *(["tables"] if kind == "archive" else [])):
        link = second.job / name
        assert not link.readlink().is_absolute()
        assert link.resolve().is_relative_to(pod.data / manifest["content"])
        assert link.exists()
    assert second.prepare(part_bytes=size, **values) == manifest
    assert pod.data.stat().st_mode & 0o7777 == 0o1777
    assert second.leftovers() == []


def test_each_job_of_a_schedule_uses_unchanged_data_and_replaces_data_whose_source_changed(
    pod: Pod, parts: list[str]
) -> None:
    def run(number: int) -> Any:
        return other(pod, f"d-job-{number}", PADDLE_LAUNCHER_K8S_JOB=f"job-{number}").prepare(part_bytes=5000)

    pod.source(LINES)
    first = run(1)
    count = len(parts)
    assert first.get("reusedFrom") is None
    for number in (2, 3):
        later = run(number)
        assert (later["dataDigest"], later["madeBy"]["job"]) == (f"d-job-{number}", f"job-{number}")
        assert (later["reusedFrom"], later["content"]) == ("job-1", first["content"])
    assert len(parts) == count
    pod.source(LINES + b"1\ta new line\n")
    changed = run(4)
    assert len(parts) > count
    assert "reusedFrom" not in changed
    assert (records(pod), folders(pod)) == (["d-job-4"], [changed["content"]]), (
        "a year of nights needs no clean"
    )
    (pod.job / "1" / "data" / "train.list").unlink()
    (pod.job / "test.txt").resolve().unlink()
    assert "reusedFrom" not in run(5), "incomplete data is made again"


def test_other_data_is_not_shared(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    pod.prepare()
    other_job(pod, "b").prepare(SEED="3")
    os.utime(pod.storage / "sources" / "in.txt", (1, 1))  # the content may be another one
    other_job(pod, "c").prepare()
    assert len(parts) == len(folders(pod)) == 3


@pytest.mark.parametrize(("sha256", "shared"), [("", False), ("0" * 64, True)])
def test_a_web_address_is_shared_only_with_a_checksum(pod: Pod, sha256: str, shared: bool) -> None:
    """Without one, nothing shows whether its content has changed."""
    pods = [each.settings(SOURCE="https://host/rows", SHA256=sha256) for each in (pod, other_job(pod))]
    found = SourceObject("https://host/rows", None, "")
    digests = set()
    for settings in pods:
        source = open_source(settings, DataProgress(None), Retry(), "data.source")
        part = PlannedPart("00000", source, (ByteRange(found, 0, 0),), 10)
        digests.add(data_job.content_digest(settings, [part]))
    assert (len(digests) == 1) is shared


def test_two_releases_with_one_job_name_keep_their_data_side_by_side(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    first, second = pod.prepare(), other_release(pod).prepare(SEED="1", SPLIT_COUNT="2")
    assert folders(pod) == sorted([first["content"], second["content"]])
    assert records(pod) == ["0123456789abcdef", "b"]
    assert (pod.job / "1" / "data").resolve() == pod.data / second["content"] / "1", "the newest"
    assert not (pod.job / "2").exists(), "a shard beyond the last"
    again = pod.prepare(PREPARED_BY="trainingPods", WORKERS="3")  # a lost pod of the first one is replaced
    assert (again["content"], len(parts)) == (first["content"], 2)
    assert sorted(pod.train()) == ALL


def test_an_upgrade_removes_the_data_that_it_replaces_unless_another_job_uses_it(
    pod: Pod, parts: list[str]
) -> None:
    pod.source(LINES)
    first = pod.prepare()
    second = other(pod, "b").prepare(SEED="1")
    assert (records(pod), folders(pod)) == (["b"], [second["content"]])
    assert pod.prepare() == first, "a rollback prepares it again"
    job_2 = other_job(pod)
    job_2.prepare()
    other(pod, "b").prepare(SEED="1")
    assert (records(pod), len(folders(pod)), len(parts)) == (["b", "job-2"], 2, 4)
    assert sorted(job_2.train()) == ALL


def test_data_that_another_release_removes_while_a_job_waits_to_use_it_is_made_again(
    pod: Pod, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    first, second = dict(pod.prepare()), other_job(pod)
    lock, waiting = prepared_data.lock_file, [first]

    def lock_after_the_upgrade(path: Path, settings: DataSettings) -> AbstractContextManager[bool]:
        if path.name == ".lock" and waiting:
            prepared_data.remove_data(settings.layout, waiting.pop())
        return lock(path, settings)

    monkeypatch.setattr(prepared_data, "lock_file", lock_after_the_upgrade)
    second.prepare()
    assert (records(pod), len(parts)) == (["job-2"], 2)
    assert sorted(second.train()) == ALL


def test_only_the_first_pod_of_a_job_links_the_data(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    before = pod.prepare()
    monkeypatch.setattr(
        prepared_data, "_link_data", lambda *_: pytest.fail("another pod links the data again")
    )
    assert pod.prepare(PREPARED_BY="trainingPods", WORKERS="3") == before


def write_data_of_an_older_launcher(pod: Pod, manifest: dict[str, Any]) -> None:
    """Replace the job's links by the files, as launchers before `.data/` wrote them."""
    for name in ("0/data", "1/data", "2/data", "test.txt"):
        link = pod.job / name
        target = link.resolve()
        link.unlink()
        (shutil.copytree if target.is_dir() else shutil.copyfile)(target, link)  # type: ignore[operator]
    shutil.copytree(pod.job / "0", pod.job / "5")
    (pod.job / "tables").mkdir()
    manifest |= {"content": "", "replaced": [], "rows": {"bytes": 1}}
    (pod.job / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(pod.data)


def test_an_upgrade_from_the_earlier_layout_links_the_data_and_a_rollback_can_read_it(pod: Pod) -> None:
    pod.source(LINES)
    manifest = dict(pod.prepare(TEST_FRACTION=0.1))
    write_data_of_an_older_launcher(pod, dict(manifest))
    (pod.job / "quick_start").mkdir()
    (pod.job / "7").mkdir()
    (pod.job / "output").mkdir()
    assert pod.prepare(TEST_FRACTION=0.1) == manifest
    names = sorted(path.name for path in pod.job.iterdir())
    assert names == ["0", "1", "2", "7", "manifest.json", "output", "quick_start", "test.txt"]
    assert manifest["version"] == 2, "launchers before `.data/` read this version"
    for shard in manifest["shards"]:
        content = (pod.job / str(shard["index"]) / "data" / "train.txt").read_bytes()
        assert hashlib.sha256(content).hexdigest() == shard["sha256"]
    assert hashlib.sha256((pod.job / "test.txt").read_bytes()).hexdigest() == manifest["test"]["sha256"]


@pytest.mark.parametrize("name", [".data", ".data/CONTENT", ".data/.CONTENT.UID.tmp", "job", "job/1"])
def test_a_folder_that_is_a_link_is_rejected(pod: Pod, name: str) -> None:
    pod.source(LINES)
    if "CONTENT" in name:
        name = name.replace("CONTENT", pod.prepare()["content"]).replace("UID", str(os.getuid()))
        shutil.rmtree(pod.data)
    host = pod.storage.parent / "host"
    host.mkdir()
    link = pod.storage / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(host)
    with pytest.raises(StorageError, match=rf"{name} is a symbolic link.*Fix: remove the link"):
        pod.prepare()
    assert not list(host.iterdir())


@pytest.mark.parametrize("name", ["0/data", "test.txt", "tables", "4/data", "4"])
def test_a_link_that_leads_elsewhere_is_replaced_or_left_and_its_target_unchanged(
    pod: Pod, name: str
) -> None:
    pod.source(LINES)
    host = pod.storage.parent / "host"
    (host / "data").mkdir(parents=True)
    (host / "data" / "train.txt").write_text("secret")
    (pod.job / name).parent.mkdir(parents=True)
    (pod.job / name).symlink_to(host)
    pod.prepare()
    assert sorted(pod.train()) == ALL
    assert (host / "data" / "train.txt").read_text() == "secret"


def test_the_manifest_of_an_earlier_release_cannot_name_files_elsewhere_to_remove(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare()
    victim = pod.storage / "victim.json"
    victim.write_text("{}")
    (pod.storage / "victim").mkdir()
    hostile = {**manifest, "dataDigest": "../victim", "content": "../victim"}
    (pod.job / "manifest.json").write_text(json.dumps(hostile))
    other(pod, "b").prepare(SEED="1")
    assert victim.exists()
    assert (pod.storage / "victim").exists()


def test_pods_of_two_data_jobs_prepare_equal_data_together(pod: Pod, parts: list[str]) -> None:
    pod.source(LINES)
    both = [pod, other_job(pod)]
    run_together([each.settings(WORKERS="2") for each in both for _ in range(2)])
    content = {json.loads((each.job / "manifest.json").read_text())["content"] for each in both}
    assert folders(pod) == sorted(content)
    assert len(content) == 1
    assert len(parts) == len(set(parts)), "no part was read twice"
    assert sorted(pod.listed_lines()) == ALL
    assert pod.leftovers() == []


def test_data_that_pods_of_another_user_complete_first_stays(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods of different users have different work folders, so their locks do not exclude each other."""
    pod.source(LINES)
    content = pod.prepare()["content"]
    complete, pod.environ["data_digest"] = pod.storage / "complete", "b"
    (pod.data / content).rename(complete)
    inode, assemble = (complete / "0" / "train.txt").stat().st_ino, data_job.assemble_shards

    def assemble_last(*given: Any) -> dict[str, Any]:
        complete.rename(pod.data / content)
        return assemble(*given)

    monkeypatch.setattr(data_job, "assemble_shards", assemble_last)
    assert pod.prepare()["content"] == content
    assert pod.inode() == inode
    assert pod.leftovers() == []


def test_a_full_storage_is_reported_as_such(pod: Pod) -> None:
    pod.source(LINES)
    pod.job.mkdir()
    make_data_folder(pod.settings().layout)
    with (
        fail_calls("open", "*.alive", errno.ENOSPC),
        fail_calls("mkdir", "*.tmp/*", errno.ENOSPC),
        pytest.raises(StorageError, match="no space left"),
    ):
        pod.prepare()


def test_what_a_killed_data_job_left_is_removed_after_an_hour(pod: Pod) -> None:
    pod.source(LINES)
    pod.prepare()
    old, young = pod.data / ".00.10001.tmp", pod.data / ".11.10001.tmp"
    for folder in (old, young):
        (folder / "parts").mkdir(parents=True)
    (pod.data / ".d.alive").touch()
    past = (pod.data / ".d.alive").stat().st_mtime - UNUSED_SECONDS - 60
    for path in (old, pod.data / ".d.alive"):
        os.utime(path, (past, past))
    other_job(pod).prepare(SEED="1")
    assert pod.leftovers() == [young.name]


@pytest.mark.parametrize(
    ("digests", "unused"),
    [
        ({"a", "b-job-1"}, ["x", ".x.tmp"]),
        ({"a", "b"}, ["x", ".x.tmp"]),  # b is the digest of a release with a schedule
        ({"a"}, ["b-job-1.json", "B", "x", ".x.tmp"]),
        ({"b"}, ["a.json", "A", "damaged.json", "x", ".x.tmp"]),
        ((), ["a.json", "b-job-1.json", "damaged.json", "A", "B", "x", ".x.tmp"]),
    ],
)
def test_unused_data_is_what_no_job_and_no_release_refers_to(digests: set[str], unused: list[str]) -> None:
    names = ["a.json", "b-job-1.json", "damaged.json", "A", "B", "x", ".x.tmp", ".lock"]
    used = {*digests, "damaged"} if "a" in digests else digests
    found = unused_data(names, {"a.json": "A", "b-job-1.json": "B", "damaged.json": ""}, used)
    assert sorted(found) == sorted(unused)


@pytest.mark.parametrize("kind", ["new", "reused"])
def test_pods_of_different_users_share_the_data(pod: Pod, kind: str) -> None:
    """The user of the pods is a value of each release (podSecurityContext)."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    import resource  # noqa: F401 - the other user may not read the folder of this Python

    pod.source(LINES)
    pod.storage.chmod(0o777)
    for path in pod.storage.parents:
        if path.stat().st_mode & 0o5 != 0o5 and path.stat().st_uid == 0:
            path.chmod(0o755)
    (pod.storage / "job-2").mkdir()
    os.chown(pod.storage / "job-2", 10002, 10002)
    first = None if kind == "new" else pod.prepare()
    if first is None:
        pod.job.mkdir()
        make_data_folder(pod.settings().layout)
    second = other_job(pod)
    child = os.fork()
    if not child:
        try:
            os.setgid(10002)
            os.setuid(10002)
            second.prepare()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    manifest = json.loads((second.job / "manifest.json").read_text())
    assert manifest["content"] == pod.prepare()["content"]
    assert len(folders(pod)) == 1
    assert sorted(second.train()) == ALL
