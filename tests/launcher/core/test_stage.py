"""What a run finds before it begins: the data, the program, and their copies on the pod's own disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher import files
from launcher.errors import DataError, SettingsError, StorageError, StorageFailedError, UnfitError
from launcher.settings import TrainSettings
from launcher.storage import stage
from launcher.storage.manifest import await_manifest
from launcher.timings import Timings
from tests.launcher.core.clock import Clock
from tests.launcher.core.faulty import faulty
from tests.launcher.core.kit import environ, write_data


def train_settings(tmp_path: Path, **env: str) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_WORK_DIR=str(tmp_path / "work"), **env)
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "quick-start"


# -- the data that a run waits for


def test_data_of_another_digest_is_waited_out(tmp_path: Path, job: Path) -> None:
    write_data(job, 3, digest="old")
    clock = Clock(s100=lambda: write_data(job, 3, digest="d1"))
    manifest = await_manifest(train_settings(tmp_path), clock.pause, clock)
    assert manifest["dataDigest"] == "d1"
    assert 100 <= clock.now < 102


def conflict(job: Path, **lost: str) -> None:
    """Another release's data, which has replaced what `lost` says."""
    manifest = write_data(job, 3, digest="other")
    manifest["madeBy"] = {"namespace": "team-b", "release": "theirs", "job": "x", "runId": ""}
    manifest["replaced"] = [{"dataDigest": "d1", "namespace": "paddle", "release": "paddle-training", **lost}]
    (job / "manifest.json").write_text(json.dumps(manifest))


def test_data_that_another_release_replaced_ends_the_wait_and_names_both(tmp_path: Path, job: Path) -> None:
    conflict(job, runId="")
    clock = Clock()
    both = "release theirs in namespace team-b .*release paddle-training in namespace paddle .*Fix: "
    with pytest.raises(DataError, match=f"jobName is 'quick-start' in two releases .*{both}"):
        await_manifest(train_settings(tmp_path), clock.pause, clock)
    assert clock.now < 90, "not data.waitSeconds, an hour"


@pytest.mark.parametrize("kept", ["at work", "of another runId"])
def test_replaced_data_is_waited_for_while_the_own_data_job_makes_it_again(
    tmp_path: Path, job: Path, kept: str
) -> None:
    conflict(job, runId="" if kept == "at work" else "earlier")
    if kept == "at work":
        (job / ".d1.tmp").mkdir()
        (job / ".d1.tmp" / "alive").touch()
    clock = Clock(s200=lambda: write_data(job, 3))
    assert await_manifest(train_settings(tmp_path), clock.pause, clock)["dataDigest"] == "d1"


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ('{"dataDigest": "old"}', r"is of other data \(old, made by an unknown release\)"),
        (None, "there is no .*manifest.json yet"),
    ],
)
def test_the_wait_for_data_ends_at_its_deadline_and_says_what_was_there(
    tmp_path: Path, job: Path, there: str | None, told: str
) -> None:
    job.mkdir()
    if there:
        (job / "manifest.json").write_text(there)
    clock = Clock()
    with pytest.raises(DataError, match=f"no data after 60 s .*{told}"):
        await_manifest(train_settings(tmp_path, PADDLE_LAUNCHER_DATA_WAIT_SECONDS="60"), clock.pause, clock)
    assert 60 <= clock.now < 61


def test_the_wait_begins_anew_with_each_sign_of_life_of_the_data_job(tmp_path: Path, job: Path) -> None:
    alive = job / ".d1.tmp" / "alive"
    alive.parent.mkdir(parents=True)

    def touch(at: int) -> Callable[[], None]:
        def work() -> None:
            alive.touch()
            os.utime(alive, (at, at))

        return work

    clock = Clock(s50=touch(1), s100=touch(2))
    with pytest.raises(DataError, match=r"no data after 60 s .*without a sign of life"):
        await_manifest(train_settings(tmp_path, PADDLE_LAUNCHER_DATA_WAIT_SECONDS="60"), clock.pause, clock)
    assert 160 <= clock.now < 162


def test_a_manifest_that_cannot_be_read_is_no_missing_data(tmp_path: Path, job: Path) -> None:
    write_data(job, 3)
    clock = Clock()
    with faulty("open", "*/manifest.json", errno.ESTALE, times=2):
        assert await_manifest(train_settings(tmp_path), clock.pause, clock)["splitCount"] == 3
    with faulty("open", "*/manifest.json", errno.ESTALE), pytest.raises(StorageFailedError):
        await_manifest(train_settings(tmp_path), clock.pause, clock)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_manifest_ends_the_wait_within_a_minute_or_is_harmless(
    tmp_path: Path, job: Path, sealed: bool
) -> None:
    path, settings = job / "manifest.json", train_settings(tmp_path)
    manifest = write_data(job, 3)
    files.write_json(path, files.sealed(manifest) if sealed else manifest)
    whole = path.read_bytes()
    ended = 0
    for place in range(sealed, len(whole), 9):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        clock = Clock()
        try:
            found = await_manifest(settings, clock.pause, clock)
            stage.stage(settings, 1, found, job / "mine")
        except DataError as error:
            assert "Run the data Job again" in str(error) or str(path) in str(error)
            ended += clock.now <= Timings().data_again + 1
        else:
            assert not sealed or manifest.items() <= found.items()
    assert not sealed or ended > 0.7 * len(whole) / 9


