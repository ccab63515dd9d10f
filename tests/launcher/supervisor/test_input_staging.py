"""Tests of waiting for the data and of staging data and program on the pod's own disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.packages import pack_files
from launcher.dataprep.prepared_data import PreparedData
from launcher.errors import DataError, SettingsError, StorageError, StorageFailedError, UnfitError
from launcher.io import files
from launcher.supervisor.shared_storage import input_staging
from launcher.supervisor.shared_storage.wait_for_data import wait_for_manifest
from launcher.supervisor.timings import Timings
from testkit.written_data import data_folder
from tests.launcher.dataprep.conftest import make_pod
from tests.launcher.supervisor.failing_calls import fail_calls
from tests.launcher.supervisor.fake_clock import FakeClock
from tests.launcher.supervisor.loopback_gang import train_settings, write_data


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the path of the job's folder."""
    return tmp_path / "quick-start"


@pytest.fixture
def manifest(job: Path) -> dict[str, Any]:
    """Write the data of three shards, and return its manifest."""
    return write_data(job, 3)


def stage(tmp_path: Path, manifest: dict[str, Any], rank: int = 1, **env: Any) -> str:
    """Stage the inputs of a rank in tmp_path/work, and return the program's digest."""
    program = tmp_path / "quick-start" / "mine"
    return input_staging.stage_inputs(
        train_settings(tmp_path, JOB_COMPLETION_INDEX=str(rank), **env), manifest, program
    )


# -- waiting for the data


def test_wait_continues_while_the_data_has_another_digest(tmp_path: Path, job: Path) -> None:
    write_data(job, 3, digest="old")
    clock = FakeClock(s100=lambda: write_data(job, 3, digest="d1"))
    manifest = wait_for_manifest(train_settings(tmp_path), clock.pause, clock)
    assert manifest["dataDigest"] == "d1"
    assert 100 <= clock.now < 102


@pytest.mark.parametrize("has_other_data", [True, False])
def test_wait_raises_at_its_deadline_with_what_it_found(
    tmp_path: Path, job: Path, has_other_data: bool
) -> None:
    if has_other_data:
        write_data(job, 3, digest="old")
    clock = FakeClock()
    with pytest.raises(DataError, match=r"no activity for 60 s .* there is no .*/\.data/d1\.json yet"):
        wait_for_manifest(train_settings(tmp_path, data_wait_seconds=60), clock.pause, clock)
    assert 60 <= clock.now < 61


def test_a_training_keeps_its_data_when_another_release_with_its_job_name_prepares_other_data(
    tmp_path: Path, job: Path
) -> None:
    write_data(job, 3)
    write_data(job, 3, digest="of another release")
    manifest = wait_for_manifest(train_settings(tmp_path))
    stage(tmp_path, manifest)
    assert (tmp_path / "work" / "data" / "train.txt").read_text() == "line of d1 shard 1\n"


def test_each_activity_of_the_data_job_restarts_the_deadline(tmp_path: Path, job: Path) -> None:
    alive = tmp_path / ".data" / ".d1.alive"
    alive.parent.mkdir(parents=True)

    def touch(at: int) -> Callable[[], None]:
        def work() -> None:
            alive.touch()
            os.utime(alive, (at, at))

        return work

    clock = FakeClock(s50=touch(1), s100=touch(2))
    with pytest.raises(DataError, match=r"the data Job showed no activity for 60 s"):
        wait_for_manifest(train_settings(tmp_path, data_wait_seconds=60), clock.pause, clock)
    assert 160 <= clock.now < 162


