"""Tests of one rank: a trainer that never reports, a removed log, a failing pod disk, a missing service account."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from launcher.errors import DataError, SettingsError, StorageError, StorageFailedError
from launcher.io.files import UnreadableError, read_json
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.supervisor.agent import Agent
from launcher.supervisor.peers import addresses
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import Action, Plan
from launcher.supervisor.process_group import ProcessGroup
from launcher.supervisor.shared_storage import input_staging
from launcher.supervisor.shared_storage.output_lease import LeaseHolder, OutputLease
from launcher.supervisor.timings import Timings
from testkit.waiting import until
from tests.launcher.supervisor.failing_calls import fail_calls
from tests.launcher.supervisor.fake_clock import FakeClock
from tests.launcher.supervisor.loopback_gang import FAST, build_coordinator, train_settings


class SleepRuntime(V1Runtime):
    """A runtime with one trainer, which only sleeps."""

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        argv, work = ("/bin/sleep", "600"), attempt.settings.work
        return [ProcessSpec("trainer", "trainer", argv, {}, work.root, work.log("train.log"))]

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        return []

    def check(self, settings: TrainSettings) -> None:
        """Accept all settings."""


Start = Callable[[SleepRuntime], ProcessGroup]


@pytest.fixture
def start_training(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the process group of one rank and orders it to train."""
    groups = []
    (tmp_path / "work").mkdir()

    def start(runtime: SleepRuntime) -> ProcessGroup:
        settings = train_settings(tmp_path, trainers=1)
        group = ProcessGroup(
            runtime,
            RankAttempt(0, ("127.0.0.1",), settings, 0, None),
            network=PodNetwork(),
            timings=Timings(**FAST),
            wake=lambda: None,
            longest_stays={},
        )
        groups.append(group)
        group.poll(time.monotonic())
        group.train()
        assert group.phase == "training"
        return group

    yield start
    for group in groups:
        group.stop(time.monotonic())
        until(lambda group=group: group.poll(time.monotonic()) or not group.running)
        group.join_log_followers(10)


def test_a_trainer_of_fleet_that_never_writes_its_progress_is_a_hang(start_training: Start) -> None:
    runtime = SleepRuntime()
    runtime.reports_progress = True
    group, start = start_training(runtime), time.monotonic()
    for seconds, hangs in ((0, False), (590, False), (610, True)):
        group.poll(start + seconds)
        assert (group.failure is not None) == hangs
    assert group.failure is not None
    assert "trainer hangs: still starting for 600 s" in group.failure.text


def test_a_silent_log_of_a_script_is_reported_as_a_hang_and_a_growing_one_ends_it(
    start_training: Start, tmp_path: Path
) -> None:
    """The processes run on: only all ranks together can hang, which the coordinator decides."""
    runtime = SleepRuntime()
    runtime.is_user_script, runtime.log_meanings = True, (LogMeaning("reset by peer", priority=3),)
    group, start = start_training(runtime), time.monotonic()
    log = tmp_path / "work" / "logs" / "train.log"
    for seconds, hangs in ((0, False), (590, False), (610, True), (1210, True)):
        group.poll(start + seconds)
        assert (group.hang is not None) == hangs
    assert group.hang is not None
    assert (
        "trainer hangs: its log has not grown for 600 s (training.progressDeadlineSeconds)" in group.hang.text
    )
    log.write_text("a line\n")
    group.poll(start + 1220)
    log.unlink()  # a script may remove it: then it does not grow
    group.poll(start + 1225)
    assert (group.hang, group.failure, group.running) == (None, None, True)
    log.write_text("Connection reset by peer\n")
    group.poll(start + 1226)
    group.poll(start + 1830)
    assert group.hang is not None
    assert "Fix: let any process" in group.hang.text, "that line has a meaning, but no fix"


@pytest.mark.parametrize(("state", "hangs"), [("starting", False), ("testing", False), ("training", True)])
def test_a_script_that_reports_no_step_yet_but_logs_does_not_hang(
    start_training: Start, tmp_path: Path, state: str, hangs: bool
) -> None:
    """Regression: a script that prepared its data for long, and logged that, was restarted again and again."""
    runtime = SleepRuntime()
    runtime.is_user_script = True
    group, start = start_training(runtime), time.monotonic()
    (tmp_path / "work" / "progress.json").write_text(f'{{"pass": 0, "batch": 1, "state": "{state}"}}')
    log = tmp_path / "work" / "logs" / "train.log"
    for minute in range(12):
        log.write_text("a line\n" * (minute + 1))
        group.poll(start + 60 * minute)
    assert (group.hang is not None) == hangs
    group.poll(start + 60 * 12 + 3600)
    assert group.hang is not None


@pytest.mark.parametrize(("code", "kind"), [(errno.EROFS, StorageError), (errno.EIO, StorageFailedError)])
def test_a_failing_disk_of_the_pod_is_reported_as_such(
    start_training: Start, code: int, kind: type[Exception]
) -> None:
    with (
        fail_calls("unlink", "*/progress.json", code),
        pytest.raises(kind, match=r"progress\.json: .* Fix: "),
    ):
        start_training(SleepRuntime())


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


