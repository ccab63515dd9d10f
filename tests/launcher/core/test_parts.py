"""The gang's parts one by one: manifest, program, lock, wire, addresses, status, endings."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import DataError, DeadlineError, SettingsError, StorageError
from launcher.gang import ending, stage
from launcher.gang.events import Events
from launcher.gang.lock import Holder, RunLock
from launcher.gang.manifest import await_manifest
from launcher.gang.members import Failure, Member, first_failure, status
from launcher.gang.network import Network, sort_addresses
from launcher.gang.output import fingerprint, next_attempt
from launcher.gang.timings import Timings
from launcher.gang.wire import HubWire
from launcher.layout import Output
from launcher.settings import TrainSettings
from tests.launcher.core.kit import REPO, environ, write_data


class Clock:
    """Time that passes only when somebody waits; `at` runs things at their moment."""

    def __init__(self, **at: Any) -> None:
        self.now = 0.0
        self._at = sorted(((float(k.removeprefix("s")), v) for k, v in at.items()), key=lambda item: item[0])

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)
        while self._at and self._at[0][0] <= self.now:
            self._at.pop(0)[1]()


def train_settings(tmp_path: Path, **env: str) -> TrainSettings:
    return TrainSettings.from_environ(
        environ(JOB_PATH=str(tmp_path), PADDLE_LAUNCHER_WORK_DIR=str(tmp_path / "work"), **env)
    )


def test_data_of_another_digest_is_waited_out(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 3, digest="old")
    clock = Clock(s100=lambda: write_data(tmp_path / "quick-start", 3, digest="d1"))
    manifest = await_manifest(train_settings(tmp_path), clock.pause, clock)
    assert manifest["dataDigest"] == "d1"
    assert 100 <= clock.now < 102


def test_the_wait_for_data_ends_at_its_deadline_and_says_what_was_there(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 3, digest="old")
    clock = Clock()
    with pytest.raises(DataError, match=r"no data after 60 s .*is of other data \(old\)"):
        await_manifest(train_settings(tmp_path, PADDLE_LAUNCHER_DATA_WAIT_SECONDS="60"), clock.pause, clock)
    assert 60 <= clock.now < 61


def test_a_failure_of_other_data_is_no_reason_to_end(tmp_path: Path) -> None:
    job = tmp_path / "quick-start"
    job.mkdir()
    (job / "data-failed.json").write_text('{"dataDigest": "old", "reason": "x"}')
    clock = Clock(s5=lambda: write_data(job, 3))
    assert await_manifest(train_settings(tmp_path), clock.pause, clock)["splitCount"] == 3


def test_a_manifest_with_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 2)
    with pytest.raises(DataError, match="2 shards, but there are 3 trainers"):
        await_manifest(train_settings(tmp_path))


def test_a_missing_program_is_told_with_what_exists(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 3)
    (tmp_path / "built" / "quick_start").mkdir(parents=True)
    settings = train_settings(tmp_path, TRAIN_CONFIG_DIR="quickstart")
    with pytest.raises(SettingsError, match="there are mine of your own, and built in quick_start"):
        stage.find_program(settings, tmp_path / "built")


def test_a_missing_config_file_is_told_with_the_files_there(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 3)
    with pytest.raises(SettingsError, match=r"'lr\.py'.* there are only trainer_config\.py"):
        stage.find_program(train_settings(tmp_path, PADDLE_LAUNCHER_CONFIG_FILE="lr.py"))


def test_a_persons_own_program_wins_over_the_built_in_one(tmp_path: Path) -> None:
    write_data(tmp_path / "quick-start", 3)
    (tmp_path / "built" / "mine").mkdir(parents=True)
    (tmp_path / "built" / "mine" / "trainer_config.py").touch()
    found = stage.find_program(train_settings(tmp_path), tmp_path / "built")
    assert found == tmp_path / "quick-start" / "mine"


def test_a_full_work_disk_is_told_before_anything_is_copied(tmp_path: Path) -> None:
    manifest = write_data(tmp_path / "quick-start", 3)
    manifest["shards"][1]["bytes"] = 1 << 60
    settings = train_settings(tmp_path)
    with pytest.raises(StorageError, match=r"shard 1 .* has only .* free"):
        stage.stage(settings, 1, manifest, tmp_path / "quick-start" / "mine")
    assert not (tmp_path / "work" / "data").exists()


def test_the_fingerprint_leaves_out_passes_and_log_periods(tmp_path: Path) -> None:
    a = train_settings(tmp_path)
    b = replace(a, passes=99, log_period=1, restarts=0, k8s_job="other")
    assert fingerprint(a, "p") == fingerprint(b, "p")
    for change in ({"batch_size": 1}, {"mode": "sync"}, {"data_digest": "x"}, {"extra_args": ("--a=1",)}):
        assert fingerprint(replace(a, **change), "p") != fingerprint(a, "p")
    assert fingerprint(a, "q") != fingerprint(a, "p")


def holder(run: str, release: str = "r") -> Holder:
    return Holder(run, "ns", release, "job", f"{run}-0", f"token-{run}")


def test_a_released_lock_is_taken_at_once_and_a_renewed_one_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "output" / "run.lock"
    first = RunLock(path, holder("a"), Timings())
    first.acquire()
    clock = Clock(**{f"s{n}": first.write for n in range(2, 30, 2)}, s31=first.release)
    second = RunLock(path, holder("b"), Timings(), clock, clock.pause)
    second.acquire()
    assert 31 <= clock.now < 33
    assert second.is_ours()
    assert not first.is_ours()


def test_a_lock_that_is_renewed_for_ever_is_refused_at_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "output" / "run.lock"
    first = RunLock(path, holder("a"), Timings())
    first.acquire()
    clock = Clock(**{f"s{n}": first.write for n in range(2, 400, 2)})
    with pytest.raises(DeadlineError, match=r"still held by run a .*same jobName 'job'"):
        RunLock(path, holder("b", "other"), Timings(), clock, clock.pause).acquire()
    assert 180 <= clock.now < 181
    assert first.is_ours()


def test_a_stale_lock_is_taken_after_15_s_of_the_waiters_own_clock(tmp_path: Path) -> None:
    path = tmp_path / "output" / "run.lock"
    RunLock(path, holder("a"), Timings()).acquire()
    clock = Clock()
    second = RunLock(path, holder("b"), Timings(), clock, clock.pause)
    second.acquire()
    assert 15 <= clock.now < 20
    assert second.is_ours()


def test_of_two_that_take_a_stale_lock_the_last_writer_has_it_and_the_other_knows(tmp_path: Path) -> None:
    path = tmp_path / "output" / "run.lock"
    RunLock(path, holder("a"), Timings()).acquire()
    rival = RunLock(path, holder("c"), Timings())
    # The rival, who saw the same stale lock, writes while the other lets its own writing settle.
    clock = Clock(s16=rival.write, **{f"s{n}": rival.write for n in range(18, 400, 2)})
    with pytest.raises(DeadlineError, match="still held by run c"):
        RunLock(path, holder("b"), Timings(), clock, clock.pause).acquire()
    assert rival.is_ours()


def test_releasing_a_lock_that_another_has_taken_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "output" / "run.lock"
    first, second = RunLock(path, holder("a"), Timings()), RunLock(path, holder("b"), Timings())
    first.acquire()
    second.write()
    first.release()
    assert second.is_ours()


def test_the_next_attempt_counts_logs_folders_and_the_status(tmp_path: Path) -> None:
    output = Output(tmp_path)
    assert next_attempt(output) == 0
    output.node(1).mkdir()
    output.train_log(1).touch()
    assert next_attempt(output) == 1
    output.attempt(1, 3).mkdir()
    assert next_attempt(output) == 5, "attempt 3 was moved aside, the logs there are of attempt 4"
    output.status_json.write_text('{"attempt": 7}')
    assert next_attempt(output) == 8


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