def test_a_failure_of_other_data_is_no_reason_to_end(tmp_path: Path, job: Path) -> None:
    job.mkdir()
    (job / "data-failed.json").write_text('{"dataDigest": "old", "reason": "x"}')
    clock = Clock(s5=lambda: write_data(job, 3))
    assert await_manifest(train_settings(tmp_path), clock.pause, clock)["splitCount"] == 3


def test_the_failure_of_an_earlier_data_job_is_waited_out_and_its_own_ends_the_run(
    tmp_path: Path, job: Path
) -> None:
    """runId makes both Jobs anew: what the first one left may be read before the second one removes it."""
    job.mkdir()
    told = {"dataDigest": "d1", "reason": "no such member", "runId": "1"}
    (job / "data-failed.json").write_text(json.dumps(told))
    clock = Clock(s5=lambda: write_data(job, 3))
    again = train_settings(tmp_path, PADDLE_LAUNCHER_RUN_ID="2")
    assert await_manifest(again, clock.pause, clock)["splitCount"] == 3
    (job / "manifest.json").unlink()
    with pytest.raises(DataError, match="no such member"):
        await_manifest(train_settings(tmp_path, PADDLE_LAUNCHER_RUN_ID="1"), clock.pause, clock)


def test_where_the_source_has_each_row_is_staged_with_the_shard(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    settings = train_settings(tmp_path)
    stage.stage(settings, 0, manifest, job / "mine")
    assert not settings.work.rows.exists(), "an older launcher's data"
    (job / "rows.json").write_text("{}")
    manifest["rows"] = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    stage.stage(settings, 0, manifest, job / "mine")
    assert settings.work.rows.read_text() == "{}"


def test_a_program_that_is_not_the_one_of_the_values_is_refused(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    digest = files.folder_sha256(job / "mine")
    fits = train_settings(tmp_path, PADDLE_LAUNCHER_PROGRAM_SHA256=digest)
    stage.stage(fits, 0, manifest, job / "mine")
    other = train_settings(tmp_path, PADDLE_LAUNCHER_PROGRAM_SHA256="a" * 64)
    with pytest.raises(SettingsError, match=f"training.programSha256 .*{digest}.*another program"):
        stage.stage(other, 0, manifest, job / "mine")


def test_a_manifest_with_another_number_of_shards_is_refused(tmp_path: Path, job: Path) -> None:
    write_data(job, 2)
    with pytest.raises(DataError, match="2 shards, but there are 3 trainers"):
        await_manifest(train_settings(tmp_path))


# -- the program and the stage


def test_a_missing_program_is_told_with_what_exists(tmp_path: Path, job: Path) -> None:
    write_data(job, 3)
    (tmp_path / "built" / "quick_start").mkdir(parents=True)
    settings = train_settings(tmp_path, TRAIN_CONFIG_DIR="quickstart")
    with pytest.raises(SettingsError, match="there are mine of your own, and built in quick_start"):
        stage.find_program(settings, tmp_path / "built")


def test_a_missing_config_file_is_told_with_the_files_there(tmp_path: Path, job: Path) -> None:
    write_data(job, 3)
    with pytest.raises(SettingsError, match=r"'lr\.py'.* there are only trainer_config\.py"):
        stage.find_program(train_settings(tmp_path, PADDLE_LAUNCHER_CONFIG_FILE="lr.py"))


def test_a_persons_own_program_wins_over_the_built_in_one(tmp_path: Path, job: Path) -> None:
    write_data(job, 3)
    (tmp_path / "built" / "mine").mkdir(parents=True)
    (tmp_path / "built" / "mine" / "trainer_config.py").touch()
    assert stage.find_program(train_settings(tmp_path), tmp_path / "built") == job / "mine"


def staged(tmp_path: Path, manifest: dict[str, Any]) -> stage.Staged:
    return stage.stage(train_settings(tmp_path), 1, manifest, tmp_path / "quick-start" / "mine")


def test_a_full_work_disk_is_told_before_anything_is_copied(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    manifest["shards"][1]["bytes"] = 1 << 60
    with pytest.raises(StorageError, match=r"shard 1 .* has only .* free"):
        staged(tmp_path, manifest)
    assert not (tmp_path / "work" / "data").exists()


def test_what_an_earlier_pod_left_in_the_work_folder_is_not_trusted(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    first = staged(tmp_path, manifest)
    (first.data_dir / "train.txt").write_text("changed")
    (first.data_dir / "of-another-run.txt").touch()
    (first.program_dir / "trainer_config.py").write_text("changed()")
    (tmp_path / "work" / "progress.json").write_text('{"state": "training"}')
    again = staged(tmp_path, manifest)
    assert (again.data_dir / "train.txt").read_text() == "line of d1 shard 1\n"
    assert not (again.data_dir / "of-another-run.txt").exists()
    assert (again.program_dir / "trainer_config.py").read_text() == "settings()\n"
    assert again.program_sha256 == first.program_sha256
    assert not (tmp_path / "work" / "progress.json").exists()


@pytest.mark.parametrize(
    "name", ["data/train.txt", "data/train.list", "data/tables/items.txt", "program/x.py"]
)
def test_a_copy_that_does_not_read_back_is_this_pods_fault_not_the_datas(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    manifest = write_data(job, 3)
    (job / "mine" / "x.py").write_text("1")
    copy = files.copy_file

    def bad_disk(source: Path, target: Path, *rest: Any) -> tuple[int, str]:
        found = copy(source, target, *rest)
        if target.name == Path(name).name:
            target.write_bytes(target.read_bytes().swapcase().replace(b"1", b"2"))
        return found

    monkeypatch.setattr(files, "copy_file", bad_disk)
    with pytest.raises(UnfitError, match=r"this pod's own disk is faulty") as caught:
        staged(tmp_path, manifest)
    assert caught.value.exit_code == 71


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("1/data/train.txt", "by the manifest"),
        ("1/data/train.list", "by the next look at it"),
        ("tables/items.txt", "by the manifest"),
        ("mine/trainer_config.py", "was changed while it was copied"),
    ],
)
def test_a_source_that_changes_while_it_is_copied_is_told(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    manifest = write_data(job, 3)
    copy = files.copy_file

    def meanwhile(source: Path, target: Path, *rest: Any) -> tuple[int, str]:
        late = name.endswith("list")  # nothing but the file itself says what is in it
        found = copy(source, target, *rest) if late else None
        if source == job / name:
            source.write_text("another")
        return found or copy(source, target, *rest)

    monkeypatch.setattr(files, "copy_file", meanwhile)
    with pytest.raises(DataError, match=told):
        staged(tmp_path, manifest)


def test_a_source_that_fails_for_a_moment_is_read_again(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WAITS", (0.0, 0.0))
    manifest = write_data(job, 3)
    with faulty("open", "*/1/data/train.txt", errno.ESTALE, times=2):
        assert (staged(tmp_path, manifest).data_dir / "train.txt").read_text() == "line of d1 shard 1\n"


def test_a_shard_in_several_files_is_staged_as_one_and_each_is_verified(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    folder = job / "1" / "data"
    (folder / "train.txt").unlink()
    found = []
    for number, text in enumerate(("a\nb\n", "c\n")):
        (folder / f"train-{number:05d}.txt").write_text(text)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        found.append({"name": f"train-{number:05d}.txt", "bytes": len(text), "sha256": sha256})
    (folder / "files.json").write_text(json.dumps({"files": found}))
    sha256 = hashlib.sha256((folder / "files.json").read_bytes()).hexdigest()
    manifest["shards"][1] = {"index": 1, "lines": 3, "bytes": 6, "parts": 2, "sha256": sha256}
    data = staged(tmp_path, manifest).data_dir
    assert (data / "train.txt").read_text() == "a\nb\nc\n"
    told = json.loads((data / "sums.json").read_text())
    assert told == {"train.txt": hashlib.sha256(b"a\nb\nc\n").hexdigest()}
    assert not (data / "piece.tmp").exists()
    (folder / "train-00001.txt").write_text("d\n")
    with pytest.raises(DataError, match=r"train-00001\.txt has sha256"):
        staged(tmp_path, manifest)


def test_the_test_set_lies_where_it_is_needed(tmp_path: Path, job: Path) -> None:
    manifest = write_data(job, 3)
    for rank, runtime, lines, there in (
        (0, "fleet", 1, True),
        (1, "fleet", 1, False),
        (1, "fleet", 200_001, True),
        (1, "v1", 1, True),
    ):
        manifest["test"]["lines"] = lines
        settings = train_settings(tmp_path, PADDLE_LAUNCHER_RUNTIME=runtime)
        found = stage.stage(settings, rank, manifest, job / "mine")
        assert (found.data_dir / "test.txt").exists() is there
