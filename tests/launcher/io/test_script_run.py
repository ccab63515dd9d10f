"""Tests of `ScriptRun`: checkpoints of a script's own files, its progress, metrics and model."""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from launcher import script_run
from launcher.errors import StorageError
from launcher.io import checkpoints, files, requested_checkpoints
from launcher.metrics import parse_metrics
from launcher.paths import OutputPaths, Position
from launcher.program import ScriptRun
from launcher.supervisor.peers.peer_server import TrainerStore
from tests.launcher.supervisor.failing_calls import fail_calls


def build_run(root: Path, **env: str) -> ScriptRun:
    """Return a ScriptRun that writes to root/output and root/progress.json; `env` adds or replaces variables."""
    base = {
        "PADDLE_LAUNCHER_OUTPUT_DIR": str(root / "output"),
        "PADDLE_LAUNCHER_PROGRESS_FILE": str(root / "progress.json"),
        "PADDLE_LAUNCHER_RESUME": "",
    }
    return ScriptRun({**base, **env})


def save(run: ScriptRun, epoch: int, step: int, text: str = "x") -> None:
    """Save a checkpoint with one file in a folder."""
    with run.save(epoch, step) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "a.txt").write_text(text)


def read_progress(root: Path) -> dict[str, object]:
    return dict(json.loads((root / "progress.json").read_text()))


def find_newest(output: Path) -> Position | None:
    return checkpoints.newest_checkpoint(output)


def finished(root: Path) -> list[Position]:
    return checkpoints.finished_checkpoints(root / "output")


