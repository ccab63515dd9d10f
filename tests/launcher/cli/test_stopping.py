"""`stop` and `resume`, against a cluster of plain objects and a job's folder on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import options, reasons
from launcher.cli.storage import FolderStorage
from launcher.layout import Output, Position
from tests.waiting import until

from .conftest import DATA_JOB, K8S_JOB, RUN_JSON, make_job, make_pod, make_status

Cli = Callable[..., tuple[int, str, str]]
DONE = ("Complete", "", "")


class FakeCluster:
    """One release whose pods are there unless their Job is suspended or over; exec runs here."""

    namespace, name, given = "paddle", "context test", ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = {K8S_JOB: make_job(K8S_JOB), DATA_JOB: make_job(DATA_JOB, DONE)}
        self.suspended: list[tuple[str, bool]] = []

    @property
    def pods(self) -> list[dict[str, Any]]:
        running = [{"name": "train", "state": {"running": {}}}]
        return [
            make_pod(f"p{rank}", rank=rank, containerStatuses=running)
            for rank in (0, 1)
            if not self.jobs[K8S_JOB]["spec"].get("suspend")
        ]

    def items(self, kind: str, doing: str, selector: str = "") -> list[Any]:
        return {"job": list(self.jobs.values()), "pod": self.pods}.get(kind, [])

    items_everywhere = items

    def find(self, kind: str, name: str, doing: str) -> object:
        value = {**RUN_JSON, "jobPath": str(self.folder.parent)}
        return {"data": {"run.json": json.dumps(value)}} if kind == "config_map" else None

    def events(self, name: str) -> list[Any]:
        return []

    def suspend_job(self, name: str, suspended: bool) -> None:
        self.jobs[name]["spec"]["suspend"] = suspended
        self.suspended.append((name, suspended))

    def exec(self, pod: str, container: str, argv: list[str], stdin: Any, idle: float) -> Any:
        return FolderStorage(self.folder).run(argv[4:], stdin)


@pytest.fixture
def cluster(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(job_folder)
    monkeypatch.setattr(options, "connect", lambda *_: made)
    (job_folder / "output" / "status.json").write_text(json.dumps(make_status()))
    return made


@pytest.fixture
def trainer(job_folder: Path) -> Iterator[None]:
    """Saves a checkpoint when it is asked for."""
    output = Output(job_folder / "output")
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.05):
            if output.checkpoint_request.exists():
                at = output.save(Position(6, 41))
                at.mkdir(exist_ok=True)
                (at / "done").touch()
                output.checkpoint_request.unlink(missing_ok=True)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    end.set()
    thread.join()


def test_stop_saves_a_checkpoint_suspends_the_job_and_says_how_to_go_on(
    cli: Cli, cluster: FakeCluster, trainer: None
) -> None:
    code, out, err = cli("stop")
    assert (code, cluster.suspended) == (0, [(K8S_JOB, True)]), err
    assert "checkpoint: pass 7, batch 41 (output/pass-00006-batch-0000041)" in out
    assert "python -m launcher resume" in out
    code, _, err = cli("stop")
    assert code == 64
    assert "It is stopped already. Fix: python -m launcher resume" in err
    assert cli("resume")[0] == 0
    assert cluster.suspended[1:] == [(K8S_JOB, False)]
    assert "It is not stopped" in cli("resume")[2]


@pytest.mark.parametrize(
    ("state", "why"), [("training", "none was saved within"), ("starting", "not training yet (starting)")]
)
def test_without_a_checkpoint_stop_names_the_loss_and_needs_a_yes(
    cli: Cli, cluster: FakeCluster, job_folder: Path, state: str, why: str
) -> None:
    (job_folder / "output" / "status.json").write_text(json.dumps(make_status(state=state)))
    code, _, err = cli("stop", "--timeout", "1")
    assert (code, cluster.suspended) == (64, [])
    assert why in err
    assert "what it trained after that is lost" in err
    assert "accept the loss with --yes" in err
    assert not (job_folder / "output" / ".checkpoint-request").exists(), "nobody waits for it any more"
    assert cli("stop", "--timeout", "1", "--yes")[0] == 0
    assert cluster.suspended == [(K8S_JOB, True)]


def test_a_request_that_another_stop_withdrew_is_sent_again_and_an_old_checkpoint_is_not_reported(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    output = Output(job_folder / "output")
    for name in ("pass-00004", "pass-99999"):  # an earlier one, and one that was copied by hand
        (output.root / name).mkdir(exist_ok=True)
        (output.root / name / "done").touch()

    def withdraw_then_save() -> None:
        until(output.checkpoint_request.exists, "the request")
        output.checkpoint_request.unlink()
        until(output.checkpoint_request.exists, "the request to be sent again")
        (output.save(Position(5)) / "done").unlink()
        (output.save(Position(5)) / "done").write_text("again")  # the same position is saved again
        output.checkpoint_request.unlink()

    thread = threading.Thread(target=withdraw_then_save)
    thread.start()
    code, out, err = cli("stop")
    thread.join()
    assert code == 0, err
    assert "checkpoint: the end of pass 5 (output/pass-00004)" in out


def test_a_stop_that_gives_up_leaves_the_request_of_another_one(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    request = Output(job_folder / "output").checkpoint_request

    def ask_too() -> None:
        until(request.exists, "the request")
        request.write_text("of another")

    thread = threading.Thread(target=ask_too)
    thread.start()
    assert cli("stop", "--timeout", "1")[0] == 64
    thread.join()
    assert request.read_text() == "of another"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--checkpoint", "all passes are saved; only the model is still to be written"),
        ("--no-checkpoint", "none saved; `resume` continues from the newest earlier checkpoint"),
    ],
)
def test_stop_says_what_is_saved(
    cli: Cli, cluster: FakeCluster, job_folder: Path, option: str, text: str
) -> None:
    (job_folder / "output" / "status.json").write_text(json.dumps(make_status(state="exporting")))
    assert f"checkpoint: {text}" in cli("stop", option)[1]


def test_a_data_job_at_work_is_stopped_and_resumed_with_the_training(cli: Cli, cluster: FakeCluster) -> None:
    cluster.jobs[DATA_JOB] = make_job(DATA_JOB)
    assert cli("stop", "--no-checkpoint")[0] == 0
    assert cluster.suspended == [(K8S_JOB, True), (DATA_JOB, True)]
    assert cli("resume")[0] == 0
    assert cluster.suspended[2:] == [(K8S_JOB, False), (DATA_JOB, False)]


def test_a_run_that_is_over_or_a_queues_is_refused_with_what_to_do(cli: Cli, cluster: FakeCluster) -> None:
    cluster.jobs[K8S_JOB]["metadata"]["labels"] = {reasons.QUEUE_LABEL: "research"}
    for command, active in (("stop", "false"), ("resume", "true")):
        cluster.jobs[K8S_JOB]["spec"]["suspend"] = command == "resume"
        code, _, err = cli(command)
        assert code == 64
        assert "(queue research)" in err
        assert f"""-p '{{"spec": {{"active": {active}}}}}'""" in err
    cluster.jobs[K8S_JOB] = make_job(K8S_JOB, DONE)
    code, _, err = cli("stop")
    assert code == 64
    assert "is complete" in err
    assert cluster.suspended == []


def test_a_runtime_that_cannot_save_inside_a_pass_says_so_at_once(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    (job_folder / "output" / "run.json").write_text(json.dumps({"fingerprint": {"runtime": "v1"}}))
    code, _, err = cli("stop")
    assert code == 64
    assert "runtime v1 saves only at the end of a pass" in err


def test_a_run_that_ends_while_it_is_asked_is_not_stopped(
    cli: Cli, cluster: FakeCluster, job_folder: Path
) -> None:
    status = job_folder / "output" / "status.json"
    request = Output(status.parent).checkpoint_request

    def complete() -> None:
        until(request.exists, "the request")
        status.write_text(json.dumps(make_status(state="complete")))

    thread = threading.Thread(target=complete)
    thread.start()
    code, _, err = cli("stop")
    thread.join()
    assert (code, cluster.suspended) == (64, [])
    assert "the run is complete meanwhile" in err
