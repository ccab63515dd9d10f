"""Tests of rank 0's writer of run.json and status.json."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from launcher.io import files
from launcher.paths import OutputPaths, Position
from launcher.schema import RestartRecord, RunFile, from_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan, plan_first_attempt
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.coordinator.run_files_writer import RunFilesWriter
from launcher.supervisor.peers.messages import Failure
from launcher.supervisor.shared_storage.output_lease import OutputLease
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.loopback_gang import pod_environ


class Run:
    """A writer of run.json and status.json whose plan a test sets."""

    def __init__(self, tmp_path: Path, earlier: RunFile | None = None, **env: str) -> None:
        self.output, self.plan = OutputPaths(tmp_path), AttemptPlan(0)
        self.settings = TrainSettings.from_environ(pod_environ(JOB_PATH=str(tmp_path), **env))
        self.writer = RunFilesWriter(
            self.output,
            self.settings,
            fingerprint={"program": "p"},
            earlier=earlier or RunFile(),
            lock=cast(OutputLease, SimpleNamespace(token="t", check=lambda: None)),
            read_plan=lambda: (self.plan, [Member(0)]),
            timings=replace(Timings(), status=0.01),
        )

    def write_plan(self) -> dict[str, Any]:
        """Write run.json with the present plan, and return its content."""
        self.writer.write_plan(self.plan)
        return self.read()

    def read(self) -> dict[str, Any]:
        """Return the content of run.json, which must be that of its copy."""
        assert self.output.run_json.read_bytes() == self.output.run_copy.read_bytes()
        return files.read_json(self.output.run_json) or {}


def test_status_json_is_not_written_before_the_first_plan(tmp_path: Path) -> None:
    """Regression: a run that waited for its output was shown as attempt -1."""
    run = Run(tmp_path)
    run.plan = AttemptPlan(-1)
    run.writer.open(AttemptPlan(4), is_complete=False)
    time.sleep(0.2)
    assert not run.output.status_json.exists()
    run.plan = AttemptPlan(4)
    run.writer.start_status()
    until(run.output.status_json.exists, "status.json")
    run.writer.stop_status()
    status: dict[str, Any] = json.loads(run.output.status_json.read_text())
    assert status["attempt"] == run.read()["attempt"] == 4
    assert status["cause"] is None, "a key without a value is written, too"


def test_run_json_has_what_a_later_rank_0_needs_to_continue(tmp_path: Path) -> None:
    run = Run(tmp_path)
    failed = RestartRecord(0, "x", 5000.0, [1, "trainer", 1, 0, 7])
    now = time.monotonic()
    run.plan = AttemptPlan(1, "serve", now, ("a", "b"), ("::1", "::2"), Position(1, 20), None, (failed,), 1)
    written = from_json(RunFile, run.write_plan())
    assert (written.run_id, written.holder, written.state) == (run.settings.run_id, "t", "training")
    assert (written.output_id, written.fingerprint) == (run.writer.output_id, {"program": "p"})
    plan, members = plan_first_attempt(written, 2, 2, now)
    assert (plan.attempt, plan.do, plan.counted_restarts) == (1, "stop", 1)
    assert plan.resume == Position(1, 20)
    assert plan.restarts == (failed,)
    assert [m.state.incarnation for m in members if m.state] == ["b"]


def test_run_json_has_the_program_and_with_keep_best_the_pass_of_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    record = run.write_plan()
    assert record["config"] == f"{run.settings.config_dir}/trainer_config.py"
    assert not {"keepBest", "patience", "modelPass"} & set(record)
    best = {"KEEP_BEST": "auc", "PATIENCE": "0", "PASSES": "7"}
    run = Run(tmp_path, **{f"PADDLE_LAUNCHER_{key}": value for key, value in best.items()})
    record = run.write_plan()
    assert (record["keepBest"], record["patience"], record["passes"]) == ("auc", 0, 7)
    assert "modelPass" not in record, "there is no model yet"
    run.output.model.mkdir()
    files.write_json(run.output.model / "model.json", {"checkpoint": "pass-00001"})
    assert run.write_plan()["modelPass"] == 1


def test_run_json_has_a_cause_only_after_a_failure_and_keeps_the_score(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.output.model.mkdir()
    (run.output.model / "score.json").write_text('{"error": 0.1}')
    record = run.write_plan()
    assert (record["score"], record["finished"], record["exported"]) == ({"error": 0.1}, None, None)
    assert not {"cause", "exitCode"} & set(record)
    (run.output.model / "score.json").unlink()
    run.writer.close("failed", Failure("y", 70, 0.0))
    record = run.read()
    assert (record["state"], record["cause"], record["exitCode"]) == ("failed", "y", 70)
    assert record["score"] == {"error": 0.1}, "the earlier score is kept"
    assert json.loads(run.output.status_json.read_text())["cause"] == "y"


def test_a_run_that_was_complete_keeps_its_times_and_its_export(tmp_path: Path) -> None:
    done = RunFile(run_id=pod_environ()["PADDLE_LAUNCHER_K8S_JOB"], output_id="o", started=1.0, finished=2.0)
    run = Run(tmp_path, replace(done, exported={"to": "s3://b"}, warning="trained alone"))
    run.writer.open(run.plan, is_complete=True)
    record = run.read()
    assert (record["started"], record["finished"], record["state"]) == (1.0, 2.0, "complete")
    assert (record["outputId"], record["exported"]) == ("o", {"to": "s3://b"})
    run = Run(tmp_path, replace(from_json(RunFile, record), run_id="another run"))
    assert run.writer.exported is None
    run.writer.open(run.plan, is_complete=True)
    assert run.read()["warning"] == "trained alone", "the model is the same"
    run.writer = Run(tmp_path, from_json(RunFile, run.read())).writer
    run.writer.open(run.plan, is_complete=False)
    assert run.read().get("warning") is None, "this training may go better"
