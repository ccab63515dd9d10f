"""Tests of the agent of one rank: its shut-down, stop signals, the storage probe and the watchdog."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.errors import DataError, SettingsError, StoppedError, UnfitError
from launcher.runtimes import load_runtime
from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.settings import TrainSettings
from launcher.supervisor import agent as agent_module
from launcher.supervisor.agent import SPARE_SECONDS, Agent, StopRequest, StorageProbe
from launcher.supervisor.child_processes import ChildProcess
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import Action, Failure, Phase, Plan
from launcher.supervisor.timings import Timings
from testkit import failing_filesystem
from testkit.waiting import until
from tests.launcher.supervisor.gang_members import make_plan
from tests.launcher.supervisor.loopback_gang import FAST, build_coordinator, needs_fuse, train_settings

STOPPED = StoppedError("received SIGTERM")
SURVIVED = UnfitError("trainer (pid 1) did not exit within 20 s after SIGKILL")
TOO_MANY = OSError(errno.EMFILE, "Too many open files")


def build_agent(settings: TrainSettings, **timings: float) -> Agent:
    """Return an agent that has not started anything."""
    return Agent(settings, load_runtime("fleet"), PodNetwork(), Timings(**{**FAST, **timings}))


@pytest.fixture(autouse=True)
def keep_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log lines of an agent go where those of the test go."""
    monkeypatch.setattr(agent_module, "start_logging", lambda *_: None)


@pytest.mark.parametrize(
    ("error", "failing", "code", "message"),
    [
        (TOO_MANY, {"executor.step": TOO_MANY}, 71, "Too many open files"),
        (STOPPED, {"executor.step": SURVIVED}, 143, "received SIGTERM"),
        (
            None,
            {"_shut_down": ValueError("no number")},
            71,
            "internal error of the launcher: ValueError('no number')",
        ),
    ],
    ids=["a file", "processes survive SIGKILL", "an unexpected error"],
)
def test_an_error_while_processes_are_stopped_ends_neither_the_shut_down_nor_its_message(
    tmp_path: Path, error: Exception | None, failing: dict[str, Exception], code: int, message: str
) -> None:
    termination = tmp_path / "termination"
    agent: Any = build_agent(train_settings(tmp_path, PADDLE_LAUNCHER_TERMINATION_LOG=str(termination)))
    agent.orders, agent._train = Mock(), Mock(side_effect=error)
    for name, raised in failing.items():
        owner, _, method = name.rpartition(".")
        setattr(getattr(agent, owner) if owner else agent, method, Mock(side_effect=raised))
    assert agent.run() == code
    assert agent.orders.wait_and_close.called is (error is not None), "it releases the lease"
    assert message in termination.read_text()