def test_a_saved_checkpoint_is_verified_and_continued(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    save(run, 0, 5)
    save(run, 1, 0, "the end of epoch 0")
    assert finished(tmp_path) == [Position(1), Position(0, 5)]
    assert find_newest(tmp_path / "output") == Position(1)
    assert read_progress(tmp_path)["saved"] == {"pass": 1, "batch": 0}
    again = build_run(tmp_path, PADDLE_LAUNCHER_RESUME=Position(1).folder)
    assert again.start == (1, 0)
    assert again.checkpoint is not None
    assert (again.checkpoint / "part" / "a.txt").read_text() == "the end of epoch 0"


def test_an_interrupted_save_leaves_no_checkpoint(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    with pytest.raises(KeyError), run.save(0, 5) as folder:
        (folder / "a.txt").write_text("half")
        raise KeyError
    assert not list((tmp_path / "output").iterdir())
    with pytest.raises(ValueError, match="no file was saved"), run.save(0, 5):
        pass
    with (
        pytest.raises(ValueError, match=r"cannot be in a checkpoint. Fix: use another"),
        run.save(0, 5) as folder,
    ):
        (folder / "a\\b").write_text("x")
    assert finished(tmp_path) == []
    with pytest.raises(ValueError, match="nothing to save before the first step"), run.save(0, 0):
        pass


def test_a_save_that_fails_at_its_last_file_leaves_nothing(tmp_path: Path) -> None:
    """Regression: on a full disk the folder kept its final name and its size, without the file `done`."""
    run = build_run(tmp_path)
    with fail_calls("fsync", "*done*", errno.ENOSPC), pytest.raises(SystemExit):
        save(run, 1, 0)
    assert list((tmp_path / "output").iterdir()) == []


def test_the_files_of_a_script_are_synced_to_disk_before_the_checkpoint_exists(tmp_path: Path) -> None:
    found: list[list[Position]] = []
    run = build_run(tmp_path)
    with fail_calls("fsync", "*/a.txt", then=lambda: found.append(finished(tmp_path))):
        save(run, 1, 0)
    assert found == [[]]


def test_a_checkpoint_that_was_copied_from_another_run_is_skipped(tmp_path: Path) -> None:
    run, output = build_run(tmp_path, PADDLE_LAUNCHER_ATTEMPT="3"), OutputPaths(tmp_path / "output")
    output.root.mkdir()
    for epoch in (2, 1):
        files.write_json(output.run_json, {"outputId": str(epoch) * 16})
        save(run, epoch, 0)
    assert find_newest(output.root) == Position(1)
    assert checkpoints.read_any_contents(output.checkpoint(Position(1))).attempt == 3


def test_a_checkpoint_with_changed_bytes_is_rejected_and_the_process_exits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(build_run(tmp_path), 1, 0)
    folder = tmp_path / "output" / Position(1).folder
    (folder / "part" / "a.txt").write_text("y")  # of the same length
    with pytest.raises(SystemExit) as caught:
        build_run(tmp_path, PADDLE_LAUNCHER_RESUME=folder.name, RANK="1")
    assert caught.value.code == 71
    assert "error: training cannot resume from pass-00000" in capsys.readouterr().err
    assert (folder / "rejected.json").is_file()


def test_old_checkpoints_are_removed_but_not_counted_if_they_are_unusable(tmp_path: Path) -> None:
    run = build_run(tmp_path, PADDLE_LAUNCHER_KEEP_CHECKPOINTS="2")
    for epoch in (1, 2, 3):
        save(run, epoch, 0)
    assert finished(tmp_path) == [Position(3), Position(2)]
    checkpoints.reject(tmp_path / "output" / Position(3).folder, "other bytes", 0)
    save(run, 4, 0)
    assert finished(tmp_path) == [Position(4), Position(3), Position(2)]
    assert not list((tmp_path / "output").glob(".*")), "no temporary folder is left"
    with fail_calls("rename", "*/pass-00001", errno.EIO):
        save(run, 5, 0)
    assert finished(tmp_path) == [Position(5), Position(4), Position(3), Position(2)], (
        "the next save tries again"
    )


def test_only_process_0_saves(tmp_path: Path) -> None:
    run = build_run(tmp_path, PADDLE_TRAINER_ID="1", PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES="1")
    run.report(0, 1, 2, loss=1.0, samples=4)
    assert not run.should_save()
    with (
        pytest.raises(RuntimeError, match=r"process 1 must not save alone\. Fix: .* in process 0 only"),
        run.save(0, 1),
    ):
        pass
    run.end_epoch(0, accuracy=1.0)
    assert not (tmp_path / "output").exists()
    assert "saved" not in read_progress(tmp_path), "the launcher waits for the checkpoint of process 0 only"


def test_checkpoint_every_batches_or_minutes_decides_when_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build_run(tmp_path, PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES="2")
    assert "saved" not in read_progress(tmp_path), "this script may never save one"
    decisions = []
    for step in (1, 2, 3, 4):
        run.report(0, step, 9, loss=1.0, samples=4)
        decisions.append(run.should_save())
        if decisions[-1]:
            save(run, 0, step)
        assert "saved" in read_progress(tmp_path)
    assert decisions == [False, True, False, True]
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    run = build_run(tmp_path, PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES="2")
    now += 119
    assert not run.should_save()
    now += 1
    assert run.should_save()


def test_a_requested_checkpoint_is_saved_although_the_first_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 grants a request once; the same question gets the same answer."""
    store = TrainerStore(tmp_path / "request")
    store.open("/trainers/0/secret")
    store.request_checkpoint()
    paths = []

    def ask(address: str, proposed: int) -> tuple[bool, int]:
        paths.append(address.removeprefix("127.0.0.1:1"))
        granted, following = json.loads(store.decide(paths[-1], proposed))
        if len(paths) == 1:
            raise TimeoutError
        return granted, following

    monkeypatch.setattr(requested_checkpoints, "ask_once", ask)
    monkeypatch.setattr(script_run, "ASK_SECONDS", 0.0)
    run = build_run(tmp_path, PADDLE_LAUNCHER_REQUESTS="127.0.0.1:1/trainers/0/secret/ask/")
    assert [run.should_save() for _ in range(3)] == [False, True, False]
    assert len(set(paths)) == 2


def test_progress_and_metrics_have_loss_speed_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    run = build_run(tmp_path, PADDLE_TRAINERS_NUM="3")
    run.epochs = 5
    for step, loss in enumerate((4.0, 2.0, 3.0), 1):
        run.report(2, step, 3, loss=loss, samples=10)
        with run.testing():
            now += 100  # not counted
        now += 2
    progress = read_progress(tmp_path)
    expected = {
        "pass": 2,
        "batch": 9,  # of all three processes
        "batches": 9,
        "batch_size": 10 / 3,
        "passes": 5,
        "loss": 3.0,
        "state": "training",
    }
    assert {key: progress[key] for key in expected} == expected
    assert progress["samples_per_second"] == 5.0
    assert isinstance(progress["marks"], dict)
    assert list(progress["marks"]) == ["first_batch"], "the time of the first step since this process started"
    run.end_epoch(2, accuracy=0.75)
    [row] = parse_metrics((tmp_path / "output" / "metrics.csv").read_text())
    assert (row.number, row.rank, row.samples, row.seconds, row.train_loss) == (2, 0, 90, 6.0, 3.0)
    assert row.tests == {"accuracy": 0.75}


def test_an_epoch_with_other_scores_keeps_the_rows_of_the_earlier_epochs(tmp_path: Path) -> None:
    """Regression: a script that tests every second epoch lost the rows of all other epochs."""
    run = build_run(tmp_path)
    every: list[dict[str, float]] = [
        {"accuracy": 0.5},
        {},
        {"f1": 0.25, "accuracy": 0.75},
        {"accuracy": 0.875},
        {"precision": 0.125},
    ]
    for epoch, scores in enumerate(every):
        run.report(epoch, 1, 1, loss=1.0, samples=1)
        run.end_epoch(epoch, **scores)
    rows = parse_metrics((tmp_path / "output" / "metrics.csv").read_text())
    assert [row.tests for row in rows] == every
    assert not list((tmp_path / "output").glob("*.damaged-*"))


def test_an_error_of_the_storage_while_reporting_exits_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = build_run(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "full"))

    monkeypatch.setattr(Path, "write_text", fail)
    monkeypatch.setattr(Path, "mkdir", fail)
    for act in (lambda: run.report(0, 1, 1, loss=1.0, samples=1), lambda: run.end_epoch(0)):
        with pytest.raises(SystemExit) as caught:
            act()
        assert caught.value.code == StorageError.exit_code
        assert "error: no space left" in capsys.readouterr().err


def test_a_script_that_continues_after_an_error_in_a_test_is_training_again(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    run.report(0, 1, 2, loss=1.0, samples=1)
    with pytest.raises(ValueError, match="bad row"), run.testing():
        raise ValueError("bad row")
    assert read_progress(tmp_path)["state"] == "training"


def test_the_end_of_an_epoch_reports_the_last_step(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    for step in range(50):
        run.report(0, step + 1, 50, loss=1.0, samples=1)
    run.end_epoch(0)
    assert read_progress(tmp_path)["batch"] == 50, "and not one of up to half a second before"


def test_the_model_replaces_an_earlier_one(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    for text in ("old", "new"):
        with run.save_model() as folder:
            (folder / f"{text}.bin").write_text(text)
    assert [path.name for path in (tmp_path / "output" / "model").iterdir()] == ["new.bin"]


def test_the_model_has_the_scores_of_the_last_epoch_unless_the_script_writes_others(tmp_path: Path) -> None:
    run = build_run(tmp_path)
    for epoch, accuracy in enumerate((0.5, 0.75)):
        run.report(epoch, 1, 1, loss=1.0, samples=1)
        run.end_epoch(epoch, accuracy=accuracy, auc=float("nan"))  # JSON has no NaN
    again = build_run(tmp_path, PADDLE_LAUNCHER_ATTEMPT="1")  # an attempt after the last epoch
    with again.save_model() as folder:
        (folder / "model.bin").write_text("x")
    assert json.loads((again.output / "model" / "score.json").read_text()) == {"accuracy": 0.75}
    with again.save_model() as folder:
        (folder / "score.json").write_text('{"f1": 0.5}')
    assert json.loads((again.output / "model" / "score.json").read_text()) == {"f1": 0.5}


@pytest.mark.parametrize("launched_by", ["paddle.distributed.launch", "torchrun"])
def test_process_1_connects_only_once_process_0_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched_by: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    events: list[str] = []

    def listen() -> None:
        time.sleep(0.3)
        events.append("process 0 listens")
        opened.append(socket.create_server(("127.0.0.1", port)))

    opened: list[socket.socket] = []
    distributed = types.SimpleNamespace(init_parallel_env=lambda: events.append("init_parallel_env"))
    monkeypatch.setitem(sys.modules, "paddle.distributed", distributed)
    monkeypatch.setitem(sys.modules, "paddle", types.SimpleNamespace(distributed=distributed))
    if launched_by == "torchrun":
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    else:
        variables = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": f"127.0.0.1:{port}"}
    rank = {"torchrun": "RANK"}.get(launched_by, "PADDLE_TRAINER_ID")
    build_run(tmp_path, **{rank: "0"}, **variables).init_parallel_env()
    assert events == ["init_parallel_env"], "process 0 does not wait for itself"
    build_run(tmp_path, RANK="1", WORLD_SIZE="2").init_parallel_env()
    assert events.pop() == "init_parallel_env", "without an address Paddle reports what is missing"
    thread = threading.Thread(target=listen)
    thread.start()
    run = build_run(tmp_path, **{rank: "1"}, **variables)
    run.init_parallel_env()
    thread.join()
    opened[0].close()
    assert events[1:] == ["process 0 listens", "init_parallel_env"]
    assert read_progress(tmp_path)["state"] == "starting"


def test_without_the_launcher_a_script_works_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ScriptRun({"RANK": "0", "WORLD_SIZE": "2"})
    assert (run.world_size, run.start, run.train_file) == (2, (0, 0), None)
    run.report(0, 1, loss=1.0, samples=4)
    save(run, 1, 0)
    again = ScriptRun({})
    assert (again.start, again.checkpoint) == ((1, 0), tmp_path / "output" / Position(1).folder)
