"""Tests of the threads that share a trainer's batches, without Paddle's steps."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from launcher.trainer.record_files import Arrays

pytestmark = pytest.mark.paddle


class Scope:
    """The part of Paddle's Scope that the threads use."""

    def new_scope(self) -> Scope:
        return Scope()

    def var(self, name: str) -> None: ...


def new_threads(threads: int, step: Callable[[int], float], apply: Callable[[], None] = lambda: None) -> Any:
    from launcher.trainer.fleet_trainer import TrainerThreads

    return TrainerThreads(threads, Scope(), lambda batch, *_: step(int(batch["n"][0])), apply)


def numbers(last: int) -> Iterator[Arrays]:
    return ({"n": np.array([n])} for n in range(1, last + 1))


def test_threads_process_each_batch_once_and_no_more_than_requested() -> None:
    at_once = threading.Barrier(3, timeout=10)
    reported: list[int] = []

    def step(number: int) -> float:
        at_once.wait()
        return float(number)

    batches = numbers(12)
    new_threads(3, step).train(batches, 9, lambda batch, loss: reported.append(int(loss)))
    assert sorted(reported) == list(range(1, 10))
    assert int(next(batches)["n"][0]) == 10, "the next call continues after them"


def test_one_thread_keeps_the_order_and_applies_results_during_the_next_step() -> None:
    started = [threading.Event() for _ in range(4)]
    applied: list[int] = []
    reported: list[int] = []

    def step(number: int) -> float:
        started[number].set()
        assert len(applied) >= number - 2, "no more than one step is missing"
        return 0.0

    def apply() -> None:
        number = len(applied) + 1
        assert number == 3 or started[number + 1].wait(10), "the next step waits for this"
        applied.append(number)

    new_threads(1, step, apply).train(numbers(3), 3, lambda batch, _: reported.append(int(batch["n"][0])))
    assert reported == [1, 2, 3]
    assert applied == [1, 2, 3], "the last one too"


def test_only_one_thread_applies_results_and_only_one_reports() -> None:
    inside = {"apply": 0, "report": 0}
    applied = []

    def enter(name: str) -> None:
        inside[name] += 1
        assert inside[name] == 1, f"two threads called {name} at once"
        time.sleep(0.001)
        inside[name] -= 1

    def apply() -> None:
        enter("apply")
        applied.append(1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        new_threads(4, lambda n: 0.0, apply).train(numbers(200), 200, lambda *_: enter("report"))
    finally:
        sys.setswitchinterval(before)
    assert 1 <= len(applied) <= 200 / 4


def test_in_sync_mode_all_batches_are_applied_before_the_next_start() -> None:
    events: list[str] = []

    def step(number: int) -> float:
        events.append("step")
        return 0.0

    report = lambda *_: events.append("report")  # noqa: E731
    new_threads(2, step, lambda: events.append("apply")).train_in_steps(numbers(5), 5, report)
    steps_of_two = ["step", "step", "apply", "report", "report"]
    assert events == [*steps_of_two, *steps_of_two, "step", "apply", "report"]


def test_in_sync_mode_the_next_batch_is_read_while_the_servers_apply_gradients() -> None:
    read = [threading.Event() for _ in range(4)]
    applied: list[bool] = []

    def batches() -> Iterator[Arrays]:
        for number in range(1, 4):
            read[number].set()
            yield {"n": np.array([number])}

    def apply() -> None:
        applied.append(read[min(len(applied) + 2, 3)].wait(10))

    new_threads(1, lambda _: 0.0, apply).train_in_steps(batches(), 3, lambda *_: None)
    assert applied == [True] * 3


@pytest.mark.parametrize("threads", [1, 3])
def test_after_a_failure_no_batch_starts_and_the_failure_is_raised(threads: int) -> None:
    started: list[int] = []

    def step(number: int) -> float:
        started.append(number)
        if number == 5:
            raise ValueError("five")
        time.sleep(0.005)
        return 0.0

    with pytest.raises(ValueError, match="five"):
        new_threads(threads, step).train(numbers(100), 100, lambda *_: None)
    assert max(started) < 5 + threads + 1
