"""Tests of opening and archiving an output folder and of the run record in it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.io import files, run_record
from launcher.paths import OutputPaths, Position
from launcher.schema import RestartRecord, RunFile
from launcher.settings import TrainSettings
from launcher.supervisor.shared_storage.output_folder import (
    _can_resume,
    archive_logs,
    check_folders,
    find_newest_save,
    open_output,
    run_fingerprint,
)
from launcher.supervisor.shared_storage.output_lease import (
    LeaseLostError,
    OutputLease,
    read_lease_holder,
)
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.failing_calls import fail_calls
from tests.launcher.supervisor.fake_clock import FakeClock
from tests.launcher.supervisor.loopback_gang import train_settings

# -- opening the output


def test_the_fingerprint_does_not_depend_on_passes_and_log_periods(tmp_path: Path) -> None:
    a = train_settings(tmp_path)
    b = replace(a, passes=99, log_period=1, restarts=0, k8s_job="other")
    assert run_fingerprint(a, "p") == run_fingerprint(b, "p")
    for change in (
        {"batch_size": 1},
        {"mode": "sync"},
        {"data_digest": "x"},
        {"args": ("--a=1",)},
        {"start_from_scratch": "2"},
    ):
        assert run_fingerprint(replace(a, **change), "p") != run_fingerprint(a, "p")
    assert run_fingerprint(a, "q") != run_fingerprint(a, "p")


def test_a_script_resumes_with_other_processes_but_not_with_other_data(tmp_path: Path) -> None:
    script = {"runtime": "collective", "source_digest": "s"}
    one = replace(train_settings(tmp_path), **script)
    more = replace(one, trainers=9, ports_num=2, data_digest="other shards")
    other = replace(one, source_digest="other")
    fleet = train_settings(tmp_path)

    def resumes(earlier: TrainSettings, ours: TrainSettings) -> bool:
        return _can_resume(run_fingerprint(earlier, "p"), run_fingerprint(ours, "p"))

    assert resumes(one, one)
    assert resumes(one, more)
    assert not resumes(one, other)
    assert not resumes(one, fleet)
    assert not resumes(fleet, one)
    assert not resumes(fleet, replace(fleet, trainers=9))


class RunOutput:
    """The output folder as the pods of one run see it; each has a lease of its own, on a fake clock."""

    def __init__(self, tmp_path: Path, run: str = "run-1", program: str = "p") -> None:
        self.settings = train_settings(tmp_path, PADDLE_LAUNCHER_K8S_JOB=run)
        self.fingerprint = run_fingerprint(self.settings, program)
        self.output = OutputPaths(self.settings.layout.output)
        self._new_lock()

    def _new_lock(self) -> None:
        clock = FakeClock()
        token = f"token-{self.settings.run_id}"
        self.lock = OutputLease(
            self.output.lock, self.settings, Timings(), token=token, clock=clock, pause=clock.pause
        )

    def open_output(self) -> tuple[int, RunFile]:
        """Acquire the lease in a new pod, open the output and release the lease."""
        self._new_lock()
        self.lock.acquire()
        try:
            return open_output(self.settings, self.fingerprint, self.lock)
        finally:
            self.token = read_lease_holder(self.output.lock).get("token")
            self.lock.release()

    def write_record(self, **values: Any) -> None:
        """Write run.json with `values`."""
        record = RunFile(
            run_id=self.settings.run_id, output_id="o", fingerprint=self.fingerprint, state="training",
            started=1.0, holder=self.lock.token,
        )  # fmt: skip
        run_record.write(self.output, replace(record, **values))

    def write_checkpoints(self, *numbers: int) -> None:
        """Create finished checkpoints of these passes."""
        for number in numbers:
            self.output.checkpoint(Position(number + 1)).mkdir(parents=True)
            (self.output.checkpoint(Position(number + 1)) / "done").touch()


@pytest.fixture
def run(tmp_path: Path) -> RunOutput:
    """Return a run that has opened a new output."""
    run = RunOutput(tmp_path)
    run.open_output()
    return run


def test_a_new_output_starts_with_attempt_0(tmp_path: Path) -> None:
    assert RunOutput(tmp_path).open_output() == (0, RunFile())


def test_a_run_resumes_its_own_output_with_the_next_attempt(run: RunOutput) -> None:
    run.write_record(attempt=4)
    run.write_checkpoints(0, 1)
    attempt, earlier = run.open_output()
    assert (attempt, earlier.output_id) == (5, "o")
    run.output.status_json.write_text('{"attempt": 7}')
    assert run.open_output()[0] == 8
    run.output.status_json.write_text('{"attempt": ')
    assert run.open_output()[0] == 5, "a truncated status.json is ignored"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_storage_error_of_run_json_never_moves_an_output(run: RunOutput, code: int, times: int) -> None:
    run.write_record(attempt=2)
    run.write_checkpoints(*range(41))
    with fail_calls("open", "*/output/run.json", code, times=times):
        if times < len(files.RETRY_WAITS):
            assert run.open_output()[0] == 3
        else:
            with pytest.raises(StorageFailedError):
                run.open_output()
    assert run.output.checkpoint(Position(41)).is_dir()
    assert not run.settings.layout.runs.exists()


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_checkpoints_without_a_readable_run_json_raise_and_are_not_moved(
    run: RunOutput, content: str | None
) -> None:
    run.write_checkpoints(0, 1)
    if content is not None:
        run.output.run_json.write_text(content)
    with pytest.raises(
        DataError,
        match=r"\(pass-00000 to pass-00001\): it is unknown which run saved them.*move the folder away: mv",
    ):
        run.open_output()
    assert run.output.checkpoint(Position(2)).is_dir()
    assert not run.settings.layout.runs.exists()


@pytest.mark.slow
def test_run_json_with_a_flipped_bit_is_read_from_its_copy(run: RunOutput) -> None:
    restarts = [RestartRecord(0, "x", 5.0, signature=[0, "trainer", 1])]
    run.write_record(attempt=4, restarts=restarts, incarnations=["a", "b"], resume={"pass": 1, "batch": 0})
    run.write_checkpoints(0)
    intact = run.output.run_json.read_bytes()
    as_written = run.open_output()[1]
    for place in range(len(intact)):
        flipped = bytearray(intact)
        flipped[place] ^= 1 << (place % 8)
        run.output.run_json.write_bytes(flipped)
        assert run.open_output()[1] == as_written
    assert run.output.checkpoint(Position(1)).is_dir()
    assert not run.settings.layout.runs.exists()
    run.output.run_copy.write_bytes(intact[:-9])
    run.output.run_json.write_bytes(intact.replace(b'"fingerprint"', b'"fingerprins"'))
    with pytest.raises(DataError, match=r"checksum does not match(.|\n)*restore run.json or run.copy.json"):
        run.open_output()
    assert run.output.checkpoint(Position(1)).is_dir()


@pytest.mark.parametrize("field", ["fingerprint", "attempt", "restarts", "incarnations", "resume", "started"])
def test_run_json_without_checksum_is_read_and_rejected_if_a_field_is_invalid(
    run: RunOutput, field: str
) -> None:
    run.write_record(attempt=4)
    run.write_checkpoints(0)
    run.output.run_copy.unlink()
    older = json.loads(run.output.run_json.read_text())
    del older["checksum"]
    run.output.run_json.write_text(json.dumps(older))
    assert run.open_output()[0] == 5
    run.output.run_json.write_text(json.dumps(older | {field: "x"}))
    with pytest.raises(DataError, match=f"run.json is damaged: {field} is 'x'"):
        run.open_output()
    assert not run.settings.layout.runs.exists()


def test_a_rollback_finds_an_earlier_run_by_run_copy_json(tmp_path: Path) -> None:
    first, second = RunOutput(tmp_path, "run-1", "p"), RunOutput(tmp_path, "run-2", "q")
    first.open_output()
    first.write_record()
    first.write_checkpoints(0)
    second.open_output()
    second.write_record()
    aside = OutputPaths(first.settings.layout.run("run-1"))
    aside.run_json.write_text(aside.run_json.read_text().replace('"p"', '"q"'))
    assert first.open_output()[1].run_id == "run-1"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, "a symbolic link")
            for name in ("output", "runs", "output/run.lock", "output/node_1", "output/pass-00007")
        ),
        ("output", "a file"),
        ("output/node_1", "a file"),
    ],
)
def test_a_symbolic_link_or_a_file_in_place_of_a_folder_of_the_output_is_rejected(
    tmp_path: Path, name: str, kind: str
) -> None:
    layout = RunOutput(tmp_path).settings.layout
    layout.output.mkdir(parents=True)
    check_folders(layout)
    path, elsewhere = layout.job / name, tmp_path / "elsewhere"
    elsewhere.mkdir()
    if name == "output":
        layout.output.rmdir()
    for target in (elsewhere, tmp_path / "gone"):
        path.unlink(missing_ok=True)
        path.touch() if kind == "a file" else path.symlink_to(target)
        with pytest.raises(StorageError, match=rf"{name} is {kind}, but .*Fix: remove it"):
            check_folders(layout)


def test_an_output_with_unreadable_run_json_and_no_checkpoint_is_archived(run: RunOutput) -> None:
    run.output.run_json.write_text("{")
    assert run.open_output()[0] == 0
    assert (run.settings.layout.run("unknown") / "run.json").read_text() == "{"


def test_another_run_archives_the_output_and_the_first_run_restores_it(tmp_path: Path) -> None:
    first, second = RunOutput(tmp_path, "run-1", "p"), RunOutput(tmp_path, "run-2", "q")
    first.open_output()
    first.write_record()
    first.write_checkpoints(0)
    assert second.open_output()[0] == 0
    assert second.token == second.lock.token, "the new folder contains the lease"
    assert OutputPaths(first.settings.layout.run("run-1")).checkpoint(Position(1)).is_dir()
    assert not OutputPaths(first.settings.layout.run("run-1")).lock.exists()
    second.write_record()
    broken = first.settings.layout.run("broken")
    broken.mkdir()
    (broken / "run.json").write_text("{")  # an archived run without a valid record
    removed = first.settings.layout.run(".run-0.0123.old")  # a run that `clean` is removing
    removed.mkdir()
    record = json.loads((first.settings.layout.run("run-1") / "run.json").read_text())
    del record[files.CHECKSUM]
    newer = files.with_checksum({**record, "runId": "run-0", "started": record["started"] + 1})
    (removed / "run.json").write_text(json.dumps(newer))
    attempt, earlier = first.open_output()
    assert (attempt, earlier.run_id) == (1, "run-1")
    assert first.output.checkpoint(Position(1)).is_dir()
    assert json.loads((first.settings.layout.run("run-2") / "run.json").read_text())["runId"] == "run-2"


def test_an_output_created_by_another_run_in_the_meantime_is_kept(tmp_path: Path) -> None:
    first, second, other = (
        RunOutput(tmp_path, "run-1", "p"),
        RunOutput(tmp_path, "run-2", "q"),
        RunOutput(tmp_path, "run-3", "r"),
    )
    first.open_output()
    first.write_record()
    during_rename = fail_calls("rename", "*/.output-run-2.tmp", then=other.lock.acquire)
    with during_rename, pytest.raises(LeaseLostError, match="another run created"):
        second.open_output()
    assert read_lease_holder(other.output.lock).get("token") == other.lock.token


# -- the logs


def test_archive_logs_keeps_the_logs_of_every_attempt(tmp_path: Path) -> None:
    output = OutputPaths(tmp_path)

    def write_log(text: str) -> None:
        output.train_log(1).write_text(text)

    archive_logs(output, 1, 0)
    write_log("0")
    archive_logs(output, 1, 1)
    assert not output.train_log(1).exists()
    write_log("1")
    archive_logs(output, 1, 1)  # by another pod of this rank in the same attempt
    write_log("more of 1")
    archive_logs(output, 1, 2)
    archive_logs(output, 1, 2)
    folder = output.node(1)
    assert {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.log")} == {
        "attempt-0/train.log": "0",
        "attempt-0/train.2.log": "1",
        "attempt-1/train.log": "more of 1",
    }


def test_the_newest_file_of_a_scripts_checkpoints_is_found_and_logs_do_not_count(tmp_path: Path) -> None:
    times = {
        "epoch_1/x.pdparams": 10,
        "epoch_2/x.pdopt": 20,
        "train.log": 30,
        "vdlrecords.1": 40,
        ".x.tmp": 50,
    }
    for name, seconds in times.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (seconds, seconds))
    assert find_newest_save(tmp_path) == (20, "epoch_2/x.pdopt")
    assert find_newest_save(tmp_path / "absent") == (0, "")
