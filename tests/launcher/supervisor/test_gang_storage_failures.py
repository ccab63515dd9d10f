"""Tests of gangs on loopback whose shared storage, a FUSE mount, hangs or fails for one rank."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from testkit import failing_filesystem
from tests.launcher.supervisor.loopback_gang import LoopbackGang
from tests.launcher.supervisor.test_gang_restarts import (
    assert_resumed_and_complete,
    build_gang,
    has_started_pass,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0 or not Path("/dev/fuse").exists(), reason="needs root and /dev/fuse"),
]
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")


def start_with_own_mounts(gang: LoopbackGang, rank: int) -> LoopbackGang:
    """Start the gang with `rank` in its own mount namespace, as in a pod; return the gang."""
    return gang.start(1 - rank).start(rank, prefix=OWN_MOUNTS)


def test_a_storage_that_hangs_during_a_checkpoint_causes_one_restart_and_replaces_the_pod(
    tmp_path: Path,
) -> None:
    """Regression: no rank noticed the hang for 400 s, and `status` showed `training`."""
    written = tmp_path / "shared" / "part"
    fake = {"trainer:1": {"do": "write", "path": str(written), "at": 2}}
    limits = {"storage_late": 0.5, "storage": 3.0}
    with build_gang(tmp_path, fake=fake, timings=limits, FAKE_PASS_SECONDS="2") as gang:
        start_with_own_mounts(gang, 1).wait_until(lambda: has_started_pass(gang, 1, 1))
        with failing_filesystem.mount_over(gang.root / "shared", pid=gang.processes[1].pid):
            gang.wait_until(
                lambda: "the storage to answer rank 1" in str(gang.read_json("status.json")["waitingFor"])
            )
            gang.wait_until(lambda: "exits with code 71" in gang.pod_log(1))
            gang.wait_until(lambda: gang.read_json("run.json")["attempt"] == 1)
            assert gang.read_json("status.json")["state"] == "rendezvous"
        assert gang.processes[1].wait(20) == 71
        gang.fake = {}
        gang.start(1)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert f"rank 1 (pod {gang.run}-1-x on node node-1): the storage" in restart["cause"]
        assert "gave no answer to this pod for" in restart["cause"]
        assert "Fix: see whether the volume is mounted" in restart["cause"]


def test_a_storage_that_fails_a_member_for_a_while_causes_no_restart(tmp_path: Path) -> None:
    """The deadlines are a tenth of the product's."""
    with build_gang(tmp_path, timings={"storage": 15.0}, FAKE_PASS_SECONDS="1.5") as gang:
        start_with_own_mounts(gang, 1).wait_until(lambda: has_started_pass(gang, 1, 1))
        with failing_filesystem.mount_over(gang.root / "shared", errno.ESTALE, pid=gang.processes[1].pid):
            time.sleep(9)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(1)
        assert_resumed_and_complete(gang, attempts=1)


def test_a_storage_that_hangs_rank_0_for_longer_than_its_lease_causes_one_restart(tmp_path: Path) -> None:
    with build_gang(tmp_path, FAKE_PASS_SECONDS="1") as gang:
        start_with_own_mounts(gang, 0).wait_until(lambda: has_started_pass(gang, 0, 2))
        with failing_filesystem.mount_over(gang.root / "shared", pid=gang.processes[0].pid):
            gang.wait_until(lambda: "exits with code 71" in gang.pod_log(0))
        assert gang.processes[0].wait(20) == 71
        gang.start(0)
        assert gang.wait_for_exit(60) == [0, 0], gang.pod_log(0)
        assert_resumed_and_complete(gang)
        [restart] = gang.read_json("run.json")["restarts"]
        assert "rank 0" in restart["cause"]
