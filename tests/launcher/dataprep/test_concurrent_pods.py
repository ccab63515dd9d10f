"""Tests of several pods that split one source together: locks, evictions, and failures of another pod."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.dataprep import data_job, prepared_data, sources, split_part
from launcher.errors import DataError, LauncherError, SettingsError, StoppedError, UnfitError
from launcher.io import files
from launcher.settings import DataSettings
from tests.launcher.dataprep.conftest import ALL, LINES, PART, Pod, prepared_files


def lock(fd: int, kind: int) -> None:
    """Lock as `fcntl.lockf` does, but so that the lock belongs to the open file and not to the process."""
    kinds = {fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    asked = struct.pack("hhqqi4x", kinds[kind & ~fcntl.LOCK_NB], 0, 0, 0, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked)


@contextlib.contextmanager
def separate_locks() -> Iterator[None]:
    """Let file locks exclude each other between threads of this process, as they do between processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_data, "fcntl", SimpleNamespace(**vars(fcntl) | {"lockf": lock}))
        yield


def run_together(pods: Sequence[DataSettings]) -> None:
    """Run several pods in threads, and check that all succeed."""
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda settings=settings: codes.append(data_job.main(settings)))
        for settings in pods
    ]
    with separate_locks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "part_size", lambda _: PART)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert codes == [0] * len(pods)


def evict_at_part(
    monkeypatch: pytest.MonkeyPatch, evicted: int, error: LauncherError | None = None
) -> list[int]:
    """Stop the pod at part `evicted` the first time, or raise `error`; return a list that gets each finished part."""
    finished: list[int] = []
    run = split_part.PartSplitter.run

    def run_or_stop(self: Any) -> Any:
        number = self._part.number
        if number == evicted == len(finished):
            finished.append(-1)
            raise error or StoppedError("evicted")
        result = run(self)
        finished.append(number)
        return result

    monkeypatch.setattr(split_part.PartSplitter, "run", run_or_stop)
    return finished


def test_the_number_of_pods_changes_nothing(new_pod: Callable[[], Pod]) -> None:
    one, three = new_pod(), new_pod()
    for pod in (one, three):
        pod.source(LINES)
    alone = one.prepare(part_bytes=PART, TEST_FRACTION=0.1)
    run_together([three.settings(TEST_FRACTION=0.1)] * 3)
    assert files.read_json(three.job / "manifest.json") == alone
    assert three.leftovers() == []


@pytest.mark.parametrize("prepared_by", ["dataJob", "trainingPods"])
def test_several_pods_fetch_the_files_of_a_folder(new_pod: Callable[[], Pod], prepared_by: str) -> None:
    one, three = new_pod(), new_pod()
    contents = {f"{number:03}": b"x" * number for number in range(40)}
    for pod in (one, three):
        pod.environ["source"] = pod.folder(contents)
    sha256 = one.prepare(FORMAT="files")["sha256"]
    run_together([three.settings(FORMAT="files", SHA256=sha256, PREPARED_BY=prepared_by)] * 3)
    assert prepared_files(three) == contents


@pytest.mark.parametrize(
    ("error", "kept"),
    [(StoppedError("evicted"), True), (UnfitError("no credentials"), True), (DataError("a row"), False)],
)
def test_finished_parts_stay_after_an_eviction_or_a_failure_that_another_pod_may_not_have(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, error: LauncherError, kept: bool
) -> None:
    pod.source(LINES)
    finished = evict_at_part(monkeypatch, 3, error)
    with pytest.raises(type(error)):
        pod.prepare(part_bytes=PART)
    assert not (pod.job / "manifest.json").exists()
    assert (pod.job / "data-failed.json").exists() is not kept
    manifest = pod.prepare(part_bytes=PART, WORKERS="4")
    again = range(3 if kept else 0, manifest["shards"][0]["parts"])
    assert finished == [0, 1, 2, -1, *again], "one pod completes the data, also if the Job has more"
    assert sorted(pod.listed_lines()) == ALL


