"""Tests of saving and restoring with real pservers and trainers: damaged checkpoints, killed processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from launcher.io import checkpoints, files
from launcher.paths import Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.trainer import row_files, server_tables
from testkit.waiting import until

from .loopback_training import PROGRAMS, SHARDS, LoopbackTraining, Process, prepare_training

pytestmark = pytest.mark.paddle
Staged = Callable[..., list[Path]]
RECOMMENDATION = PROGRAMS / "recommendation"
NAME = "tables/word_weight/shard-00001.rows"


def losses(log: str) -> list[str]:
    """Return the text `Batch=7 samples=… AvgCost=… CurrentCost=…` of each batch of the second pass in a log."""
    return [line.split("Pass=1 ", 1)[1] for line in log.splitlines() if "Pass=1 Batch=" in line]


def costs(lines: list[str]) -> list[float]:
    return [float(line.rsplit("=", 1)[1]) for line in lines]


def test_a_run_killed_inside_a_pass_resumes_with_the_same_losses(tmp_path: Path, staged: Staged) -> None:
    """Uses sync with one trainer, so that the order of steps is deterministic."""
    data = staged(rows=640)
    values = {"MODE": "sync", "CHECKPOINT_EVERY_BATCHES": "3", "ARGS": '["--learning_rate=0.05"]'}
    complete = prepare_training(tmp_path / "complete", data, **values).finish()
    expected = losses(complete.log())
    steps = len(expected)

    gang = prepare_training(tmp_path / "killed", data, **values)

    def kill(running: dict[str, subprocess.Popen[bytes]]) -> None:
        if len(losses(gang.log())) >= 0.8 * steps and running["0/trainer"].poll() is None:
            os.killpg(running["0/trainer"].pid, signal.SIGKILL)

    assert gang.run(watch=kill)["0/trainer"] == -signal.SIGKILL
    before = losses(gang.log())
    killed = len(before)
    newest = checkpoints.newest_checkpoint(gang.output.root)
    assert newest is not None
    assert newest.passes == 0
    assert killed - 6 <= newest.batches <= killed, (
        "at most the interval, and the checkpoint that was being written"
    )

    resumed = gang.next_attempt(newest).finish()
    after = losses(resumed.log())
    assert [line.split()[:2] for line in after] == [
        line.split()[:2] for line in expected[newest.batches :]
    ], "the same batches, and samples include those before the restart"
    # Two runs from scratch differ more, from the second batch on.
    repeated = costs(before[newest.batches :])
    assert np.allclose(costs(after)[:1], repeated[:1], rtol=1e-5)
    assert np.allclose(costs(after), costs(expected[newest.batches :]), rtol=3e-3)
    rows = [each.read_metrics() for each in (complete, resumed)]
    assert [r["samples"] for r in rows[1]] == [r["samples"] for r in rows[0]], (
        "the row covers the complete pass"
    )
    assert float(rows[1][0]["train_loss"]) == pytest.approx(float(rows[0][0]["train_loss"]), rel=3e-3)
    assert resumed.read_progress()["saved"] == {"pass": 1, "batch": 0}
    assert set(resumed.read_progress()["marks"]) == {"imported", "joined", "loaded", "first_batch"}


def test_two_ranks_of_three_threads_resume_inside_a_pass(tmp_path: Path, staged: Staged) -> None:
    values = {
        "MODE": "async",
        "TRAINER_COUNT": "3",
        "CHECKPOINT_EVERY_BATCHES": "8",
        "KEEP_CHECKPOINTS": "2",
    }
    gang = prepare_training(tmp_path, staged("ratings", 2), RECOMMENDATION, **values).finish()
    steps = int(gang.read_progress()["batches"])
    kept = sorted(p.name for p in gang.output.root.glob("pass-*"))
    last = Position(0, (steps - 1) // 8 * 8)
    assert kept == ["pass-00000", last.folder], "the newest two"
    size = checkpoints.total_bytes(checkpoints.read_contents(gang.output.root / "pass-00000"))
    assert [gang.read_progress(rank)["bytes"] for rank in (0, 1)] == [size, size], (
        "the size bounds the deadline of the next save"
    )
    contents = checkpoints.read_contents(gang.output.checkpoint(last))
    assert "3 thread(s) per trainer" in gang.log(1)
    even, more = divmod(600, steps)
    assert [rank[0] for rank in contents.ranks] == [last.batches * even + min(more, last.batches)] * 2, (
        "the samples of the batches before the checkpoint"
    )
    assert [row["samples"] for row in gang.read_metrics()] == ["600", "600"], "each batch counts once"
    assert len(contents.rows["feature"].ids) >= 8, "each of five files contributes rows"
    shutil.rmtree(gang.output.model)
    resumed = gang.next_attempt(last).finish()
    assert f"resumed from {last.folder}" in resumed.log(1)
    assert len(losses(resumed.log(1))) == steps - last.batches


def other_rows(part: Path, least: int = 0) -> None:
    """Change rows so that the file is valid and its sha256 is listed, but the rows are not what was saved."""
    contents = files.read_json(part.parents[2] / "contents.json")
    assert contents is not None
    about = contents["tables"]["word_weight"]
    shape = server_tables.RowShape(about["width"], about["rule"])
    groups = [
        (ids[least:], [values[least:] + 1]) for ids, values in row_files.read_shard(part, shape, SHARDS)
    ]
    nothing = np.zeros(0, np.uint64), iter(())
    entry = row_files.write_shard(part, shape, 1, SHARDS, [*groups, nothing, nothing][:2])
    contents["files"][NAME] = {"bytes": entry.bytes, "sha256": entry.sha256}
    files.write_json(part.parents[2] / "contents.json", files.with_checksum(contents))


def flip_dense(part: Path) -> None:
    dense = part.parents[2] / "dense/part-001.npz"
    data = bytearray(dense.read_bytes())
    data[len(data) // 2] ^= 0xFF
    dense.write_bytes(bytes(data))


def no_rows(part: Path) -> None:
    other_rows(part, 1 << 30)


def test_a_checkpoint_that_does_not_load_is_rejected_and_the_one_before_is_used(
    quick_start: tuple[LoopbackTraining, set[int]], tmp_path: Path
) -> None:
    """In turn: flipped bytes of dense parameters, changed rows, no rows, a truncated file, a missing file."""
    older, newest = Position(1, 8), Position(2)
    gang = quick_start[0].copied(tmp_path / "run", older)
    root = gang.output.root
    shutil.rmtree(gang.output.model)
    backup = root.parent / "backup"
    shutil.copytree(root, backup)
    for damage, reason in (
        (flip_dense, "the content of dense/part-001.npz has changed since it was saved"),
        (other_rows, "rows of table word_weight have other values"),
        (no_rows, "rows of table word_weight have other values"),
    ):
        damage(gang.output.checkpoint(newest) / NAME)
        assert checkpoints.newest_checkpoint(root) == newest, "the sizes are unchanged"
        gang = gang.next_attempt(newest, PASSES="3")
        assert gang.run()["0/trainer"] == 71, gang.log()[-2000:]
        assert reason in gang.log()
        rejection = json.loads((gang.output.checkpoint(newest) / "rejected.json").read_text())
        assert reason in rejection["reason"]
        assert checkpoints.newest_checkpoint(root) == older
        shutil.rmtree(root)
        shutil.copytree(backup, root)
    part = gang.output.checkpoint(newest) / NAME
    part.write_bytes(part.read_bytes()[:-1])
    assert checkpoints.newest_checkpoint(root) == older
    (gang.output.checkpoint(older) / "params.npz").unlink()
    assert checkpoints.newest_checkpoint(root) == Position(1), "the one before both"
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    gang.output.unfinished(newest, 0).mkdir()
    resumed = gang.next_attempt(older).finish()
    assert "resumed from pass-00001-batch-0000008" in resumed.log()
    assert not gang.output.unfinished(newest, 0).exists(), (
        "unfinished folders of earlier attempts are removed"
    )


def test_a_killed_server_leaves_a_fatal_line_of_the_runtime_in_the_trainers_log(
    tmp_path: Path, staged: Staged
) -> None:
    """Paddle was seen to wait without such a line in one of six runs, so up to four runs are started.

    A launcher also ends the attempt when its own pserver exits.
    """
    data = staged(ranks=2)
    seen: list[str] = []
    for number in range(4):
        gang = prepare_training(tmp_path / str(number), data, PASSES="2000", SAVING_PERIOD="5000")

        def fatal_lines(gang: LoopbackTraining = gang) -> list[str]:
            return [each.pattern for each in FleetRuntime().log_meanings if each.search(gang.log())]

        def watch(running: dict[str, Process], gang: LoopbackTraining = gang) -> None:
            if "Pass=1 samples" in gang.log():
                assert not fatal_lines(gang)
                os.killpg(running["1/pserver 0"].pid, signal.SIGKILL)
                with contextlib.suppress(AssertionError):
                    seen.extend(until(partial(fatal_lines, gang), "a fatal line", 2))
                raise TimeoutError

        with pytest.raises(TimeoutError):
            gang.run(60, watch=watch)
        if seen:
            return
    pytest.fail(gang.log()[-3000:])


def test_a_requested_checkpoint_is_saved_and_training_continues(tmp_path: Path, staged: Staged) -> None:
    """Uses two ranks of different speeds in mode async, without training.checkpointEvery."""
    gang = prepare_training(tmp_path, staged("ratings", 2, 200), RECOMMENDATION, BATCH_SIZE="2")
    gang.output.root.mkdir(parents=True)
    gang.output.checkpoint_request.write_text("one")
    gang.finish()
    saved = [line.split("pass-")[1].split(" ")[0] for line in gang.log().splitlines() if "saved /" in line]
    assert len(saved) == 2, f"one requested checkpoint, one at the end: {saved}"
    assert "-batch-" in saved[0]
    assert not gang.output.checkpoint_request.exists(), "the request is removed once it is fulfilled"
    assert len(checkpoints.read_contents(gang.output.root / f"pass-{saved[0]}").ranks) == 2


def with_patch(root: Path, patch: str) -> Path:
    """Return a copy of the program quick_start that changes the launcher's modules in its processes."""
    folder = shutil.copytree(PROGRAMS / "quick_start", root / "patched")
    path = folder / "trainer_config.py"
    path.write_text(path.read_text() + patch)
    return folder


