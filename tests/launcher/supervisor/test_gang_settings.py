"""Tests of settings that the launchers of a gang check at their start, with real launcher processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher.supervisor.loopback_gang import LoopbackGang

pytestmark = pytest.mark.slow


def test_an_unknown_nic_is_rejected_with_the_existing_interfaces(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="eth7") as gang:
        assert gang.start().wait_for_exit(30) == [64]
        assert "'eth7'" in gang.termination_message(0)
        assert f"eth0 {gang.addresses[0]}" in gang.termination_message(0)


def test_the_address_of_the_given_nic_is_advertised(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=1, CONF_PADDLE_NIC="net1") as gang:
        gang.nics = {"eth0": ["127.0.0.1"], "net1": [gang.addresses[0]]}
        gang.hosts[gang.names[0]] = "127.0.0.1"
        gang.env["FAKE_OWN"] = gang.addresses[0]
        gang.start(FAKE_PASS_SECONDS="1").wait_until(gang.all_trainers_started)
        argv = Path(f"/proc/{gang.find_pid(0, 'train')}/cmdline").read_text().split("\0")
        assert f"--pservers={gang.addresses[0]}" in argv
        assert gang.wait_for_exit() == [0]


def test_ranks_with_different_settings_fail_the_run(tmp_path: Path) -> None:
    with LoopbackGang(tmp_path, trainers=2) as gang:
        assert gang.start(0, CONF_PADDLE_PORTS_NUM="2") and gang.start(1, PADDLE_LAUNCHER_BATCH_SIZE="7")
        assert gang.wait_for_exit(30) == [70, 70]
        assert "batchSize 256 against 7" in gang.termination_message(1)
