"""Tests of the rows that processes of a script train when their number changes: each row of an epoch comes once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from launcher.io import checkpoints
from launcher.paths import JobPaths
from launcher.script_run import ScriptRun
from local.paths import CLONE
from testkit.waiting import PATIENCE
from testkit.written_data import write_data

SCRIPT = """
import json, sys
from launcher.program import ScriptRun

kind, steps = sys.argv[1], int(sys.argv[2])
run = ScriptRun()
for epoch in range(run.start[0], 1):
    batches = run.batches(epoch, 101, seed=3) if kind == "rows" else run.lines(epoch)
    trained = []
    for step, batch in zip(range(batches.first, batches.first + steps), batches):
        trained += map(int, batch)
        run.report(epoch, step + 1, batches.steps, loss=1.0, samples=len(batch))
    print(json.dumps([len(batches), trained]))
    if run.rank == 0 and trained:
        with run.save(epoch, step + 1) as folder:
            (folder / "model").write_text("x")
"""


def run_processes(root: Path, processes: int, kind: str, steps: int) -> list[tuple[int, list[int]]]:
    """Run a script's processes for some steps; return for each the number of remaining batches, and its rows."""
    newest = checkpoints.newest_checkpoint(root / "job" / "output")
    variables = {
        "PADDLE_TRAINERS_NUM": str(processes),
        "PADDLE_LAUNCHER_BATCH_SIZE": "4",
        "PADDLE_LAUNCHER_FULL_WORLD_SIZE": "4",
        "PADDLE_LAUNCHER_OUTPUT_DIR": str(root / "job" / "output"),
        "PADDLE_LAUNCHER_MANIFEST": str(JobPaths(root, "job").data_record("d1")),
        "PADDLE_LAUNCHER_RESUME": newest.folder if newest else "",
        "PYTHONPATH": str(CLONE),
        "PATH": os.environ["PATH"],
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, kind, str(steps)],
            env=variables | {"PADDLE_TRAINER_ID": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(processes)
    ]
    outputs = [process.communicate(timeout=60 * PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [tuple(json.loads(output.splitlines()[0])) for output in outputs]


@pytest.mark.parametrize("kind", ["rows", "lines"])
def test_each_row_is_trained_once_over_three_changes_of_the_number_of_processes(
    tmp_path: Path, kind: str
) -> None:
    shards = [range(37), range(37, 40), range(40, 101)]
    write_data(tmp_path / "job", [[str(row) for row in shard] for shard in shards])
    trained = Counter[int]()
    for processes, steps in ((3, 2), (4, 3), (2, 2), (2, 1), (3, 100)):
        found = run_processes(tmp_path, processes, kind, steps)
        assert len({left for left, _ in found}) == 1, "all processes take the same number of steps"
        trained.update(row for _, rows in found for row in rows)
    assert trained == Counter(range(101))


def test_the_position_counts_the_steps_of_all_worlds_and_the_factor_keeps_the_global_batch(
    tmp_path: Path,
) -> None:
    base = {"PADDLE_LAUNCHER_OUTPUT_DIR": str(tmp_path), "PADDLE_LAUNCHER_FULL_WORLD_SIZE": "4"}
    names = []
    for world, step in ((3, 3), (4, 5), (4, 6)):
        run = ScriptRun({**base, "PADDLE_TRAINERS_NUM": str(world)})
        batches = run.batches(0, 1000, batch_size=4)
        with run.save(0, step) as folder:
            (folder / "a").write_text("x")
        names.append((run.start[1], run.accumulation_steps, batches.first))
    assert names == [(0, 2, 0), (2, 1, 2), (5, 1, 5)]
    assert [at.batches for at in checkpoints.finished_checkpoints(tmp_path)] == [25, 21, 9]
    newest = checkpoints.read_any_contents(tmp_path / "pass-00000-batch-0000025")
    assert [entry[:2] for entry in newest.history] == [[3, 3], [4, 4]]


def test_an_epoch_has_one_number_of_rows_because_a_checkpoint_stores_its_batches() -> None:
    run = ScriptRun({})
    assert list(run.batches(0, 10)) == list(run.batches(0, 10))
    with pytest.raises(
        ValueError, match=r"has batches of 10 rows already.*Fix: call it for the training rows only"
    ):
        run.batches(0, 4)
    assert len(run.batches(1, 4)) == 1