def test_a_pserver_that_fails_the_check_of_its_memory_ends_the_run(tmp_path: Path, staged: Staged) -> None:
    program = with_patch(
        tmp_path, "\nfrom launcher.trainer import server_memory\nserver_memory.MAP_BYTES = 56\n"
    )
    gang = prepare_training(tmp_path, staged(), program)
    assert gang.run()["0/pserver 0"] == 64
    assert "a check of Paddle's memory failed, so this pserver could not save" in gang.server_log()
    assert "Fix: use the package paddlepaddle==2.6.2 of PyPI" in gang.server_log()


LOADED = """
import numpy as np
from launcher.trainer import server_commands
load = server_commands._Commands.load
def load_and_copy(self, *arguments):
    load(self, *arguments)
    np.savez(f"loaded-{self._number}", **self._memory.dense)
load_and_copy.__name__ = "load"
server_commands._Commands.load = load_and_copy
"""
"""Lets each pserver write the dense parameters and their optimizer's state to its work folder once they are loaded."""
MORE_PARAMETERS = """
smaller = network

def network(data, job):
    prediction, loss = smaller(data, job)
    return prediction, loss + paddle.mean(paddle.static.nn.fc(prediction, 5))
"""
SGD = """
def optimizer(job):
    return paddle.optimizer.SGD(0.1)
"""


