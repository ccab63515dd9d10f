"""The gang's parts one by one: wire, addresses, status, endings, the pod's commands."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher.gang.events import Events
from launcher.gang.members import Failure, Member, first_failure, status
from launcher.gang.wire import HubWire

from launcher.gang import ending
from launcher.gang.network import Network, sort_addresses
from launcher.gang.timings import Timings
from launcher.settings import TrainSettings
from tests.launcher.core.kit import REPO, environ, write_data


def train_settings(tmp_path: Path, **env: str) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_WORK_DIR=str(tmp_path / "work"), **env)
    )


def hub() -> tuple[HubWire, int, Events]:
    network = Network()
    network.bind_host = "127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    events = Events()
    wire = HubWire(network, port, run_id="run-1", trainers=3, events=events, timings=Timings(beat=60))
    wire.start()
    return wire, port, events


def hello(port: int, line: bytes) -> tuple[socket.socket, dict[str, Any]]:
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    sock.sendall(line + b"\n")
    with sock.makefile("rb") as reader:
        answer = reader.readline()
    return sock, json.loads(answer or b"{}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"t":"hello","run":"run-0","rank":1}', "this is run run-1, not run-0"),
        (b'{"t":"hello","run":"run-1","rank":3}', "ranks here are 1 to 2"),
        (b'{"t":"hello","run":"run-1","rank":0}', "ranks here are 1 to 2"),
        (b'{"t":"hello","run":"run-1","rank":true}', "no hello"),
        (b'{"t":"state","run":"run-1","rank":1}', "no hello"),
    ],
)
def test_strangers_and_old_runs_are_refused_with_a_reason(line: bytes, reason: str) -> None:
    wire, port, events = hub()
    sock, answer = hello(port, line)
    assert answer["t"] == "refused"
    assert reason in answer["reason"]
    assert sock.recv(1) == b"", "and the connection is closed"
    sock.close()
    assert events.empty()
    wire.close()


def test_what_is_no_message_at_all_is_dropped_and_others_still_get_in() -> None:
    wire, port, _ = hub()
    noise = socket.create_connection(("127.0.0.1", port), timeout=5)
    noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert noise.recv(100) == b""
    noise.close()
    sock, answer = hello(port, b'{"t":"hello","run":"run-1","rank":2}')
    assert answer == {"t": "welcome"}
    sock.close()
    wire.close()


def test_a_second_pod_with_the_same_rank_is_refused() -> None:
    wire, port, _ = hub()
    first, answer = hello(port, b'{"t":"hello","run":"run-1","rank":1}')
    assert answer["t"] == "welcome"
    second, answer = hello(port, b'{"t":"hello","run":"run-1","rank":1}')
    assert "rank 1 is here already" in answer["reason"]
    first.close()
    second.close()
    wire.close()


def test_addresses_are_sorted_by_number_v4_before_v6() -> None:
    assert sort_addresses(["10.0.0.10", "fd00::2", "10.0.0.9", "9.0.0.1"]) == [
        "9.0.0.1", "10.0.0.9", "10.0.0.10", "fd00::2",
    ]  # fmt: skip


def test_the_interfaces_of_this_machine_have_the_loopback_with_its_address() -> None:
    assert "127.0.0.1" in Network().interfaces()["lo"]


def test_the_first_failure_by_time_is_the_cause_not_the_first_told() -> None:
    members = [Member(rank) for rank in range(3)]
    members[0].failure = Failure(0, 10.2, "wake", 70)
    members[2].failure = Failure(2, 10.0, "cause", 65)
    found = first_failure(members)
    assert found is not None
    assert found.text == "cause"


def test_status_sums_speeds_takes_the_slowest_place_and_the_longest_eta(tmp_path: Path) -> None:
    settings = train_settings(tmp_path, PADDLE_LAUNCHER_PASSES="4", PADDLE_LAUNCHER_BATCH_SIZE="10")
    members = [Member(0, "training"), Member(1, "training"), Member(2, "training")]
    members[0].progress = {"pass": 2, "batch": 5, "batches": 10, "samples_per_second": 100.0, "loss": 1.0}
    members[1].progress = {"pass": 1, "batch": 9, "batches": 10, "samples_per_second": 50.0, "loss": 3.0}
    members[2].progress = {"pass": None, "loss": float("nan"), "samples_per_second": "fast"}
    value = status(settings, members, "training", attempt=1, cause=None, updated=5.0)
    assert (value["pass"], value["batch"], value["samplesPerSecond"], value["loss"]) == (1, 9, 150.0, 2.0)
    assert value["etaSeconds"] == pytest.approx((3 * 10 - 9) * 10 / 50.0)
    assert value["ranks"][2]["loss"] is None
    json.dumps(value, allow_nan=False)


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
        " if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '') or m in ('asyncio', 'ssl')))"
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