def test_rendezvous_api_without_a_service_account_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the rank waited for rank 0 until `training.rankWaitHours` were over."""
    settings = train_settings(tmp_path, JOB_COMPLETION_INDEX="1", rendezvous="api")
    monkeypatch.setattr("launcher.io.kubernetes_api.ACCOUNT", tmp_path / "absent")
    agent = build_agent(settings)
    with pytest.raises(SettingsError, match="this pod has no service account"):
        agent._start_link()


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
    plan = rank_0._end_run(Plan(do=Action.END), rank_0.run_files)
    assert plan.cause is not None
    assert plan.cause.code == 70
    [(state, cause), _] = rank_0.run_files.close.call_args
    assert state == "failed"
    assert "internal error of the launcher: ValueError(" in cause.text


# -- when a launcher obeys a stop signal


TRAIN = make_plan(0, "train")
STOP = make_plan(
    0, "stop", cause=Failure("rank 1 (pod a): SIGTERM: saved a checkpoint at pass 1, batch 40", 143, 0.0)
)


def received(*signals: int, grace: float = 110.0) -> StopRequest:
    request = StopRequest(grace, 13.0)
    for number in signals:
        request.record(number)
    return request


def test_without_a_signal_nothing_is_raised_and_no_time_is_reported() -> None:
    request = received()
    request.check(Phase.IDLE, None)
    assert request.seconds_left() is None


def test_a_launcher_that_trains_stays_after_sigterm_until_its_processes_must_stop() -> None:
    request = received(signal.SIGTERM)
    request.check(Phase.TRAINING, TRAIN)
    left = request.seconds_left()
    assert left is not None
    assert 0 < left <= 110 - 13 - SPARE_SECONDS
    assert received(signal.SIGTERM, grace=18.0).seconds_left() is None, "too short to wait"


@pytest.mark.parametrize(
    ("request_", "phase", "order"),
    [
        (received(signal.SIGTERM, grace=18.0), Phase.TRAINING, TRAIN),
        (received(signal.SIGTERM, signal.SIGTERM), Phase.TRAINING, TRAIN),
        (received(signal.SIGINT), Phase.TRAINING, TRAIN),
        (received(signal.SIGTERM, signal.SIGHUP), Phase.TRAINING, TRAIN),
        (received(signal.SIGTERM), Phase.READY, TRAIN),
        (received(signal.SIGTERM), Phase.DONE, TRAIN),
        (received(signal.SIGTERM), Phase.STAGING, None),
        (received(signal.SIGTERM), Phase.TRAINING, make_plan(0, "wait")),
    ],
    ids=["short grace", "second SIGTERM", "SIGINT", "SIGHUP", "ready", "done", "staging", "restart"],
)
def test_other_signals_and_phases_stop_the_launcher_at_once(
    request_: StopRequest, phase: Phase, order: Plan | None
) -> None:
    with pytest.raises(StoppedError, match=r"^received SIG[A-Z]+$"):
        request_.check(phase, order)


def test_the_order_to_stop_ends_the_wait_with_what_became_of_the_checkpoint() -> None:
    with pytest.raises(StoppedError, match=r"^received SIGTERM; saved a checkpoint at pass 1, batch 40$"):
        received(signal.SIGTERM).check(Phase.TRAINING, STOP)


def test_a_failure_of_the_gang_is_not_the_cause_of_the_exit() -> None:
    with pytest.raises(StoppedError, match=r"^received SIGTERM$"):
        received(signal.SIGTERM).check(
            Phase.TRAINING, make_plan(0, "stop", cause=Failure("rank 0: trainer exited with 1", 70, 0.0))
        )


# -- the storage probe and the watchdog


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageProbe:
    """Return a probe of tmp_path with a short period, which has received an answer."""
    monkeypatch.setattr(agent_module, "PROBE_SECONDS", 0.02)
    probe = StorageProbe(tmp_path)
    until(lambda: probe.silence() == 0)
    return probe


@needs_fuse
def test_the_liveness_probe_fails_while_the_storage_does_not_answer(
    tmp_path: Path, probe: StorageProbe
) -> None:
    agent = build_agent(train_settings(tmp_path), storage=0.5)
    agent._watchdog._probe = probe
    healthz = agent._watchdog.serve_healthz
    assert healthz()[0] == 200
    with failing_filesystem.mount_over(tmp_path):
        until(lambda: healthz()[0] == 503)
        with pytest.raises(UnfitError, match="Fix: see whether the volume is mounted"):
            probe.check(0.5)
    until(lambda: healthz()[0] == 200)
    until(lambda: probe.silence() < 0.1)


@needs_fuse
def test_a_storage_error_counts_as_an_answer(
    tmp_path: Path, probe: StorageProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    real = os.statvfs

    def record_error(path: Path) -> None:
        try:
            real(path)
        except OSError as error:
            answers.append(error.errno)
            raise

    with failing_filesystem.mount_over(tmp_path, errno.ESTALE):
        monkeypatch.setattr(os, "statvfs", record_error)
        until(lambda: answers[2:])
        assert probe.silence() < 5
        # Inside the block: a request during the unmount may fail with ECONNABORTED.
        assert set(answers) == {errno.ESTALE}


@pytest.fixture
def start_child(tmp_path: Path) -> Iterator[Callable[..., ChildProcess]]:
    """Return a function that starts a child process, which sleeps until the end of the test."""
    started: list[ChildProcess] = []

    def start(*, is_helper: bool) -> ChildProcess:
        spec = ProcessSpec("trainer", "trainer", ("/bin/sleep", "600"), {}, tmp_path, tmp_path / "log")
        started.append(ChildProcess(spec, lambda: None, is_helper=is_helper))
        return started[-1]

    yield start
    for child in started:
        child.signal(9)
        until(child.done.is_set)


@pytest.mark.parametrize("is_helper", [False, True])
def test_the_watchdog_kills_processes_without_orders_although_the_main_thread_runs(
    tmp_path: Path, start_child: Callable[..., ChildProcess], is_helper: bool
) -> None:
    """The main thread stops them after `orphan` seconds; the watchdog acts when that has not happened."""
    child, agent = start_child(is_helper=is_helper), build_agent(train_settings(tmp_path))
    agent.orders.heard, watchdog = 1000.0, agent._watchdog
    late = 1000.0 + FAST["orphan"] + FAST["stop"]
    watchdog.record_turn()
    watchdog._check_limits(late + 1.9)
    assert not child.done.wait(0.5)
    watchdog._check_limits(late + 2.0)
    if is_helper:
        assert not child.done.wait(0.5), "a helper belongs to no attempt"
    else:
        until(child.done.is_set, "the end of the process")


@pytest.mark.parametrize("is_helper", [False, True])
def test_a_lost_lease_kills_processes_and_helpers_although_the_main_thread_is_stuck(
    tmp_path: Path, start_child: Callable[..., ChildProcess], is_helper: bool
) -> None:
    """A helper writes to output/, which another run may take over soon after the lease is lost."""
    child = start_child(is_helper=is_helper)
    build_agent(
        train_settings(tmp_path)
    )._lose_lease()  # from the lease's thread; the main thread does nothing
    until(child.done.is_set, "the end of the process", 10)