def dense_arrays(folder: Path, name: str, servers: int) -> dict[str, list[float]]:
    """Return what the files `name` with the numbers 0 to `servers` - 1 have together; `Beta*Pow` only of the first."""
    found = [server_tables.load_arrays(folder / name.format(number)) for number in range(servers)]
    together = {key: np.concatenate([each[key] for each in found]).tolist() for key in found[0]}
    return {key: values[:1] if key.endswith("Pow") else values for key, values in together.items()}


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_dense_parameters_and_their_optimizers_state_are_restored_on_another_number_of_servers(
    tmp_path: Path, staged: Staged, kind: str
) -> None:
    program = with_patch(tmp_path, LOADED + MORE_PARAMETERS + (SGD if kind == "sgd" else ""))
    gang = prepare_training(tmp_path / "run", staged(), program, batch_size=64, ports_num=2).finish()
    saved = dense_arrays(gang.output.checkpoint(Position(1)) / "dense", "part-{:03d}.npz", 2)
    state = ["Moment1", "Moment2", "Beta1Pow", "Beta2Pow"] if kind == "adam" else []
    assert (list(saved), len(saved["Param"])) == (["Param", *state], 11)
    assert all(np.any(saved[name]) for name in ["Param", *state[:2]]), "the training has changed them"
    shutil.rmtree(gang.output.model)
    resumed = gang.copied(tmp_path / "resumed", Position(1), passes=2, ports_num=3).finish()
    assert dense_arrays(resumed.root / "work0", "loaded-{}.npz", 3) == saved
    assert f"resumed from {Position(1).folder}; the servers' values are verified" in resumed.log()
    file = program / "trainer_config.py"
    file.write_text(file.read_text().replace(MORE_PARAMETERS, ""))
    assert gang.next_attempt(Position(1)).run()["0/trainer"] == 64
    assert "its dense parameters or their optimizer are others than the program's" in gang.log()


