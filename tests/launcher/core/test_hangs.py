"""Gangs on loopback whose shared storage hangs or fails for one rank: a FUSE mount that never answers."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests import frozen
from tests.launcher.core.kit import LoopbackGang
from tests.launcher.core.test_restart import gang_of, in_pass, went_on

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"
)
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def started(gang: LoopbackGang, rank: int) -> LoopbackGang:
    """The gang, with `rank` in a mount namespace of its own as a pod is."""
    gang.start(*(r for r in range(3) if r != rank))
    return gang.start(rank, prefix=OWN_MOUNTS)


def test_a_storage_that_hangs_for_good_under_a_save_costs_one_restart_and_that_pod(tmp_path: Path) -> None:
    """It was noticed by nobody for 400 s, and `status` said `training`."""
    written = tmp_path / "shared" / "part"
    fake = {"trainer:1": {"do": "write", "path": str(written), "at": 2}}
    limits = {"storage_late": 0.5, "storage": 3.0}
    with gang_of(tmp_path, fake=fake, timings=limits, FAKE_PASS_SECONDS="2") as gang:
        started(gang, 1).until(lambda: in_pass(gang, 1, 1))
        with frozen.over(gang.root / "shared", pid=gang.processes[1].pid):
            gang.until(lambda: "the storage to answer rank 1" in str(gang.json("status.json")["waitingFor"]))
            gang.until(lambda: "ends with exit code 71" in gang.pod_log(1))
            gang.until(lambda: gang.json("run.json")["attempt"] == 1)
            assert gang.json("status.json")["state"] == "rendezvous"
        assert gang.processes[1].wait(20) == 71
        gang.fake = {}
        gang.start(1)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang)
        [restart] = gang.json("run.json")["restarts"]
        assert f"rank 1 (pod {gang.run}-1-x on node node-1): the storage" in restart["cause"]
        assert "gave no answer to this pod for" in restart["cause"]
        assert "Fix: see whether the volume is mounted" in restart["cause"]


@pytest.mark.parametrize("error", [0, errno.ESTALE], ids=["hangs", "ESTALE"])
def test_a_storage_that_fails_another_rank_for_a_while_costs_nothing(tmp_path: Path, error: int) -> None:
    """As 120 s with the product's limits, of which these are a tenth."""
    with gang_of(tmp_path, timings={"storage": 15.0}, FAKE_PASS_SECONDS="1.5") as gang:
        started(gang, 1).until(lambda: in_pass(gang, 1, 1))
        with frozen.over(gang.root / "shared", error, pid=gang.processes[1].pid):
            time.sleep(9)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(1)
        went_on(gang, attempts=1)


@pytest.mark.parametrize("error", [0, errno.ESTALE], ids=["hangs", "ESTALE"])
def test_a_storage_that_fails_rank_0_for_longer_than_its_lease_costs_one_restart(
    tmp_path: Path, error: int
) -> None:
    with gang_of(tmp_path, FAKE_PASS_SECONDS="1") as gang:
        started(gang, 0).until(lambda: in_pass(gang, 0, 2))
        with frozen.over(gang.root / "shared", error, pid=gang.processes[0].pid):
            gang.until(lambda: "ends with exit code 71" in gang.pod_log(0))
        assert gang.processes[0].wait(20) == 71
        gang.start(0)
        assert gang.wait(60) == [0, 0, 0], gang.pod_log(0)
        went_on(gang)
        [restart] = gang.json("run.json")["restarts"]
        assert "rank 0" in restart["cause"]
