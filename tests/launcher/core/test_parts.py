"""The gang's parts one by one: wire, addresses, status, endings, the pod's commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import SettingsError
from launcher.gang.machine import Member, Plan, Restart
from launcher.gang.messages import State
from launcher.gang.network import Network, advertised
from launcher.gang.status import metrics, status
from launcher.reporting import ending
from launcher.settings import TrainSettings
from tests.launcher.core.kit import REPO, environ, write_data


def train_settings(tmp_path: Path, **env: str) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_WORK_DIR=str(tmp_path / "work"), **env)
    )


def test_an_interface_without_an_ipv4_address_is_refused_and_another_is_taken_by_its_address() -> None:
    class Nics(Network):
        def interfaces(self) -> dict[str, list[str]]:
            return {"eth0": ["10.0.0.9", "fd00::9"], "eth1": ["fd00::1"]}

    assert advertised(Nics(), "eth0") == "10.0.0.9"
    with pytest.raises(SettingsError, match=r"nic .* 'eth1', but must be an interface with an IPv4 address"):
        advertised(Nics(), "eth1")


def test_the_interfaces_of_this_machine_have_the_loopback_with_its_address() -> None:
    assert "127.0.0.1" in Network().interfaces()["lo"]


def members_in(phase: str, *progress: dict[str, Any]) -> list[Member]:
    """One rank a progress, all in that phase of attempt 1."""
    return [
        Member(rank, State(rank, f"pod{rank}", phase, 1, progress=told), heard=100.0)
        for rank, told in enumerate(progress)
    ]


def test_status_sums_speeds_takes_the_slowest_place_and_the_longest_eta(tmp_path: Path) -> None:
    settings = train_settings(tmp_path, PADDLE_LAUNCHER_PASSES="4", PADDLE_LAUNCHER_BATCH_SIZE="10")
    members = members_in(
        "training",
        {"pass": 2, "batch": 5, "batches": 10, "samples_per_second": 100.0, "loss": 1.0, "state": "saving"},
        {"pass": 1, "batch": 9, "batches": 10, "samples_per_second": 50.0, "loss": 3.0},
        {"pass": None, "loss": float("nan"), "samples_per_second": "fast"},
    )
    plan = Plan(1, "train", restarts=(Restart(0, "a death", 90.0),))
    value = status(settings, members, plan, now=100.0, wall=5000.0)
    assert (value["pass"], value["batch"], value["samplesPerSecond"], value["loss"]) == (1, 9, 150.0, 2.0)
    assert value["etaSeconds"] == pytest.approx((3 * 10 - 9) * 10 / 50.0)
    assert value["ranks"][2]["loss"] is None
    assert [rank["state"] for rank in value["ranks"]] == ["saving", "training", "training"]
    assert value["restarts"] == [{"attempt": 0, "cause": "a death", "at": 4990.0}]
    assert (value["state"], value["attempt"], value["waitingFor"]) == ("training", 1, None)
    json.dumps(value, allow_nan=False)
    page = metrics(value, 1.5).decode()
    assert 'paddle_training_restarts_total{cause="a death"} 1.0' in page
    assert "paddle_training_rendezvous_seconds 1.5" in page
    assert "paddle_training_pass 1.0" in page


def test_status_says_what_a_run_waits_for_and_shows_no_progress_of_an_earlier_attempt(tmp_path: Path) -> None:
    settings = train_settings(tmp_path)
    stale = members_in("idle", {"pass": 3, "batch": 1}, {"pass": 3, "batch": 1})
    value = status(settings, [*stale, Member(2)], Plan(2, "wait"), now=100.0, wall=0.0)
    assert value["state"] == "rendezvous"
    assert value["waitingFor"] == "rank 2 to come"
    assert value["pass"] is None
    value = status(settings, members_in("training", {}), Plan(1, "stop"), now=100.0, wall=0.0)
    assert (value["state"], value["waitingFor"]) == ("restarting", "rank 0 to end its processes")
    value = status(settings, members_in("serving", {}), Plan(1, "serve"), now=100.0, wall=0.0)
    assert value["waitingFor"] == "the pservers of rank 0 to accept connections"


def test_the_termination_message_keeps_cause_and_newest_lines_in_4096_bytes(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    ending.write_termination_message(path, "the cause ü" + "x" * 9000 + "ü the last line")
    text = path.read_bytes()
    assert len(text) <= 4096
    assert text.startswith("the cause ü".encode())
    assert text.endswith("ü the last line\n".encode())


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "exit code 3"), (-9, "signal SIGKILL (exit code 137)"), (139, "signal SIGSEGV (exit code 139)")],
)
def test_exits_are_told_with_the_signals_name(code: int, text: str) -> None:
    assert ending.describe_exit(code) == text


def test_the_pods_commands_load_no_library_beyond_the_standard_one() -> None:
    code = (
        "import sys; before = set(sys.modules); import launcher.__main__, launcher.gang.agent, "
        "launcher.runtimes.v1;"
        "from pathlib import Path; import sysconfig;"
        "print(sorted(m for m in set(sys.modules) - before"
        " if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '') or m == 'asyncio'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wrong_settings_end_the_process_with_64_and_a_termination_message(tmp_path: Path) -> None:
    env = environ(CONF_PADDLE_PORT="x", PADDLE_LAUNCHER_TERMINATION_LOG=str(tmp_path / "t"))
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "await-data"],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "port (CONF_PADDLE_PORT) is 'x'" in done.stderr
    assert "port (CONF_PADDLE_PORT) is 'x'" in (tmp_path / "t").read_text()


def test_await_data_ends_with_0_when_the_data_is_there_and_143_when_stopped(tmp_path: Path) -> None:
    env = environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_TERMINATION_LOG=str(tmp_path / "t"))
    command = [sys.executable, "-m", "launcher", "await-data"]
    waiting = subprocess.Popen(command, cwd=REPO, env=env, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    assert "waiting for data d1" in waiting.stderr.readline()
    waiting.terminate()
    assert waiting.wait(10) == 143
    waiting.stderr.close()
    write_data(tmp_path / "quick-start", 3)
    assert subprocess.run(command, cwd=REPO, env=env, capture_output=True, check=False).returncode == 0