SLOW_WRITES = """
import time
from launcher.trainer import row_files
write_shard = row_files.write_shard
def slow(*arguments):
    time.sleep(0.2)
    return write_shard(*arguments)
row_files.write_shard = slow
"""


def test_a_checkpoint_that_is_due_before_the_last_one_is_complete_waits_for_it(
    tmp_path: Path, staged: Staged
) -> None:
    values = {"CHECKPOINT_EVERY_BATCHES": "4", "KEEP_CHECKPOINTS": "20", "BATCH_SIZE": "64"}
    gang = prepare_training(tmp_path, staged(), with_patch(tmp_path, SLOW_WRITES), **values)
    most = 0

    def count_unfinished(_: dict[str, Process]) -> None:
        nonlocal most
        most = max(most, len(list(gang.output.root.glob(".pass-*"))))

    gang.finish(watch=count_unfinished)
    assert most == 1
    saved = [Position(0, 4), Position(0, 8), Position(1)]
    assert checkpoints.finished_checkpoints(gang.output.root) == saved[::-1]
    for folder in map(gang.output.checkpoint, saved):
        listed = checkpoints.read_contents(folder).files
        assert checkpoints.check_files(folder, [n for n in listed if n.endswith(".rows")], listed) is None
    log = gang.log()
    assert log.index("Pass=1 Batch=5 ") < log.index(f"saved {gang.output.checkpoint(saved[0])}"), (
        "training goes on while the files are written"
    )


def test_a_server_that_is_killed_while_it_saves_leaves_the_checkpoint_before(
    tmp_path: Path, staged: Staged
) -> None:
    values = {"CHECKPOINT_EVERY_BATCHES": "4", "BATCH_SIZE": "64"}
    gang = prepare_training(tmp_path, staged(), with_patch(tmp_path, SLOW_WRITES), **values)
    unfinished = gang.output.unfinished(Position(0, 8), 0)
    killed: list[int] = []

    def kill(running: dict[str, Process]) -> None:
        if unfinished.exists() and list(unfinished.glob("tables/*/*.rows")) and not killed:
            killed.append(running["0/pserver 0"].pid)
            os.kill(killed[0], signal.SIGKILL)

    gang.run(60, watch=kill)
    assert killed, "the second checkpoint was never seen"
    assert checkpoints.newest_checkpoint(gang.output.root) == Position(0, 4)
    assert until(lambda: not members(killed[0]), "the end of the process that writes")
    resumed = gang.next_attempt(Position(0, 4)).finish()
    assert f"resumed from {Position(0, 4).folder}" in resumed.log()
    assert not unfinished.exists()


def members(group: int) -> list[str]:
    """Return the processes of a process group that have not exited."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group, *_ = path.read_text().rpartition(")")[2].split()
            if its_group == str(group) and state != "Z":
                found.append(path.parent.name)
    return found