@pytest.mark.parametrize("part_bytes", [None, PART])
def test_a_publication_during_which_a_pod_was_evicted_is_continued(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, part_bytes: int | None
) -> None:
    """The pod is evicted before each of its renames, one after the other, once all parts are finished."""
    pod.source(LINES)
    evict_at_part(monkeypatch, -1)
    publish = data_job.DataPod._publish
    monkeypatch.setattr(data_job.DataPod, "_publish", lambda *_: pytest.fail("x", pytrace=False))
    with pytest.raises(pytest.fail.Exception):
        pod.prepare(part_bytes=part_bytes, TEST_FRACTION=0.1)
    monkeypatch.setattr(data_job.DataPod, "_publish", publish)
    monkeypatch.setattr(split_part.PartSplitter, "run", lambda *_: pytest.fail("the source is read again"))
    renames = [0, 0]

    def rename_or_stop(path: Path, target: Path) -> Path:
        if renames[0] == renames[1]:
            raise StoppedError("evicted")
        renames[0] += 1
        os.rename(path, target)  # noqa: PTH104 - Path.rename is this function
        return target

    monkeypatch.setattr(Path, "rename", rename_or_stop)
    monkeypatch.setattr(Path, "replace", rename_or_stop)
    for evictions in itertools.count():
        renames[:] = 0, evictions
        with contextlib.suppress(StoppedError):
            assert pod.prepare(part_bytes=part_bytes, TEST_FRACTION=0.1)["lines"] == 900
            break
    assert evictions > 6
    assert sorted([*pod.listed_lines(), *pod.test()]) == ALL
    assert pod.leftovers() == []


def test_a_part_that_another_pod_has_locked_is_made_when_that_pod_dies(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    held: list[Any] = []
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        held.pop().close()  # it dies

    run = split_part.PartSplitter.run

    def hold(self: Any) -> Any:
        number = self._part.number
        if number == 0:
            file = (pod.work_folder() / "parts" / "00002.lock").open("w")
            lock(file.fileno(), fcntl.LOCK_EX)
            held.append(file)
        assert number != 2 or not held
        return run(self)

    monkeypatch.setattr(split_part.PartSplitter, "run", hold)
    # Threads of other tests keep the real time.sleep.
    monkeypatch.setattr(data_job, "time", SimpleNamespace(**vars(time) | {"sleep": pause}))
    with separate_locks():
        pod.prepare(part_bytes=PART)
    assert waits == [data_job._POLL_SECONDS]
    assert sorted(pod.listed_lines()) == ALL


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"WORKERS": "2"}, r"data\.workers is '2', but must be 1 on this storage"),
        (
            {"PREPARED_BY": "trainingPods", "WORKERS": "3"},
            r"data\.preparedBy is 'trainingPods', but must be dataJob on this",
        ),
    ],
)
def test_several_pods_need_locks_and_one_does_not(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(prepared_data.fcntl, "lockf", none)
    pod.source(LINES)
    with pytest.raises(SettingsError, match=message):
        pod.prepare(part_bytes=PART, **values)
    assert pod.prepare(part_bytes=PART)["lines"] == 1000


def test_training_pods_make_the_shards_of_a_data_job_and_a_replaced_pod_reads_nothing(
    new_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, training = new_pod(), new_pod()
    for pod in (job, training):
        pod.source(LINES)
    wanted = job.prepare(part_bytes=PART)
    in_training = {"PREPARED_BY": "trainingPods", "WORKERS": "3"}
    assert training.prepare(part_bytes=PART, **in_training) == wanted
    assert training.listed_lines() == job.listed_lines()
    monkeypatch.setattr(data_job.DataPod, "_open", lambda *_: pytest.fail("the source is opened again"))
    assert training.prepare(**in_training) == wanted


def test_a_training_pod_checks_only_its_own_shard(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    pod.prepare()
    (pod.job / "1" / "data" / "train.txt").unlink()
    read: list[object] = []
    opened = data_job.DataPod._open
    monkeypatch.setattr(data_job.DataPod, "_open", lambda *given: (read.append(given), opened(*given))[1])
    for rank, reads in (("0", False), ("1", True)):
        pod.environ["JOB_COMPLETION_INDEX"] = rank
        pod.prepare(PREPARED_BY="trainingPods", WORKERS="3")
        assert bool(read) is reads, rank
    assert len(pod.train()) == 1000
