"""Tests of gangs on loopback that run a user's script (runtime collective)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.metrics import parse_metrics
from launcher.paths import Position
from tests.launcher.supervisor.loopback_gang import HERE, LoopbackGang, write_data

pytestmark = pytest.mark.slow

STEPS = 6


def build_gang(root: Path, script: Path = HERE / "fake_script.py", **changes: Any) -> LoopbackGang:
    """Return a gang of two pods that trains three epochs with a script and may restart three times."""
    processes = changes.pop("processes", 1)
    gang = LoopbackGang(
        root,
        **{
            "trainers": 2,
            "runtime": "collective",
            "config_file": "mine/train.py",
            "processes_per_pod": processes,
            "restarts": 3,
            "rendezvous_seconds": 30,
            "source_digest": "s1",
            **changes,
        },
    )
    (gang.job / "mine" / "train.py").write_text(script.read_text())
    return gang


def read_model(gang: LoopbackGang) -> int:
    """Return the number of steps that the model was trained for."""
    return int(json.loads((gang.output / "model" / "count.json").read_text()))


def test_all_processes_get_their_ranks_and_the_run_completes(tmp_path: Path) -> None:
    with build_gang(tmp_path, processes=2, report=True) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["restarts"], run["fingerprint"]["runtime"]) == (
            "complete",
            [],
            "collective",
        )
        seen = [gang.read_json(f"environment-{rank}.json") for rank in range(4)]
        assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
        [own] = {one["PADDLE_LAUNCHER_CHECKPOINT_DIR"] for one in seen}
        assert Path(own).is_dir(), "for checkpoints of a script that knows nothing of the launcher"
        assert {one["PADDLE_MASTER"] for one in seen} == {f"{gang.addresses[0]}:7166"}
        assert [Path(one["PADDLE_LAUNCHER_TRAIN_FILE"]).read_text() for one in seen] == [
            f"line of d1 shard {shard}\n" for shard in (0, 0, 1, 1)
        ]
        assert all(Path(one["PADDLE_LAUNCHER_TEST_FILE"]).is_file() for one in seen), (
            "every pod has the test set"
        )
        assert read_model(gang) == 3 * STEPS
        assert run["score"] == {"accuracy": round(1 - 1 / (3 * STEPS), 6)}, (
            "for `runs`, `sweep` and notifications"
        )
        assert [p.name for p in sorted(gang.output.glob("pass-*"))] == [Position(n).folder for n in (1, 2, 3)]
        rows = parse_metrics((gang.output / "metrics.csv").read_text())
        assert [(row.number, row.samples, sorted(row.tests)) for row in rows] == [
            (number, STEPS * 8 * 4, ["accuracy"]) for number in range(3)
        ]
        assert (gang.output / "curve.png").is_file()
        assert "train()" in gang.read_json("program.json")["files"]["train.py"], "for `compare`"
        assert (gang.output / "report.html").is_file()
        for rank in range(2):
            for name in ("train.log", "train-1.log"):
                assert "epoch 2 step 5" in (gang.output / f"node_{rank}" / name).read_text()
        assert gang.pod_log(1).count("epoch 2 step 5\n") == 1, "a pod's log shows its first process only"


def test_a_complete_run_starts_nothing_and_more_passes_continue_it(tmp_path: Path) -> None:
    with build_gang(tmp_path) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        (gang.output / "environment-0.json").unlink()
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        assert "nothing to start" in gang.pod_log(0)
        assert not (gang.output / "environment-0.json").exists()
        assert gang.start(passes=4).wait_for_exit() == [0, 0], gang.pod_log(0)
        assert "starts at (3, 0) with 18" in gang.read_log(1)
        assert read_model(gang) == 4 * STEPS


def test_a_killed_process_restarts_all_of_them_from_the_newest_checkpoint(tmp_path: Path) -> None:
    fault = {"3": {"do": "signal", "signal": int(signal.SIGKILL), "at": [1, 4]}}
    with build_gang(tmp_path, processes=2, fake=fault, FAKE_STEP_SECONDS="0.4") as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"], run["resume"]) == ("complete", 1, {"pass": 1, "batch": 0})
        assert "exited with signal SIGKILL" in run["restarts"][0]["cause"]
        for rank in range(2):
            assert f"starts at (1, 0) with {STEPS}" in gang.read_log(rank)
            assert (
                "starts at (0, 0)" in (gang.output / f"node_{rank}" / "attempt-0" / "train.log").read_text()
            )
        assert read_model(gang) == 3 * STEPS, "no step was counted twice"
        assert gang.running_pids() == []


@pytest.mark.parametrize(("trainers", "step"), [(1, 6), (3, 2)])
def test_another_number_of_pods_continues_at_the_same_part_of_the_epoch(
    tmp_path: Path, trainers: int, step: int
) -> None:
    ends = {"every": {"0": {"do": "exit", "code": 64, "at": [1, 4]}}}
    with build_gang(tmp_path, fake=ends, checkpoint_every_batches=3) as gang:
        gang.start().wait_for_exit()
        newest = gang.output / Position(1, 6).folder / "done"
        assert newest.exists(), "3 steps of each of 2 processes"
    write_data(gang.job, trainers, "d2")  # the data Job makes other shards
    changed = {"data_digest": "d2", "FAKE_STEP_SECONDS": "0.03"}
    with build_gang(tmp_path, trainers=trainers, run="quick-start-1b2c3d4e", **changed) as more:
        assert more.start().wait_for_exit() == [0] * trainers, more.pod_log(0)
        assert f"starts at (1, {step})" in more.read_log(0)
        run = more.read_json("run.json")
        assert (run["state"], run["fingerprint"]["trainers"]) == ("complete", trainers)
    assert not (gang.job / "runs").exists(), "the output was continued, not moved away"


def test_a_damaged_checkpoint_is_rejected_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    # The processes do not wait for each other: enough time is left that none is done before the kill.
    with build_gang(tmp_path, FAKE_STEP_SECONDS="0.6") as gang:
        gang.start().wait_until(
            lambda: "epoch 2 step 1" in gang.read_log(0) and "epoch 2" in gang.read_log(1)
        )
        path = gang.output / Position(2).folder / "count.json"
        path.write_text("99")  # as long as before: only the sha256 differs
        os.kill(gang.find_pid(1, "train.py"), signal.SIGKILL)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 2)
        assert "its sha256 differs" in run["restarts"][1]["cause"]
        assert f"starts at (1, 0) with {STEPS}" in gang.read_log(0)
        assert read_model(gang) == 3 * STEPS


def test_a_process_that_hangs_restarts_all_of_them(tmp_path: Path) -> None:
    message = "trainer hangs: no batch for 10 s (training.progressDeadlineSeconds), at pass "
    fault = {"1": {"do": "hang", "at": [1, 2]}}
    with build_gang(tmp_path, fake=fault, progress_deadline_seconds=10) as gang:
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert message in run["restarts"][0]["cause"]


def test_a_pod_that_receives_sigterm_exits_after_a_requested_checkpoint(tmp_path: Path) -> None:
    # The processes do not wait for each other: enough steps follow that none is done before the checkpoint.
    with build_gang(tmp_path, FAKE_STEP_SECONDS="2.4", restarts=0) as gang:
        started = gang.start()
        started.wait_until(
            lambda: "epoch 1 step 4" in gang.read_log(1)
        )  # a younger checkpoint is good enough
        gang.processes[1].send_signal(signal.SIGTERM)
        assert gang.processes[1].wait(60) == 143, gang.pod_log(1)
        gang.start(1)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        run = gang.read_json("run.json")
        assert "SIGTERM: saved a checkpoint at " in run["restarts"][0]["cause"]
        assert (run["state"], run["attempt"]) == ("complete", 1)
        assert tuple(run["resume"].values()) > (1, 4)
        assert read_model(gang) == 3 * STEPS


def test_a_script_without_data_of_the_launcher_needs_no_manifest(tmp_path: Path) -> None:
    with build_gang(tmp_path, data_digest="none") as gang:
        shutil.rmtree(gang.job.parent / ".data")
        assert gang.start().wait_for_exit() == [0, 0], gang.pod_log(0)
        seen = gang.read_json("environment-1.json")
        assert seen["PADDLE_LAUNCHER_TRAIN_FILE"] == seen["PADDLE_LAUNCHER_TEST_FILE"] == ""
        assert read_model(gang) == 3 * STEPS


def test_a_known_line_in_the_log_of_a_failed_script_is_explained_once_with_a_fix(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        "print('NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1 (size 33030528)')\n"
        "raise SystemExit('RuntimeError: might be caused by insufficient shared memory (shm)')\n"
    )
    with build_gang(tmp_path / "gang", script, trainers=1, restarts=0) as gang:
        assert gang.start().wait_for_exit() == [70]
        cause = gang.read_json("run.json")["cause"]
        assert "exited with exit code 1" in cause
        assert cause.count("The shared memory is too small\nFix: increase training.sharedMemory") == 1


def test_gpus_on_an_image_with_a_paddle_for_cpus_end_the_run_before_it_starts(tmp_path: Path) -> None:
    with build_gang(tmp_path, trainers=1, gpus_per_pod=1) as gang:
        assert gang.start().wait_for_exit() == [64]
        assert "resources.limits (GPUs) is 1, but must be absent with this image" in gang.pod_log(0)
        assert not (gang.output / "environment-0.json").exists()
