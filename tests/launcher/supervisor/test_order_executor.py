"""Tests of the order executor: what a rank does with an order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import StorageFailedError
from launcher.supervisor.peers.messages import Action, Failure, Phase, Plan
from launcher.supervisor.process_group import OrderExecutor
from tests.launcher.supervisor.gang_members import NOW, make_plan


class FakeProcesses:
    """Stands in for a rank's processes, and records the last call of each test."""

    def __init__(self, order: Plan) -> None:
        self.attempt, self.phase, self.failure = order.attempt, Phase.SERVING, None
        self.running, self.called, self.stop_seconds = True, "", 0.0

    def poll(self, now: float) -> None:
        """Do nothing."""

    def train(self) -> None:
        self.called = "train"

    def finish(self, now: float) -> None:
        self.called = "finish"

    def stop(self, now: float, seconds: float = 0.0) -> None:
        self.called, self.stop_seconds = "stop", seconds


SERVE = make_plan(3, "serve", ("10.0.0.0", "10.0.0.1"))
TRAIN, WAIT, STOP = replace(SERVE, do=Action.TRAIN), make_plan(4, "wait"), make_plan(3, "stop")


def build_executor(start: Any = FakeProcesses) -> OrderExecutor:
    made = OrderExecutor(start, 1, 10)
    made.staged, made.address = True, "10.0.0.1"
    return made


@pytest.fixture
def serving() -> Any:
    """Return an executor that has started its processes."""
    made = build_executor()
    made.step(SERVE, NOW, NOW)
    return made


def test_a_rank_starts_once_per_attempt_and_reports_it(serving: Any) -> None:
    processes = serving.processes
    assert serving.report == ("serving", 3, None)
    processes.running = False
    serving.step(STOP, NOW, NOW)
    serving.step(SERVE, NOW, NOW)
    assert serving.processes is processes
    serving.step(replace(SERVE, attempt=4), NOW, NOW)
    assert serving.processes is not processes


def test_the_start_is_reported_before_the_first_process_and_a_failed_one_is_the_failure_of_the_attempt() -> (
    None
):
    reports = []

    def start(order: Plan) -> FakeProcesses:
        reports.append(made.report)
        raise StorageFailedError("EIO")

    made = build_executor(start)
    made.step(SERVE, NOW, NOW)
    assert reports == [("serving", 3, None)]
    assert made.report == ("idle", 3, Failure("EIO", 71, NOW, 1))


@pytest.mark.parametrize("do", ["train", "finish"])
def test_an_order_is_passed_to_the_processes(serving: Any, do: Any) -> None:
    serving.step(replace(SERVE, do=Action(do)), NOW, NOW)
    assert serving.processes.called == do


@pytest.mark.parametrize(
    ("order", "heard", "seconds"),
    [
        (STOP, NOW, 0.0),
        (replace(STOP, stop_seconds=92.0), NOW, 92.0),
        (replace(STOP, stop_seconds=92.0), NOW - 10, 0.0),
        (WAIT, NOW, 0.0),
        (replace(TRAIN, attempt=4), NOW, 0.0),
        (SERVE, NOW - 10, 0.0),
    ],
    ids=["stop", "stop slowly", "stop, expired", "wait", "another attempt", "expired"],
)
def test_a_rank_without_a_valid_order_for_its_attempt_stops_its_processes(
    serving: Any, order: Plan, heard: float, seconds: float
) -> None:
    """They get the seconds of an order to stop while rank 0 confirms it."""
    serving.step(order, heard, NOW)
    assert (serving.processes.called, serving.processes.stop_seconds) == ("stop", seconds)
    assert serving.report[0] == "serving"
    serving.processes.running = False
    serving.step(order, heard, NOW)
    assert serving.report[:2] == ("idle", 3)


@pytest.mark.parametrize("order", [STOP, WAIT])
def test_a_rank_whose_processes_have_exited_by_themselves_is_idle_after_a_stop(
    serving: Any, order: Plan
) -> None:
    """The coordinator waits for `idle`: it would end the run, as if the rank could not stop its processes."""
    serving.processes.phase, serving.processes.running = Phase.DONE, False
    serving.step(TRAIN, NOW, NOW)
    assert serving.report[:2] == ("done", 3)
    serving.step(order, NOW, NOW)
    assert serving.report[:2] == ("idle", 3)


@pytest.mark.parametrize(
    ("before", "order", "heard"),
    [
        (None, SERVE, NOW - 10),
        (None, TRAIN, NOW),
        (None, replace(SERVE, addresses=("10.0.0.0", "10.9.9.9")), NOW),
        (STOP, SERVE, NOW),
    ],
    ids=["expired", "train", "for another pod", "after the stop of this attempt"],
)
def test_a_rank_starts_nothing_without_a_valid_order_to_serve(
    before: Plan | None, order: Plan, heard: float
) -> None:
    made = build_executor()
    if before is not None:
        made.step(before, NOW, NOW)
        assert made.report == ("idle", 3, None)
    made.step(order, heard, NOW)
    assert made.processes is None
