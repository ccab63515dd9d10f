"""Which output a run goes on with, and what it writes there about itself."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher import files
from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.layout import Output
from launcher.settings import TrainSettings
from launcher.storage.lock import Holder, LockLostError, RunLock, holder_at
from launcher.storage.output import Adopted, adopt, check_folders, fingerprint, make_room, write_run
from launcher.timings import Timings
from tests.launcher.core.clock import Clock
from tests.launcher.core.faulty import faulty
from tests.launcher.core.kit import environ


def train_settings(tmp_path: Path, **env: str) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_WORK_DIR=str(tmp_path / "work"), **env)
    )


# -- the output that a run goes on with


def test_the_fingerprint_leaves_out_passes_and_log_periods(tmp_path: Path) -> None:
    a = train_settings(tmp_path)
    b = replace(a, passes=99, log_period=1, restarts=0, k8s_job="other")
    assert fingerprint(a, "p") == fingerprint(b, "p")
    for change in (
        {"batch_size": 1},
        {"mode": "sync"},
        {"data_digest": "x"},
        {"extra_args": ("--a=1",)},
        {"fresh": "2"},
    ):
        assert fingerprint(replace(a, **change), "p") != fingerprint(a, "p")
    assert fingerprint(a, "q") != fingerprint(a, "p")


class Run:
    """One run's look at a job's output, with the lock held, on time that nobody waits for."""

    def __init__(self, tmp_path: Path, run: str = "run-1", program: str = "p") -> None:
        self.settings = train_settings(tmp_path, PADDLE_LAUNCHER_K8S_JOB=run)
        self.print = fingerprint(self.settings, program)
        self.output = Output(self.settings.layout.output)
        clock = Clock()
        who = Holder(run, "ns", "r", "quick-start", f"{run}-0", f"token-{run}")
        self.lock = RunLock(self.output.lock, who, Timings(), clock, clock.pause)

    def adopt(self) -> Adopted:
        self.lock.acquire()
        try:
            return adopt(self.settings, self.print, self.lock)
        finally:
            self.token = holder_at(self.output.lock).get("token")
            self.lock.release()

    def write(self, **values: Any) -> None:
        told = {
            "state": "training", "started": 1.0, "finished": None, "output_id": "o", "exported": None,
            "attempt": 0, "restarts": [], "holder": self.lock.token,
        }  # fmt: skip
        write_run(self.output, self.settings, self.print, **{**told, **values})

    def passes(self, *numbers: int) -> None:
        for number in numbers:
            self.output.pass_dir(number).mkdir(parents=True)
            (self.output.pass_dir(number) / "done").touch()


def test_an_empty_output_is_begun_with_attempt_0(tmp_path: Path) -> None:
    assert Run(tmp_path).adopt() == Adopted(Run(tmp_path).output, 0, {})


def test_a_run_goes_on_with_its_own_output_one_attempt_later(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.write(attempt=4)
    run.passes(0, 1)
    adopted = run.adopt()
    assert (adopted.attempt, adopted.earlier["outputId"]) == (5, "o")
    run.output.status_json.write_text('{"attempt": 7}')
    assert run.adopt().attempt == 8
    run.output.status_json.write_text('{"attempt": ')
    assert run.adopt().attempt == 5, "status.json is only shown: a cut one is no reason to end"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
@pytest.mark.parametrize("times", [1, 3, 1000])
def test_a_run_json_that_cannot_be_read_never_moves_an_output(tmp_path: Path, code: int, times: int) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.write(attempt=2)
    run.passes(*range(41))
    with faulty("open", "*/output/run.json", code, times=times):
        if times < len(files.WAITS):
            assert run.adopt().attempt == 3
        else:
            with pytest.raises(StorageFailedError):
                run.adopt()
    assert run.output.pass_dir(40).is_dir()
    assert not run.settings.layout.runs.exists()


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_saves_without_a_readable_run_json_are_neither_moved_nor_begun_anew(
    tmp_path: Path, content: str | None
) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.passes(0, 1)
    if content is not None:
        run.output.run_json.write_text(content)
    with pytest.raises(
        DataError,
        match=r"\(pass-00000 to pass-00001\): it is unknown which run saved them.*move the folder away: mv",
    ):
        run.adopt()
    assert run.output.pass_dir(1).is_dir()
    assert not run.settings.layout.runs.exists()


def test_every_flipped_bit_of_run_json_is_read_from_its_copy_and_no_output_is_moved(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.adopt()
    restarts = [{"attempt": 0, "cause": "x", "at": 5.0, "signature": None}]
    run.write(attempt=4, restarts=restarts, plan={"crew": ("a", "b"), "fruitless": 0, "resume": (1, 0)})
    run.passes(0)
    whole = run.output.run_json.read_bytes()
    as_written = run.adopt().earlier
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        run.output.run_json.write_bytes(flipped)
        earlier = run.adopt().earlier
        assert as_written.items() <= earlier.items(), "at most the name of the checksum is another"
    assert run.output.pass_dir(0).is_dir()
    assert not run.settings.layout.runs.exists()
    run.output.run_copy.write_bytes(whole[:-9])
    run.output.run_json.write_bytes(whole.replace(b'"fingerprint"', b'"fingerprins"'))
    with pytest.raises(DataError, match=r"checksum is not that(.|\n)*Put run.json or run.copy.json back"):
        run.adopt()
    assert run.output.pass_dir(0).is_dir()


@pytest.mark.parametrize("field", ["fingerprint", "attempt", "restarts", "crew", "resume", "started"])
def test_an_older_run_json_has_no_checksum_and_a_damaged_one_is_refused_by_its_field(
    tmp_path: Path, field: str
) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.write(attempt=4)
    run.passes(0)
    run.output.run_copy.unlink()
    older = json.loads(run.output.run_json.read_text())
    del older["checksum"]
    run.output.run_json.write_text(json.dumps(older))
    assert run.adopt().attempt == 5
    run.output.run_json.write_text(json.dumps(older | {field: "x"}))
    with pytest.raises(DataError, match=f"run.json is damaged: {field} is 'x'"):
        run.adopt()
    assert not run.settings.layout.runs.exists()


def test_a_rollback_finds_an_earlier_run_by_the_copy_of_its_record(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "run-1", "p"), Run(tmp_path, "run-2", "q")
    first.adopt()
    first.write()
    first.passes(0)
    second.adopt()
    second.write()
    aside = Output(first.settings.layout.run("run-1"))
    aside.run_json.write_text(aside.run_json.read_text().replace('"p"', '"q"'))
    assert first.adopt().earlier["runId"] == "run-1"


@pytest.mark.parametrize("name", ["output", "runs", "output/run.lock", "output/node_1", "output/pass-00007"])
def test_a_link_where_the_launcher_writes_is_refused_and_not_followed(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path)
    job, elsewhere = run.settings.layout.job, tmp_path / "elsewhere"
    run.output.root.mkdir(parents=True)
    check_folders(run.settings.layout)
    elsewhere.mkdir()
    if name == "output":
        run.output.root.rmdir()
    (job / name).symlink_to(elsewhere)
    with pytest.raises(StorageError, match=rf"{name} is a symbolic link.*Fix: remove it"):
        check_folders(run.settings.layout)
    (job / name).unlink()
    (job / name).symlink_to(tmp_path / "gone")
    with pytest.raises(StorageError, match="is a symbolic link"):
        check_folders(run.settings.layout)


def test_a_file_in_place_of_the_output_is_refused_at_once(tmp_path: Path) -> None:
    layout = Run(tmp_path).settings.layout
    layout.job.mkdir(parents=True)
    layout.output.touch()
    with pytest.raises(StorageError, match="output is a file, but"):
        check_folders(layout)
    layout.output.unlink()
    layout.output.mkdir()
    Output(layout.output).node(1).touch()
    with pytest.raises(StorageError, match="node_1 is a file, but"):
        check_folders(layout)


def test_an_unreadable_run_json_without_any_save_is_moved_aside(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.output.run_json.write_text("{")
    assert run.adopt().attempt == 0
    assert (run.settings.layout.run("unknown") / "run.json").read_text() == "{"


def test_another_run_moves_the_output_aside_and_the_first_brings_it_back(tmp_path: Path) -> None:
    first, second = Run(tmp_path, "run-1", "p"), Run(tmp_path, "run-2", "q")
    first.adopt()
    first.write()
    first.passes(0)
    assert second.adopt().attempt == 0
    assert second.token == second.lock.token, "the folder came with the lock in it"
    assert Output(first.settings.layout.run("run-1")).pass_dir(0).is_dir()
    assert not Output(first.settings.layout.run("run-1")).lock.exists()
    second.write()
    broken = first.settings.layout.run("broken")
    broken.mkdir()
    (broken / "run.json").write_text("{")  # of no run that could be brought back
    removed = first.settings.layout.run(".run-0.0123.old")  # by `clean`, just now
    removed.mkdir()
    told = json.loads((first.settings.layout.run("run-1") / "run.json").read_text())
    del told[files.CHECKSUM]
    newer = files.sealed({**told, "runId": "run-0", "started": told["started"] + 1})
    (removed / "run.json").write_text(json.dumps(newer))
    back = first.adopt()
    assert (back.attempt, back.earlier["runId"]) == (1, "run-1")
    assert first.output.pass_dir(0).is_dir()
    assert json.loads((first.settings.layout.run("run-2") / "run.json").read_text())["runId"] == "run-2"


def test_a_rival_that_takes_the_name_in_between_keeps_it(tmp_path: Path) -> None:
    first, second, rival = (
        Run(tmp_path, "run-1", "p"),
        Run(tmp_path, "run-2", "q"),
        Run(tmp_path, "run-3", "r"),
    )
    first.adopt()
    first.write()
    into_place = faulty("rename", "*/.output-run-2.tmp", then=rival.lock.acquire)
    with into_place, pytest.raises(LockLostError, match="another run made"):
        second.adopt()
    assert holder_at(rival.output.lock).get("token") == rival.lock.token


# -- what it leaves there


def test_run_json_names_the_program_and_with_keep_best_the_pass_of_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.write()
    told = files.read_json(run.output.run_json) or {}
    assert told["config"] == f"{run.settings.config_dir}/trainer_config.py"
    assert "keepBest" not in told
    run.settings = replace(run.settings, keep_best="auc", patience=2, passes=7)
    run.write()
    told = files.read_json(run.output.run_json) or {}
    assert (told["keepBest"], told["patience"], told["passes"]) == ("auc", 2, 7)
    assert "modelPass" not in told, "there is no model yet"
    run.output.model.mkdir()
    files.write_json(run.output.model / "model.json", {"checkpoint": "pass-00001"})
    run.write()
    assert (files.read_json(run.output.run_json) or {})["modelPass"] == 1


def test_run_json_tells_attempt_restarts_and_holder_and_a_cause_only_when_there_is_one(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.adopt()
    run.output.model.mkdir()
    (run.output.model / "score.json").write_text('{"error": 0.1}')
    restarts = [{"attempt": 0, "cause": "x", "at": 5.0}]
    run.write(attempt=1, restarts=restarts)
    told = json.loads(run.output.run_json.read_text())
    assert (told["attempt"], told["restarts"], told["holder"]) == (1, restarts, "token-run-1")
    assert told["score"] == {"error": 0.1}
    assert not {"cause", "exitCode"} & set(told)
    (run.output.model / "score.json").unlink()
    run.write(state="failed", cause="y", exit_code=70)
    told = json.loads(run.output.run_json.read_text())
    assert (told["state"], told["cause"], told["exitCode"]) == ("failed", "y", 70)
    assert told["score"] == {"error": 0.1}, "an earlier end's score stays"


def test_each_attempts_logs_make_room_for_the_next_and_none_is_overwritten(tmp_path: Path) -> None:
    output = Output(tmp_path)

    def say(text: str) -> None:
        output.train_log(1).write_text(text)

    make_room(output, 1, 0)
    say("0")
    make_room(output, 1, 1)
    assert not output.train_log(1).exists()
    say("1")
    make_room(output, 1, 1)  # again: by another pod of this rank, which joined the same attempt
    say("more of 1")
    make_room(output, 1, 2)
    make_room(output, 1, 2)
    folder = output.node(1)
    assert {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.log")} == {
        "attempt-0/train.log": "0",
        "attempt-0/train.2.log": "1",
        "attempt-1/train.log": "more of 1",
    }