def test_a_storage_error_does_not_count_as_missing_data(tmp_path: Path, job: Path) -> None:
    write_data(job, 3)
    clock = FakeClock()
    with fail_calls("open", "*/d1.json", errno.ESTALE, times=2):
        assert wait_for_manifest(train_settings(tmp_path), clock.pause, clock)["splitCount"] == 3
    with fail_calls("open", "*/d1.json", errno.ESTALE), pytest.raises(StorageFailedError):
        wait_for_manifest(train_settings(tmp_path), clock.pause, clock)


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_manifest_raises_within_a_minute_or_is_harmless(
    tmp_path: Path, job: Path, sealed: bool
) -> None:
    path = tmp_path / ".data" / "d1.json"
    settings = train_settings(tmp_path, JOB_COMPLETION_INDEX="1")
    manifest = write_data(job, 3)
    files.write_json(path, files.with_checksum(manifest) if sealed else manifest)
    intact = path.read_bytes()
    ended = 0
    for place in range(sealed, len(intact), 17):
        flipped = bytearray(intact)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        clock = FakeClock()
        try:
            found = wait_for_manifest(settings, clock.pause, clock)
            input_staging.stage_inputs(settings, found, job / "mine")
        except DataError as error:
            assert "which makes its data again" in str(error) or str(path) in str(error)
            ended += clock.now <= Timings().data_again + 1
        else:
            assert not sealed or manifest.items() <= found.items()
    assert not sealed or ended > 0.7 * len(intact) / 17


def test_the_failure_of_another_data_digest_is_ignored(tmp_path: Path, job: Path) -> None:
    job.mkdir()
    (job / "data-failed.json").write_text('{"dataDigest": "old", "reason": "x"}')
    clock = FakeClock(s5=lambda: write_data(job, 3))
    assert wait_for_manifest(train_settings(tmp_path), clock.pause, clock)["splitCount"] == 3


def test_the_failure_of_an_earlier_data_job_is_ignored_and_that_of_its_own_raises(
    tmp_path: Path, job: Path
) -> None:
    """A new runId creates both Jobs again, and the earlier failure may be read before its file is removed."""
    job.mkdir()
    failure = {"dataDigest": "d1", "reason": "no such member", "runId": "1"}
    (job / "data-failed.json").write_text(json.dumps(failure))
    clock = FakeClock(s5=lambda: write_data(job, 3))
    again = train_settings(tmp_path, chart_run_id="2")
    assert wait_for_manifest(again, clock.pause, clock)["splitCount"] == 3
    (tmp_path / ".data" / "d1.json").unlink()
    with pytest.raises(DataError, match="no such member"):
        wait_for_manifest(train_settings(tmp_path, chart_run_id="1"), clock.pause, clock)


def test_a_program_with_another_checksum_than_in_the_values_is_rejected(
    tmp_path: Path, job: Path, manifest: dict[str, Any]
) -> None:
    digest = files.folder_sha256(job / "mine")
    stage(tmp_path, manifest, program_sha256=digest)
    with pytest.raises(SettingsError, match=f"training.programSha256 .*{digest}.*is not the program"):
        stage(tmp_path, manifest, program_sha256="a" * 64)


def test_a_manifest_with_another_number_of_shards_is_rejected(tmp_path: Path, job: Path) -> None:
    write_data(job, 2)
    with pytest.raises(DataError, match="2 shards, but there are 3 trainers"):
        wait_for_manifest(train_settings(tmp_path))


# -- finding the program and staging


@pytest.mark.usefixtures("manifest")
def test_a_custom_program_takes_precedence_and_a_missing_one_is_reported_with_existing_ones(
    tmp_path: Path, job: Path
) -> None:
    built_in = tmp_path / "built"
    for name in ("quick_start", "mine"):
        (built_in / name).mkdir(parents=True)
        (built_in / name / "trainer_config.py").touch()
    assert input_staging.find_program(train_settings(tmp_path), built_in) == job / "mine"
    for text, settings in (
        ("your own programs: mine; built-in programs: mine, quick_start", {"TRAIN_CONFIG_DIR": "quickstart"}),
        (r"'lr\.py'.* there are only trainer_config\.py", {"config_file": "mine/lr.py"}),
    ):
        with pytest.raises(SettingsError, match=text):
            input_staging.find_program(train_settings(tmp_path, **settings), built_in)


