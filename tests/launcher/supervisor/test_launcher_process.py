"""Tests of the launcher's process in a pod: its commands, addresses, ports and termination message."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import GangError, SettingsError
from launcher.paths import Position
from launcher.reporting import failure_messages
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.peers import addresses
from launcher.supervisor.peers.addresses import PodNetwork, find_advertised_address
from tests.launcher.supervisor.loopback_gang import REPO, pod_environ, write_data


def test_the_advertised_address_is_the_ipv4_address_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_advertised_address(PodNetwork(), "lo") == "127.0.0.1"
    network = PodNetwork()
    monkeypatch.setattr(network, "interfaces", lambda: {"eth0": "10.0.0.9", "eth1": ""})
    assert find_advertised_address(network, "eth0") == "10.0.0.9"
    for nic in ("eth1", "eth7"):
        with pytest.raises(
            SettingsError, match=rf"nic .* '{nic}', .* IPv4 address.*eth0 10.0.0.9; eth1 without"
        ):
            find_advertised_address(network, nic)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_processes_that_met_on_loopback_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily
) -> None:
    """Regression: `localhost` may be ::1, and the run was warned about processes that trained alone."""
    with socket.create_server(
        ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family
    ) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()[:2]):
            text = Path("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp").read_text()
    table = tmp_path / "tcp"
    table.write_text("\n".join(["header", *(line for line in text.splitlines() if f":{port:04X}" in line)]))
    monkeypatch.setattr(addresses, "_TCP_TABLES", (table,))
    assert addresses.has_connection({"127.0.0.1"}, 1)
    assert not addresses.has_connection({"127.0.0.1"}, port), "the launchers' own port"
    assert not addresses.has_connection({"10.0.0.1"}, 1)


def test_a_port_in_use_and_a_port_that_the_pod_may_not_use_get_different_fixes() -> None:
    network = PodNetwork()
    network.bind_host = "127.0.0.1"
    with (
        network.listen(0) as used,
        pytest.raises(GangError, match=r"Another process of this pod .* Fix: set another peerPort\."),
    ):
        network.listen(used.getsockname()[1])
    network.bind_host = "192.0.2.1"  # an address that no interface has
    with pytest.raises(GangError, match=r"\(peerPort\): .*\. Fix: set a peerPort that this pod may use"):
        network.listen(7168)


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        (4, "all 4 passes are done already: nothing to start. .* only with more training.passes. To"),
        (
            2,
            "ended early after pass 2 .*: nothing to start. .* only with a higher training.patience, or 0. To",
        ),
    ],
)
def test_a_complete_run_names_the_setting_with_which_it_continues(
    caplog: pytest.LogCaptureFixture, passes: int, text: str
) -> None:
    caplog.set_level(logging.INFO, "launcher")
    run: Any = SimpleNamespace(
        _settings=SimpleNamespace(passes=4, patience=1), _find_checkpoint=lambda: Position(passes)
    )
    Coordinator._log_nothing_to_start(run)
    assert re.search(text, caplog.text)


def test_the_termination_message_keeps_its_start_and_end_within_4096_bytes(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    failure_messages.write_termination_message(path, "the cause ü" + "x" * 9000 + "ü the last line")
    text = path.read_bytes()
    assert len(text) <= 4096
    assert text.startswith("the cause ü".encode())
    assert text.endswith("ü the last line\n".encode())


def test_the_launcher_imports_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import launcher.__main__, launcher.supervisor.agent, "
        "launcher.runtimes.v1, launcher.runtimes.collective, launcher.program;"
        "from pathlib import Path; import sysconfig;"
        "print(sorted(m for m in set(sys.modules) - before"
        " if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '') or m == 'asyncio'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_invalid_settings_exit_with_64_and_a_termination_message(tmp_path: Path) -> None:
    env = pod_environ(CONF_PADDLE_PORT="x", PADDLE_LAUNCHER_TERMINATION_LOG=str(tmp_path / "t"))
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


def test_await_data_exits_with_0_once_the_data_exists_and_143_when_stopped(tmp_path: Path) -> None:
    env = pod_environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_TERMINATION_LOG=str(tmp_path / "t"))
    command = [sys.executable, "-m", "launcher", "await-data"]
    with subprocess.Popen(command, cwd=REPO, env=env, stderr=subprocess.PIPE, text=True) as waiting:
        try:
            assert waiting.stderr is not None
            assert "waiting for data d1" in waiting.stderr.readline()
            waiting.terminate()
            assert waiting.wait(60) == 143
        finally:
            waiting.kill()
    write_data(tmp_path / "quick-start", 3)
    assert subprocess.run(command, cwd=REPO, env=env, capture_output=True, check=False).returncode == 0
