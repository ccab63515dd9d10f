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


def build_executor(start: Any = FakeProcesses) -> OrderExecutor:
    made = OrderExecutor(start, 1, 10)
    made.staged, made.address = True, "10.0.0.1"
    return made


def build_serving_executor() -> tuple[OrderExecutor, Any]:
    made = build_executor()
    made.step(SERVE, NOW, NOW)
    return made, made.processes


def test_a_rank_starts_once_per_attempt_and_reports_it() -> None:
    made, processes = build_serving_executor()
    assert made.report == ("serving", 3, None)
    processes.running = False
    made.step(make_plan(3, "stop"), NOW, NOW)
    made.step(SERVE, NOW, NOW)
    assert made.processes is processes
    made.step(replace(SERVE, attempt=4), NOW, NOW)
    assert made.processes is not processes


def test_the_start_is_reported_before_the_first_process() -> None:
    reports = []

    def start(order: Plan) -> FakeProcesses:
        reports.append(made.report)
        return FakeProcesses(order)

    made = build_executor(start)
    made.step(SERVE, NOW, NOW)
    assert reports == [("serving", 3, None)]


@pytest.mark.parametrize("do", ["train", "finish"])
def test_an_order_is_passed_to_the_processes(do: Any) -> None:
    made, processes = build_serving_executor()
    made.step(replace(SERVE, do=Action(do)), NOW, NOW)
    assert processes.called == do


@pytest.mark.parametrize(
    ("order", "heard"),
    [
        (make_plan(3, "stop"), NOW),
        (make_plan(4, "wait"), NOW),
        (replace(SERVE, do=Action.TRAIN, attempt=4), NOW),
        (SERVE, NOW - 10),
    ],
)
def test_a_rank_without_a_valid_order_for_its_attempt_stops_its_processes(order: Plan, heard: float) -> None:
    made, processes = build_serving_executor()
    made.step(order, heard, NOW)
    assert (processes.called, made.report[0]) == ("stop", "serving")
    processes.running = False
    made.step(order, heard, NOW)
    assert made.report[:2] == ("idle", 3)


@pytest.mark.parametrize("order", [make_plan(3, "stop"), make_plan(4, "wait")])
def test_a_rank_whose_processes_have_exited_by_themselves_is_idle_after_a_stop(order: Plan) -> None:
    """The coordinator waits for `idle`: it would end the run, as if the rank could not stop its processes."""
    made, processes = build_serving_executor()
    processes.phase, processes.running = Phase.DONE, False
    made.step(replace(SERVE, do=Action.TRAIN), NOW, NOW)
    assert made.report[:2] == ("done", 3)
    made.step(order, NOW, NOW)
    assert made.report[:2] == ("idle", 3)


@pytest.mark.parametrize(
    ("order", "heard"),
    [
        (SERVE, NOW - 10),
        (replace(SERVE, do=Action.TRAIN), NOW),
        (replace(SERVE, addresses=("10.0.0.0", "10.9.9.9")), NOW),
    ],
)
def test_a_rank_starts_nothing_for_an_expired_order_or_one_for_another_pod(order: Plan, heard: float) -> None:
    made = build_executor()
    made.step(order, heard, NOW)
    assert made.processes is None


def test_a_rank_that_receives_stop_never_starts_that_attempt() -> None:
    made = build_executor()
    made.step(make_plan(3, "stop"), NOW, NOW)
    assert made.report == ("idle", 3, None)
    made.step(SERVE, NOW, NOW)
    assert made.processes is None


def test_a_failed_start_is_the_failure_of_the_attempt() -> None:
    def start(order: Plan) -> FakeProcesses:
        raise StorageFailedError("EIO")

    made = build_executor(start)
    made.step(SERVE, NOW, NOW)
    assert made.report == ("idle", 3, Failure("EIO", 71, NOW, 1))


@pytest.mark.parametrize(("heard", "seconds"), [(1000.0, 92.0), (900.0, 0.0)], ids=["confirmed", "expired"])
def test_processes_get_the_seconds_of_an_order_to_stop_while_rank_0_confirms_it(
    heard: float, seconds: float
) -> None:
    executor = OrderExecutor(FakeProcesses, 1, 10.0)
    executor.staged = True
    executor.step(SERVE, 1000.0, 1000.0)
    executor.step(make_plan(3, "stop", stop_seconds=92.0), heard, 1000.0)
    assert executor.processes.called == "stop"
    assert executor.processes.stop_seconds == seconds