def test_the_size_of_the_work_folder_is_known_soon_when_a_script_made_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher stops its processes after it has measured the folder, and the grace period continues to count."""
    settings, counted = train_settings(tmp_path, PADDLE_LAUNCHER_WORK_LIMIT_BYTES="1"), [0]

    def rglob(folder: Path, pattern: str) -> Iterator[Path]:
        for counted[0] in range(1, 100_001):
            yield folder.parent

    monkeypatch.setattr(Path, "rglob", rglob)
    input_staging.describe_overfull_work_dir(settings)
    assert counted == [input_staging.COUNTED_FILES]


LIMIT = "PADDLE_LAUNCHER_WORK_LIMIT_BYTES"
RECORDS = (
    r"workDir\.sizeLimit .* is '12,582,912 bytes', but must be at least 12,95\d,\d+ bytes: shard 1 with its test set "
    r"and tables \(7,400,\d+ bytes\) and the records of its rows \(about 5,550,\d+\).* Fix: set workDir"
)


@pytest.mark.parametrize(
    ("size", "env", "error"),
    [
        (1 << 60, {}, "no space left for shard 1 .* are free"),
        (1000, {LIMIT: 999}, r"sizeLimit .* is '999 bytes'.* at least 1,7\d\d bytes.*\(about 750\)"),
        (1000, {LIMIT: 2000}, ""),
        (7_400_000, {LIMIT: 12 << 20}, RECORDS),
        (7_400_000, {LIMIT: 12 << 20, "runtime": "collective"}, ""),
    ],
    ids=["full disk", "limit", "fits", "records", "a script reads the text itself"],
)
def test_inputs_that_do_not_fit_on_the_pods_disk_are_rejected_before_anything_is_copied(
    tmp_path: Path, manifest: dict[str, Any], size: int, env: dict[str, Any], error: str
) -> None:
    """Regression: they were copied until Kubernetes evicted the pod, again in each new pod."""
    manifest["shards"][1]["bytes"] = size
    is_fit = contextlib.nullcontext()
    with pytest.raises((StorageError, SettingsError), match=error) if error else is_fit:
        stage(tmp_path, manifest, **env)
    assert (tmp_path / "work" / "data").exists() is (not error)


def test_files_of_an_earlier_pod_in_the_work_folder_are_replaced(
    tmp_path: Path, manifest: dict[str, Any]
) -> None:
    digest, work = stage(tmp_path, manifest), tmp_path / "work"
    (work / "data" / "train.txt").write_text("changed")
    (work / "data" / "of-another-run.txt").touch()
    (work / "program" / "trainer_config.py").write_text("changed()")
    (tmp_path / "work" / "progress.json").write_text('{"state": "training"}')
    assert stage(tmp_path, manifest) == digest
    assert (work / "data" / "train.txt").read_text() == "line of d1 shard 1\n"
    assert not (work / "data" / "of-another-run.txt").exists()
    assert (work / "program" / "trainer_config.py").read_text() == "settings()\n"
    assert not (tmp_path / "work" / "progress.json").exists()


def test_a_program_that_reads_back_differently_is_an_error_of_this_pods_disk(
    tmp_path: Path, manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = files.copy_file

    def bad_disk(source: Path, target: Path, *rest: Any) -> tuple[int, str]:
        found = copy(source, target, *rest)
        target.write_bytes(target.read_bytes().swapcase())
        return found

    monkeypatch.setattr(files, "copy_file", bad_disk)
    with pytest.raises(UnfitError, match=r"this pod's own disk is faulty") as caught:
        stage(tmp_path, manifest)
    assert caught.value.exit_code == 71


@pytest.mark.parametrize("name", ["1/train.txt", "tables/items.txt"])
@pytest.mark.parametrize("damage", ["changed", "a link to another file", "missing"])
def test_damaged_data_is_an_error_after_whose_fix_a_new_run_waits_for_new_data(
    tmp_path: Path, manifest: dict[str, Any], job: Path, name: str, damage: str
) -> None:
    path = data_folder(job, "d1").root / name
    path.unlink()
    if damage == "changed":
        path.write_text("another")
    elif damage != "missing":
        (tmp_path / "secret").write_text("secret")
        path.symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match=rf"{re.escape(name)} (has sha256|is missing)") as caught:
        stage(tmp_path, manifest)
    for damaged in str(caught.value).partition(" Fix: delete ")[2].partition(" in a pod ")[0].split(" and "):
        assert Path(damaged).is_relative_to(tmp_path / ".data")
        files.remove_path(Path(damaged))
    assert not data_folder(job, "d1").root.exists(), "the data Job checks only names and sizes"
    clock = FakeClock(s100=lambda: write_data(job, 3))
    assert wait_for_manifest(train_settings(tmp_path), clock.pause, clock) == manifest
    assert clock.now >= 100


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_a_program_that_changes_during_the_copy_raises(
    tmp_path: Path, manifest: dict[str, Any], job: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    copy = files.copy_file

    def copy_while_source_changes(source: Path, target: Path, *rest: Any) -> tuple[int, str]:
        if source.parent == job / "mine" and change == "changed":
            source.write_text("another")
        elif source.parent == job / "mine":
            source.unlink()
        return copy(source, target, *rest)

    monkeypatch.setattr(files, "copy_file", copy_while_source_changes)
    with pytest.raises(DataError, match="was changed while it was copied"):
        stage(tmp_path, manifest)


def test_a_temporary_read_error_of_the_source_is_retried(
    tmp_path: Path, manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_WAITS", (0.0, 0.0))
    with fail_calls("open", "*/1/train.txt", errno.ESTALE, times=2):
        stage(tmp_path, manifest)
    assert (tmp_path / "work" / "data" / "train.txt").read_text() == "line of d1 shard 1\n"


def test_a_shard_in_several_files_is_staged_as_one_file_after_verifying_each(
    tmp_path: Path, manifest: dict[str, Any], job: Path
) -> None:
    folder = data_folder(job, "d1").shard(1)
    (folder / "train.txt").unlink()
    found = []
    for number, text in enumerate(("a\nb\n", "c\n")):
        (folder / f"train-{number:05d}.txt").write_text(text)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        found.append({"name": f"train-{number:05d}.txt", "bytes": len(text), "sha256": sha256})
    (folder / "files.json").write_text(json.dumps({"files": found}))
    sha256 = hashlib.sha256((folder / "files.json").read_bytes()).hexdigest()
    manifest["shards"][1] = {"index": 1, "lines": 3, "bytes": 6, "parts": 2, "sha256": sha256}
    stage(tmp_path, manifest)
    data = tmp_path / "work" / "data"
    assert (data / "train.txt").read_text() == "a\nb\nc\n"
    checksums = json.loads((data / "sums.json").read_text())
    assert checksums == {"train.txt": [{key: file[key] for key in ("bytes", "sha256")} for file in found]}
    (folder / "train-00001.txt").write_text("d\n")
    with pytest.raises(DataError, match=r"train-00001\.txt has sha256"):
        stage(tmp_path, manifest)


def test_the_test_set_is_staged_only_on_ranks_that_need_it(tmp_path: Path, manifest: dict[str, Any]) -> None:
    for rank, runtime, lines, is_staged in (
        (0, "fleet", 1, True),
        (1, "fleet", 1, False),
        (1, "fleet", 200_001, True),
        (1, "v1", 1, True),
    ):
        manifest["test"]["lines"] = lines
        stage(tmp_path, manifest, rank, runtime=runtime)
        assert (tmp_path / "work" / "data" / "test.txt").exists() is is_staged


# -- packages


def write_packages(tmp_path: Path) -> str:
    """Write an archive with the package `mine` to the storage; return its sha256."""
    made = tmp_path / "packages.tar.gz"
    (tmp_path / "mine.py").write_text("WORD = 'of the archive'\n")
    digest = pack_files([("mine.py", tmp_path / "mine.py")], made)
    (tmp_path / ".packages").mkdir()
    made.rename(tmp_path / ".packages" / f"{digest}.tar.gz")
    return digest


def test_packages_are_unpacked_once_for_each_pod(tmp_path: Path, manifest: dict[str, Any]) -> None:
    digest = write_packages(tmp_path)
    stage(tmp_path, manifest, packages=digest)
    assert (tmp_path / "work" / "packages" / "mine.py").read_text() == "WORD = 'of the archive'\n"
    (tmp_path / ".packages" / f"{digest}.tar.gz").unlink()
    stage(tmp_path, manifest, packages=digest)
    assert (tmp_path / "work" / "packages" / "mine.py").is_file()


def test_packages_that_are_absent_or_damaged_are_rejected(tmp_path: Path, manifest: dict[str, Any]) -> None:
    digest = write_packages(tmp_path)
    with pytest.raises(SettingsError, match=r"training\.packages .* there is no b+\.tar\.gz.*Fix: "):
        stage(tmp_path, manifest, packages="b" * 64)
    (tmp_path / ".packages" / f"{digest}.tar.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="so it is damaged"):
        stage(tmp_path, manifest, packages=digest)
    assert not (tmp_path / "work" / "packages").exists()


# -- data.format files

NAMES = ("a/0.png", "a/1.png", "b/2.png", "b/3.png", "b/4.png")


@pytest.fixture
def file_manifest(tmp_path: Path, job: Path) -> dict[str, Any]:
    """Prepare five files as the data Job does, next to the program `mine`; return their manifest."""
    write_data(job, 3, digest="rows")
    pod = make_pod(tmp_path)
    pod.environ |= {"JOB_NAME": job.name, "data_digest": "d1"}
    pod.prepare(SOURCE=pod.folder({name: name.encode() for name in NAMES}), FORMAT="files")
    return wait_for_manifest(train_settings(tmp_path))


@pytest.mark.parametrize(
    ("cache", "copied"),
    [("storage", NAMES), ("pod", NAMES), ("podShare", ("a/1.png", "b/4.png"))],
)
def test_a_script_finds_the_files_in_one_folder_on_the_storage_or_on_the_pods_disk(
    tmp_path: Path, file_manifest: dict[str, Any], cache: str, copied: tuple[str, ...]
) -> None:
    stage(tmp_path, file_manifest, data_cache=cache)
    folder = tmp_path / "work" / "data" / "files"
    assert {name: (folder / name).read_text() for name in copied} == {name: name for name in copied}
    assert sorted(path.relative_to(folder).as_posix() for path in files.folder_files(folder)) == sorted(
        copied
    )
    assert folder.is_symlink() is (cache == "storage")
    stage(tmp_path, file_manifest, data_cache="storage")  # as in another container of the pod
    assert len(
        list((PreparedData(train_settings(tmp_path).layout, file_manifest).paths.files).rglob("*.png"))
    ) == len(NAMES)


@pytest.mark.parametrize(
    ("damaged", "content", "message"),
    [
        ("files/b/3.png", "changed", r"b/3\.png has sha256 .* Fix: delete .*/\.data/d1\.json and"),
        ("files/b/3.png", None, r"b/3\.png is missing, .* Fix: delete"),
        ("files.jsonl", "{}\n", r"files\.jsonl has sha256 .* Fix: delete"),
        ("files.jsonl", None, r"files\.jsonl"),
    ],
)
def test_a_damaged_file_is_not_copied(
    tmp_path: Path, file_manifest: dict[str, Any], damaged: str, content: str | None, message: str
) -> None:
    path = PreparedData(train_settings(tmp_path).layout, file_manifest).paths.root / damaged
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        stage(tmp_path, file_manifest, data_cache="pod")


def test_a_name_in_the_list_that_leads_out_of_the_folder_is_rejected(
    tmp_path: Path, file_manifest: dict[str, Any]
) -> None:
    path = PreparedData(train_settings(tmp_path).layout, file_manifest).paths.file_list
    content = path.read_text().replace("b/3.png", "../3.pn")
    path.write_text(content)
    file_manifest["files"]["list"]["sha256"] = hashlib.sha256(content.encode()).hexdigest()
    with pytest.raises(DataError, match=r"files\.jsonl is damaged"):
        stage(tmp_path, file_manifest, data_cache="pod")


def test_files_that_do_not_fit_on_the_pods_disk_are_rejected_unless_they_stay_on_the_storage(
    tmp_path: Path, file_manifest: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=r"sizeLimit .* is '30 bytes', but must be at least 35 bytes"):
        stage(tmp_path, file_manifest, data_cache="pod", **{LIMIT: 30})
    stage(tmp_path, file_manifest, data_cache="podShare", **{LIMIT: 30})
    stage(tmp_path, file_manifest, data_cache="storage", **{LIMIT: 1})
