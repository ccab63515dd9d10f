"""Faults of the storage: full, read-only, hanging, or with damaged files."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testkit import failing_filesystem
from tests.e2e import job_processes
from tests.faults.cluster_faults import Volume
from tests.faults.faulty_run import FaultyRun
from tests.faults.paced_programs import BOTH_RUNTIMES, pace_first_attempt
from tests.faults.test_pods import delete

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

StartRun = Callable[..., FaultyRun]


def flip(path: Path) -> None:
    """Change the middle byte of a file; its size stays the same."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def fails(run: FaultyRun, *words: str) -> list[str]:
    """Check that the Job fails and all its processes exit; return the termination messages of its pods."""
    assert run.training.ended(150) == "Failed"
    said = run.training.messages()
    assert any(all(word in message for word in words) for message in said), said
    run.until(lambda: not run.processes(), f"no process of {run.name}", 60)
    return said


@BOTH_RUNTIMES
def test_a_damaged_newest_checkpoint_is_rejected_and_the_one_before_it_is_restored(
    start_run: StartRun, runtime: str
) -> None:
    run = start_run()
    run.reach(2, batch=50)
    run.broken()
    trainers = run.processes("trainer")
    job_processes.signal_all(trainers, signal.SIGSTOP)  # no newer save can come between
    newest = max(path.parent for path in run.output.glob("pass-*/done"))
    parameters = newest.rglob({"fleet": "part-*", "collective": "*.pdparams"}[runtime])
    flip(max(parameters, key=lambda path: path.stat().st_size))
    job_processes.signal_all(trainers[:1], signal.SIGKILL)
    run.recovered()
    assert (newest / "rejected.json").exists()
    before = int(newest.name.removeprefix("pass-"))  # pass-00001 is behind two passes
    assert run.json("run.json")["resume"] == {"pass": before, "batch": 0}
    causes = [restart["cause"].partition("\n")[0] for restart in run.json("run.json")["restarts"]]
    assert len(causes) == 2
    assert "SIGKILL" in causes[0]
    del run.saves[newest.name]  # that pass is trained again
    run.ends_complete(*causes)


def test_a_damaged_shard_is_reported_and_the_run_resumes_once_it_is_repaired(start_run: StartRun) -> None:
    run = start_run()
    run.reach(1, batch=100)
    shard = run.training.job / "2" / "data" / "train.txt"
    whole = shard.read_bytes()
    flip(shard)
    run.broken()
    delete(run.training, 2)  # its replacement reads the shard
    fails(run, "2/train.txt")
    shard.write_bytes(whole)
    run.training.upgrade({"runId": "again"})
    run.recovered()
    run.ends_complete(what="rejected with the shard's name (65); repaired and started again: ")


@BOTH_RUNTIMES
def test_storage_that_hangs_for_30_seconds_on_one_node_costs_at_most_one_restart(
    start_run: StartRun, runtime: str
) -> None:
    """Pservers and trainers of rank 1 wait in the kernel from the next save on, and cannot be killed meanwhile.

    Its script does not: only process 0 saves. Its steps are so slow that the run outlasts the fault.
    """
    run = start_run(longer=True, **(pace_first_attempt(0.15) if runtime == "collective" else {}))
    run.reach(1, batch=100)
    [launcher] = run.processes("launcher", 1)
    run.broken()
    with failing_filesystem.mount_over(Path("/home/jobpath"), pid=launcher.pid):
        until = "the storage to answer rank 1"
        run.until(lambda: until in str(run.json("status.json")["waitingFor"]), "status.json to say so", 40)
        time.sleep(15)
    run.reach(2)
    restarts = run.ends()
    run.ends_complete(*["rank" for _ in restarts])
    assert len(restarts) <= 1


@BOTH_RUNTIMES
def test_a_full_volume_fails_the_run_which_resumes_once_there_is_space(
    volume: Volume, start_run: StartRun
) -> None:
    run = start_run(storage={"hostPath": {"path": str(volume.folder)}})
    run.reach(1, batch=100)
    run.broken()
    volume.fill()  # the save at the end of this pass finds it full
    fails(run, "o space left")
    volume.free()
    run.training.upgrade({"runId": "again"})
    run.recovered()
    assert run.json("run.json")["resume"]["pass"] >= 1
    run.ends_complete(what="rejected with the reason (75); freed and started again: ")


@BOTH_RUNTIMES
def test_a_read_only_volume_fails_the_run_which_resumes_once_it_is_writable(
    volume: Volume, start_run: StartRun
) -> None:
    run = start_run(storage={"hostPath": {"path": str(volume.folder)}})
    run.reach(1, batch=100)
    run.broken()
    volume.refuse_writes()
    fails(run, "ead-only")
    volume.accept_writes()
    run.training.upgrade({"runId": "again"})
    run.recovered()
    assert run.json("run.json")["resume"]["pass"] >= 1
    run.ends_complete(what="rejected with the reason (75); made writable and started again: ")
