"""`stop` and `resume`, with a cluster in memory and a job's folder on this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import object_states, shared_options
from launcher.paths import OutputPaths, Position
from testkit.waiting import until

from .conftest import DATA_JOB, DONE, FAILED, K8S_JOB, make_job, make_pod, write_status
from .fake_cluster import FakeCluster

Cli = Callable[..., tuple[int, str, str]]


class RunningCluster(FakeCluster):
    """One release whose pods run unless their Job is suspended."""

    def list_in_all_namespaces(self, kind: str, selector: str = "") -> list[Any]:
        if kind != "pod":
            return super().list_in_all_namespaces(kind, selector)
        running = [{"name": "train", "state": {"running": {}}}]
        return [
            make_pod(f"p{rank}", rank=rank, containerStatuses=running)
            for rank in (0, 1)
            if not self.jobs[0]["spec"].get("suspend")
        ]


@pytest.fixture
def cluster(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = RunningCluster(job_folder.parent)
    made.add_release()
    made.jobs = [make_job(K8S_JOB), make_job(DATA_JOB, DONE)]
    monkeypatch.setattr(shared_options, "connect", lambda *_: made)
    write_status(job_folder)
    return made


@contextlib.contextmanager
def when_requested(job_folder: Path, work: Callable[[OutputPaths], object]) -> Iterator[None]:
    """In the block, call `work` in a thread once a checkpoint is requested, with the output's paths."""
    output = OutputPaths(job_folder / "output")

    def run() -> None:
        until(output.checkpoint_request.exists, "the request")
        work(output)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def test_stop_saves_a_checkpoint_suspends_the_job_and_suggests_resume(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    def save(output: OutputPaths) -> None:
        at = output.checkpoint(Position(6, 41))
        at.mkdir()
        (at / "done").touch()
        output.checkpoint_request.unlink()

    with when_requested(job_folder, save):
        code, out, err = cli("stop")
    assert (code, cluster.suspended) == (0, [(K8S_JOB, True)]), err
    assert "checkpoint: pass 7, batch 41 (output/pass-00006-batch-0000041)" in out
    assert "python -m launcher resume" in out
    code, _, err = cli("stop")
    assert code == 64
    assert "is suspended, not running. Fix: continue with: python -m launcher resume" in err
    assert cli("resume")[0] == 0
    assert cluster.suspended[1:] == [(K8S_JOB, False)]
    assert "is running, not suspended. Fix: continue with: python -m launcher wait" in cli("resume")[2]


def test_resume_starts_a_failed_training_again(cli: Cli, cluster: FakeCluster) -> None:
    cluster.jobs[0] = make_job(K8S_JOB, FAILED)
    code, _, err = cli("resume")
    assert (code, cluster.deleted) == (0, [K8S_JOB]), err
    assert f"starting Job {K8S_JOB} again, which resumes from the newest checkpoint" in err
    assert [job["metadata"]["name"] for job in cluster.jobs] == [DATA_JOB, K8S_JOB]
    assert "status" not in cluster.jobs[1]


@pytest.mark.parametrize(
    ("state", "why"),
    [("training", "none was saved within"), ("starting", "not training yet (its state is starting)")],
)
def test_without_a_checkpoint_stop_describes_the_loss_and_needs_confirmation(
    cli: Cli, cluster: FakeCluster, job_folder: Path, state: str, why: str
) -> None:
    write_status(job_folder, state=state)
    code, _, err = cli("stop", "--timeout", "1")
    assert (code, cluster.suspended) == (64, [])
    assert why in err
    assert "training since then is lost" in err
    assert "stop without a checkpoint with --yes" in err
    assert not (job_folder / "output" / ".checkpoint-request").exists(), "nobody waits for it any more"
    assert cli("stop", "--timeout", "1", "--yes")[0] == 0
    assert cluster.suspended == [(K8S_JOB, True)]


def test_a_withdrawn_request_is_repeated_and_old_checkpoints_are_not_reported(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    output = OutputPaths(job_folder / "output")
    for name in ("pass-00004", "pass-99999"):  # an earlier one, and one that was copied by hand
        (output.root / name).mkdir(exist_ok=True)
        (output.root / name / "done").touch()

    def withdraw_then_save(output: OutputPaths) -> None:
        output.checkpoint_request.unlink()
        until(output.checkpoint_request.exists, "the request to be sent again")
        (output.checkpoint(Position(5)) / "done").unlink()
        (output.checkpoint(Position(5)) / "done").write_text("again")  # the same position is saved again
        output.checkpoint_request.unlink()

    with when_requested(job_folder, withdraw_then_save):
        code, out, err = cli("stop")
    assert code == 0, err
    assert "checkpoint: the end of pass 5 (output/pass-00004)" in out


def test_a_stop_that_times_out_keeps_the_request_of_another_one(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    request = OutputPaths(job_folder / "output").checkpoint_request
    with when_requested(job_folder, lambda _: request.write_text("of another")):
        assert cli("stop", "--timeout", "1")[0] == 64
    assert request.read_text() == "of another"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--checkpoint", "the last pass is saved; only the model remains to be written"),
        ("--no-checkpoint", "none saved; `resume` continues from the newest earlier checkpoint"),
    ],
)
def test_stop_reports_what_is_saved(
    cli: Cli, cluster: FakeCluster, job_folder: Path, option: str, text: str
) -> None:
    write_status(job_folder, state="exporting")
    assert f"checkpoint: {text}" in cli("stop", option)[1]


def test_a_running_data_job_is_stopped_and_resumed_with_the_training(cli: Cli, cluster: FakeCluster) -> None:
    cluster.jobs[1] = make_job(DATA_JOB)
    assert cli("stop", "--no-checkpoint")[0] == 0
    assert cluster.suspended == [(K8S_JOB, True), (DATA_JOB, True)]
    assert cli("resume")[0] == 0
    assert cluster.suspended[2:] == [(K8S_JOB, False), (DATA_JOB, False)]


def test_a_suspended_training_is_resumed_although_its_data_job_has_failed(
    cli: Cli, cluster: FakeCluster
) -> None:
    """Its pods then end with the reason of the data Job."""
    cluster.jobs = [make_job(K8S_JOB, suspended=True), make_job(DATA_JOB, FAILED)]
    assert cli("resume")[0] == 0
    assert cluster.suspended == [(K8S_JOB, False)]


def test_a_complete_or_queued_run_is_rejected_with_a_fix(cli: Cli, cluster: FakeCluster) -> None:
    cluster.jobs[0]["metadata"]["labels"] = {object_states.QUEUE_LABEL: "research"}
    for command, active in (("stop", "false"), ("resume", "true")):
        cluster.jobs[0]["spec"]["suspend"] = command == "resume"
        code, _, err = cli(command)
        assert code == 64
        assert "(queue research)" in err
        assert f"set spec.active of the Job's Workload to {active}" in err
    cluster.jobs[0] = make_job(K8S_JOB, DONE)
    code, _, err = cli("stop")
    assert code == 64
    assert "is complete" in err
    assert cluster.suspended == []


def test_a_runtime_without_checkpoints_inside_a_pass_is_reported(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    (job_folder / "output" / "run.json").write_text(json.dumps({"fingerprint": {"runtime": "v1"}}))
    code, _, err = cli("stop")
    assert code == 64
    assert "runtime v1 saves checkpoints only at the end of a pass" in err


def test_a_run_that_completes_during_the_request_is_not_stopped(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    with when_requested(job_folder, lambda _: write_status(job_folder, state="complete")):
        code, _, err = cli("stop")
    assert (code, cluster.suspended) == (64, [])
    assert "the run is complete now" in err