def test_an_error_of_a_file_while_processes_are_stopped_does_not_end_the_shut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(train_settings(tmp_path), SleepRuntime(), PodNetwork(), Timings(**FAST))
    released: list[object] = []
    monkeypatch.setattr(
        agent,
        "orders",
        SimpleNamespace(announce_exit=print, wait_and_close=lambda *_: released.append(1)),
    )

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(agent.executor, "step", fail)
    monkeypatch.setattr(agent, "_train", fail)
    monkeypatch.setattr("launcher.supervisor.agent.start_logging", lambda *_: None)
    assert agent.run() == 71
    assert released == [1], "the output lease was released"


def test_rendezvous_api_without_a_service_account_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the rank waited for rank 0 until `training.rankWaitHours` were over."""
    settings = train_settings(tmp_path, JOB_COMPLETION_INDEX="1", rendezvous="api")
    monkeypatch.setattr("launcher.io.kubernetes_api.ACCOUNT", tmp_path / "absent")
    agent = Agent(settings, SleepRuntime(), PodNetwork(), Timings(**FAST))
    with pytest.raises(SettingsError, match="this pod has no service account"):
        agent._start_link()


def test_a_program_that_is_replaced_while_it_is_copied_is_a_data_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.mkdir()
    for name in ("a.py", "b.py"):
        (program / name).write_text(name)

    def push() -> None:
        (program / "b.py").unlink(missing_ok=True)

    with pytest.raises(DataError, match="was changed while it was copied"):
        input_staging._stage_program(program, tmp_path / "copy", "a.py", "", push)


def test_release_keeps_the_lease_of_another_pod_that_took_it_during_a_slow_read(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "run.lock"
    mine = OutputLease(
        path, LeaseHolder("a", "ns", "r", "job", "a-0", "token-a", 110), Timings(), clock, clock.pause
    )
    mine.acquire()
    other = LeaseHolder("b", "ns", "r", "job", "b-0", "token-b", 110)

    class SlowPath(type(path)):  # type: ignore[misc]
        def read_bytes(self) -> bytes:
            content = bytes(super().read_bytes())
            clock.pause(30)
            OutputLease(path, other, Timings(), clock, clock.pause).write_to(path)
            return content

    mine.path = SlowPath(path)
    mine.release()
    assert b"token-b" in path.read_bytes()


def test_the_main_thread_is_not_taken_for_stuck_while_the_report_of_a_failed_run_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_0 = build_coordinator(train_settings(tmp_path, trainers=1))
    turns: list[int] = []
    seen: list[int] = []

    def record_turn() -> float:
        turns.append(1)
        return time.monotonic()

    def write_report(*given: object) -> None:
        pause: Callable[[float], None] = given[-1]  # type: ignore[assignment]
        seen.append(len(turns))
        pause(0.0)
        seen.append(len(turns))

    monkeypatch.setattr("launcher.supervisor.coordinator.coordinator.write_report", write_report)
    rank_0.run_files = Mock()
    error = DataError("a wrong row")
    rank_0.announce_exit(error)
    rank_0.wait_and_close(error, record_turn)
    assert seen[1] == seen[0] + 1


def test_an_unexpected_error_at_the_end_of_a_run_is_recorded_as_its_failure(tmp_path: Path) -> None:
    rank_0 = build_coordinator(train_settings(tmp_path, trainers=1))
    rank_0.run_files = Mock(warning=None)
    rank_0.run_files.write_trained.side_effect = ValueError(
        "Out of range float values are not JSON compliant"
    )
    plan = rank_0._end_run(Plan(do=Action.END))
    assert plan.cause is not None
    assert plan.cause.code == 70
    [(state, cause), _] = rank_0.run_files.close.call_args
    assert state == "failed"
    assert "internal error of the launcher: ValueError(" in cause.text


def test_an_unexpected_error_of_the_shut_down_leaves_a_termination_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination"
    settings = train_settings(tmp_path, PADDLE_LAUNCHER_TERMINATION_LOG=str(message))
    agent = Agent(settings, SleepRuntime(), PodNetwork(), Timings(**FAST))
    monkeypatch.setattr("launcher.supervisor.agent.start_logging", lambda *_: None)
    monkeypatch.setattr(agent, "_train", lambda: None)
    monkeypatch.setattr(agent, "_shut_down", Mock(side_effect=ValueError("no number")))
    assert agent.run() == 71
    assert "internal error of the launcher: ValueError('no number')" in message.read_text()


@pytest.mark.parametrize("text", ['{"loss": 1e400}', '{"loss": NaN}', '{"loss": -Infinity}'])
def test_json_of_a_script_with_a_number_that_is_not_finite_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(UnreadableError, match=r"progress\.json exists"):
        read_json(tmp_path / "progress.json")
