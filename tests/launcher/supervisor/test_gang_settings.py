"""Tests of settings that the launchers of a gang check at their start, with real launcher processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher.supervisor.loopback_gang import LoopbackGang

pytestmark = pytest.mark.slow


def test_the_address_of_the_given_nic_is_advertised(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="net1") as gang:
        gang.nics = {"eth0": ["127.0.0.1"], "net1": [gang.addresses[0]]}
        gang.hosts[gang.names[0]] = "127.0.0.1"
        gang.env["FAKE_OWN"] = gang.addresses[0]
        gang.start(FAKE_PASS_SECONDS="1").wait_until(gang.all_trainers_started)
        argv = Path(f"/proc/{gang.find_pid(0, 'train')}/cmdline").read_text().split("\0")
        assert f"--pservers={gang.addresses[0]}" in argv
        assert gang.wait_for_exit() == [0]


def test_a_gradient_num_other_than_the_number_of_trainers_is_rejected(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, CONF_PADDLE_GRADIENT_NUM="2") as gang:
        assert gang.start(0).wait_for_exit() == [64]
        assert (
            "gradientNum (CONF_PADDLE_GRADIENT_NUM) is 2, but must be the number of trainers, 3"
            in gang.pod_log(0)
        )


def test_ranks_with_different_settings_fail_the_run(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        assert gang.start(0, CONF_PADDLE_PORTS_NUM="2") and gang.start(1, PADDLE_LAUNCHER_BATCH_SIZE="7")
        assert gang.wait_for_exit(30) == [70, 70]
        assert "batchSize 256 against 7" in gang.termination_message(1)
