"""Tests of run.json, status.json and the metrics page, which rank 0 writes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.io import files
from launcher.paths import OutputPaths, Position
from launcher.schema import RestartRecord, RunFile, StatusFile, TrainerProgress, from_json, to_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import plan_first_attempt
from launcher.supervisor.coordinator.members import Member, ScriptChanges
from launcher.supervisor.coordinator.run_writer import (
    RunFilesWriter,
    build_status,
    describe_wait,
    render_metrics,
)
from launcher.supervisor.peers.messages import Failure, Plan
from launcher.supervisor.shared_storage.output_lease import LeaseLostError, OutputLease
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import LIMITS, NOW, absent, make_plan, member
from tests.launcher.supervisor.loopback_gang import pod_environ, train_settings


class Run:
    """A writer of run.json and status.json whose plan a test sets."""

    def __init__(self, tmp_path: Path, earlier: RunFile | None = None, **env: Any) -> None:
        self.output, self.plan, self.members = OutputPaths(tmp_path), Plan(), [absent(0), absent(1)]
        self.settings = TrainSettings.from_environ(pod_environ(JOB_PATH=str(tmp_path), **env))
        self.writer = RunFilesWriter(
            self.output,
            self.settings,
            fingerprint={"program": "p"},
            earlier=earlier or RunFile(),
            lock=cast(OutputLease, SimpleNamespace(token="t", check=lambda: None)),
            limits=LIMITS,
            read_plan=lambda: (self.plan, self.members),
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
    run.plan = Plan(attempt=-1)
    run.writer.open(Plan(attempt=4), is_complete=False)
    time.sleep(0.2)
    assert not run.output.status_json.exists()
    run.plan = Plan(attempt=4)
    run.writer.start_status()
    until(run.output.status_json.exists, "status.json")
    run.writer.stop_status()
    status: dict[str, Any] = json.loads(run.output.status_json.read_text())
    assert status["attempt"] == run.read()["attempt"] == 4
    assert status["cause"] is None, "a key without a value is written, too"


def test_a_pod_that_has_lost_the_lease_does_not_try_to_write_the_status_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.plan = Plan(attempt=0)

    def lose() -> None:
        raise LeaseLostError("lost")

    run.writer._lock = cast(OutputLease, SimpleNamespace(check=lose))
    run.writer.start_status()
    until(lambda: not run.writer._thread.is_alive(), "the end of the thread")


def test_run_json_has_what_a_later_rank_0_needs_to_continue(tmp_path: Path) -> None:
    run = Run(tmp_path)
    failed = RestartRecord(0, "x", 5000.0, [1, "trainer", 1, 0, 7])
    now = time.monotonic()
    run.plan = make_plan(
        1,
        "serve",
        since=now,
        incarnations=("a", "b"),
        resume=Position(1, 20),
        restarts=(failed,),
        counted_restarts=1,
    )
    written = from_json(RunFile, run.write_plan())
    assert (written.run_id, written.holder, written.state) == (run.settings.run_id, "t", "training")
    assert (written.output_id, written.fingerprint) == (run.writer.output_id, {"program": "p"})
    plan, members = plan_first_attempt(written, 2, 2, now)
    assert (plan.attempt, plan.do, plan.counted_restarts) == (1, "stop", 1)
    assert plan.resume == Position(1, 20)
    assert plan.restarts == (failed,)
    assert [m.state.incarnation for m in members] == ["", "b"]


@pytest.mark.parametrize(
    ("run_id", "state", "is_kept"),
    [("", "training", True), ("", "stopped", True), ("", "failed", False), ("another", "training", False)],
)
def test_another_coordinator_of_a_run_keeps_the_time_of_its_start(
    tmp_path: Path, run_id: str, state: str, is_kept: bool
) -> None:
    ours = Run(tmp_path).settings.run_id
    run = Run(tmp_path, RunFile(run_id=run_id or ours, state=state, started=1.0))
    run.writer.open(run.plan, is_complete=False)
    assert (run.read()["started"] == 1.0) is is_kept


def test_status_says_until_when_ranks_wait_to_be_taken_in_and_a_change_of_the_scripts_files_is_noticed(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, runtime="collective", config_file="mine/train.py")
    run.plan, now = make_plan(0, "train", world=(0,), grow_since=NOW), time.monotonic()
    run.members = [member(0, "training", 0, heard=now), member(1, heard=now)]
    waits = run.writer.build_status().waiting_for or ""
    assert waits.startswith("the first checkpoint, to take in rank 1 (pod pod-1 on node node-a); without one")
    run.members[0] = member(0, "training", 0, heard=now, progress=TrainerProgress(saved=Position(1)))
    waits = run.writer.build_status().waiting_for or ""
    assert waits == "the next checkpoint, to take in rank 1 (pod pod-1 on node node-a)"
    run.plan = make_plan(0, "train")
    folder = run.output.script_checkpoints
    folder.mkdir()
    run.writer._write_status(None)
    assert run.writer.script_changes is None
    (folder / "model.bin").write_text("1")
    run.writer._next_look = 0.0
    run.writer._write_status(None)
    first = run.writer.script_changes
    assert first is not None and first.first == first.last
    run.writer._next_look = 0.0
    run.writer._write_status(None)
    assert run.writer.script_changes == first
    os.utime(folder / "model.bin", (5.0, 5.0))
    run.writer._next_look = 0.0
    run.writer._write_status(None)
    second = run.writer.script_changes
    assert second.first == first.first < second.last
    run.writer.script_changes = ScriptChanges(second.first, second.last - 10)  # then a pause
    os.utime(folder / "model.bin", (6.0, 6.0))
    run.writer._next_look = 0.0
    run.writer._write_status(None)
    third = run.writer.script_changes
    assert third.first == third.last > second.last


def test_run_json_has_the_program_and_with_keep_best_the_pass_of_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    record = run.write_plan()
    assert record["config"] == f"{run.settings.config_dir}/trainer_config.py"
    assert not {"keepBest", "patience", "modelPass"} & set(record)
    run = Run(tmp_path, keep_best="auc", patience=0, passes=7)
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


# status.json.


def make_status(*members: Member, do: str = "train", wall: float = NOW, **fields: Any) -> StatusFile:
    """Return the status of a run in attempt 1 with this action, which was decided 5 s ago."""
    restarts = (RestartRecord(0, "a death", 4990.0, [0, "trainer", 1, 1, 2]),)
    plan = make_plan(1, do, since=NOW - 5, restarts=restarts)
    settings = TrainSettings.from_environ(pod_environ(trainers=len(members), **fields))
    return build_status(settings, members, plan, LIMITS, now=NOW, wall=wall)


def trainer(rank: int, phase: str = "training", *, storage: float = 0.0, **progress: Any) -> Member:
    """Return a member in attempt 1 with this progress."""
    return member(rank, phase, 1, storage=storage, progress=TrainerProgress(**progress))


def test_status_has_the_total_speed_the_slowest_position_and_the_longest_eta() -> None:
    status = make_status(
        trainer(0, number=2, batch=5, batches=10, samples_per_second=100.0, loss=1.0, state="saving"),
        trainer(1, number=1, batch=9, batches=10, samples_per_second=50.0, loss=3.0),
        trainer(2),
        passes=4,
        batch_size=10,
    )
    value = to_json(status)
    assert (value["pass"], value["batch"], value["samplesPerSecond"], value["loss"]) == (1, 9, 150.0, 2.0)
    assert value["etaSeconds"] == pytest.approx((3 * 10 - 9) * 10 / 50.0, abs=0.1)
    assert value["ranks"][2]["loss"] is None
    assert [rank["state"] for rank in value["ranks"]] == ["saving", "training", "training"]
    assert value["restarts"] == [{"attempt": 0, "cause": "a death", "at": 4990.0}]
    assert (value["state"], value["attempt"], value["waitingFor"]) == ("training", 1, None)
    page = render_metrics(status, 1.5).decode()
    assert 'paddle_training_restarts_total{cause="a death"} 1.0' in page
    assert "paddle_training_rendezvous_seconds 1.5" in page
    assert "paddle_training_pass 1.0" in page


def test_a_script_reports_its_own_batch_size_and_passes_and_no_number_of_the_status_is_infinite() -> None:
    script = {
        "number": 1,
        "batch": 10,
        "batches": 20,
        "samples_per_second": 8.0,
        "batch_size": 4.0,
        "passes": 3,
    }
    found = make_status(trainer(0, **script), trainer(1), passes=10)
    assert (found.passes, found.number, found.batch, found.eta) == (3, 1, 10, (20 + 10) * 4 / 8)
    speeds = (1.7e308, 1.7e308, 5e-324)
    ranks = [
        trainer(n, **script | {"samples_per_second": each, "loss": 1.7e308}) for n, each in enumerate(speeds)
    ]
    found = make_status(*ranks)
    assert (found.samples_per_second, found.loss, found.eta) == (None, None, None)


@pytest.mark.parametrize(
    ("do", "other", "state", "wait"),
    [
        ("wait", absent(1), "rendezvous", "rank 1 to join"),
        ("wait", member(1, "idle", 0, heard=NOW - 10), "rendezvous", "rank 1 (pod pod-1 on node node-a) to join"),
        ("wait", trainer(1, "staging"), "rendezvous", "{} to stage its shard"),
        ("wait", trainer(1, "done"), "rendezvous", "{} to stop its processes"),
        ("wait", member(1, ghost_until=NOW + 1), "rendezvous", "the processes of {}'s earlier pod to exit"),
        ("wait", trainer(1, "idle"), "rendezvous", None),
        ("serve", trainer(1, "serving"), "starting", "the pservers of {} to accept connections"),
        ("serve", member(1, "idle", 0), "starting", "the pservers of {} to accept connections"),
        ("serve", trainer(1, "ready"), "starting", None),
        ("train", trainer(1, state="starting"), "starting", "{} (starting) to start training"),
        ("train", trainer(1, state="joining"), "starting", "{} (joining) to start training"),
        ("train", trainer(1, state="loading"), "starting", "{} (loading) to start training"),
        ("train", trainer(1, state="saving"), "training", None),
        ("train", trainer(1, "training", storage=45.2), "training", "the storage to answer {}: no answer for 45 s"),
        ("finish", trainer(1, "done"), "finishing", None),
        ("stop", trainer(1, "training"), "restarting", "{} to stop its processes"),
        ("stop", trainer(1, "idle"), "restarting", None),
    ],
)  # fmt: skip
def test_status_says_what_the_run_waits_for(do: str, other: Member, state: str, wait: str | None) -> None:
    phases = {"wait": "idle", "serve": "ready", "stop": "ended", "finish": "ended"}
    found = make_status(trainer(0, phases.get(do, "training"), state="training"), other, do=do)
    label = "rank 1 (pod pod-1 on node node-a)"
    assert (found.state, found.waiting_for) == (state, wait and wait.format(label))
    assert found.ranks[1].storage_seconds == other.state.storage


def test_status_says_since_when_ranks_are_missing_and_has_no_progress_of_an_earlier_attempt() -> None:
    stale = member(0, "ended", 0, progress=TrainerProgress(3, 1))
    found = make_status(stale, absent(1), do="wait", wall=5000.0)
    assert (found.number, found.waiting_since, found.join_seconds) == (None, 4995.0, 900 + 6 * 3600)
    assert make_status(stale, do="wait").waiting_since is None


def test_a_wait_for_a_checkpoint_and_for_a_new_pod_is_described() -> None:
    saving = make_plan(1, "train", save_after=Position(1))
    text = describe_wait(saving, [trainer(0), member(1, "training", 1, leave_in=41.0)], NOW, LIMITS.silence)
    assert text == "rank 1 (pod pod-1 on node node-a): SIGTERM: checkpoint requested, 41 s left"
    waiting = make_plan(2, "wait", replaced=("i1",))
    text = describe_wait(waiting, [member(0), member(1)], NOW, LIMITS.silence)
    assert text == "a new pod instead of rank 1 (pod pod-1 on node node-a), of which a device failed"


def test_status_shows_the_ranks_outside_the_world_of_an_elastic_run(tmp_path: Path) -> None:
    settings = train_settings(tmp_path, trainers=4, min_trainers=1, max_trainers=5)
    plan = make_plan(3, "train", incarnations=("i1", "i0"), world=(1, 0))
    members = [
        member(0, "training", 3),
        member(1, "training", 3),
        member(2, "training", 2, heard=NOW - 60),
        member(3, "idle", 3),
        absent(4),
    ]
    status = build_status(settings, members, plan, LIMITS, now=NOW, wall=0)
    assert [(rank.rank, rank.state) for rank in status.ranks] == [
        (0, "training"), (1, "training"), (2, "lost"), (3, "spare")
    ]  # fmt: skip
    assert status.waiting_for is None
    assert status.trainers == 2, "not the 4 of the time when this coordinator started"
