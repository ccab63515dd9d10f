"""Tests of `training.initModelPath: previous`: which model a run starts from, and that all ranks load the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import SettingsError
from launcher.io import run_record
from launcher.io.checkpoints import MODEL_FILES
from launcher.paths import OutputPaths
from launcher.schema import RunFile, from_json
from launcher.settings import TrainSettings
from launcher.supervisor.shared_storage.output_folder import find_previous_model
from tests.launcher.supervisor.loopback_gang import LoopbackGang, pod_environ, write_data

MODEL = {"model": dict.fromkeys(MODEL_FILES, 10)}
EXPORTED = {"to": "s3://bucket/models/quick-start/run-9/", "program": "p"}


def settings(tmp_path: Path) -> TrainSettings:
    return TrainSettings.from_environ(pod_environ(JOB_PATH=str(tmp_path), init_model="previous"))


def past_run(tmp_path: Path, name: str, finished: float, program: str = "p", state: str = "complete") -> Path:
    output = OutputPaths(tmp_path / "quick-start" / "runs" / name)
    output.model.mkdir(parents=True)
    for file in MODEL_FILES:
        (output.model / file).touch()
    run_record.write(output, RunFile(fingerprint={"program": program}, state=state, finished=finished))
    return output.root


def find(tmp_path: Path, exported: dict[str, Any] | None = None) -> str:
    return find_previous_model(settings(tmp_path), "p", exported, lambda seconds: None)


def test_the_newest_complete_run_of_the_program_is_found(tmp_path: Path) -> None:
    past_run(tmp_path, "a", 10.0)
    past_run(tmp_path, "b", 30.0)
    past_run(tmp_path, "c", 20.0)
    past_run(tmp_path, "failed", 90.0, state="failed")
    past_run(tmp_path, "other-program", 80.0, program="q")
    (past_run(tmp_path, "damaged", 70.0) / "model" / MODEL_FILES[0]).unlink()
    past_run(tmp_path, ".removed", 60.0)
    (past_run(tmp_path, "unreadable", 50.0) / "run.json").write_text("{")
    (tmp_path / "quick-start" / "runs" / "unreadable" / "run.copy.json").unlink()
    assert find(tmp_path, EXPORTED) == "quick-start/runs/b"


def test_without_a_complete_run_on_the_storage_the_export_is_used_and_without_both_none(
    tmp_path: Path,
) -> None:
    assert find(tmp_path) == ""
    past_run(tmp_path, "failed", 90.0, state="failed")
    assert find(tmp_path) == ""
    assert find(tmp_path, EXPORTED) == "s3://bucket/models/quick-start/run-9"


@pytest.mark.parametrize("exported", [None, EXPORTED | {"program": None}])
def test_models_of_another_program_only_are_an_error(tmp_path: Path, exported: dict[str, Any] | None) -> None:
    newest = "s3://bucket/models/quick-start/run-9"
    if exported is None:
        past_run(tmp_path, "a", 10.0, program="q")
        past_run(tmp_path, "b", 20.0, program="r")
        newest = "quick-start/runs/b"
    with pytest.raises(SettingsError, match=rf"is 'previous'.*another program; the newest one is {newest}\."):
        find(tmp_path, exported)


@pytest.mark.slow
def test_all_ranks_start_from_the_model_of_the_run_before_also_after_a_failure(tmp_path: Path) -> None:
    def build_gang(run: str, digest: str, fake: dict[str, Any]) -> LoopbackGang:
        write_data(tmp_path / "shared" / "quick-start", 2, digest)
        more = {"data_digest": digest, "init_model": "previous"}
        return LoopbackGang(tmp_path, trainers=2, run=run, fake=fake, **more)

    with build_gang("run-1", "d1", MODEL) as first:
        assert first.start().wait_for_exit() == [0, 0], first.pod_log(0)
        assert "no run of this job is complete: starting from scratch" in first.pod_log(0)
        assert first.read_json("run.json")["initModel"] == ""
        assert "initial model: ''" in first.read_log(1)
    # Trainer 0 hangs, so that the failed run has no checkpoint from which the next one resumes.
    faults = {"trainer:0": {"do": "hang", "at": "start"}, "trainer:1": {"do": "exit", "at": "start"}}
    with build_gang("run-2", "d2", faults) as failed:
        assert failed.start().wait_for_exit() == [70, 70]
    # Later starts with the same data read the record, and do not look again.
    newer = OutputPaths(tmp_path / "shared" / "quick-start" / "runs" / "newer")
    shutil.copytree(newer.root.with_name("run-1"), newer.root)
    run_1 = run_record.read(newer)[0] or {}
    run_record.write(newer, from_json(RunFile, {**run_1, "finished": 1e12}))
    with build_gang("run-3", "d2", MODEL) as third:
        assert third.start().wait_for_exit() == [0, 0], third.pod_log(0)
        for rank in (0, 1):
            assert "initial model: 'quick-start/runs/run-1'" in third.read_log(rank)
        assert " starts with the parameters of quick-start/runs/run-1" in third.pod_log(0)
        assert third.read_json("run.json")["initModel"] == "quick-start/runs/run-1"
    with build_gang("run-4", "d4", MODEL) as fourth:
        assert fourth.start().wait_for_exit() == [0, 0], fourth.pod_log(0)
        assert "initial model: 'quick-start/runs/newer'" in fourth.read_log(1)
