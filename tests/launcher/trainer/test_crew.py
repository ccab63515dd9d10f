"""Tests of the threads that share a trainer's batches, without Paddle's steps."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from launcher.trainer.records.row_parsing import Arrays

pytestmark = pytest.mark.paddle


class Scope:
    """The part of Paddle's Scope that the threads use."""

    def new_scope(self) -> Scope:
        return Scope()

    def var(self, name: str) -> None: ...


def crew(threads: int, step: Callable[[int], float], apply: Callable[[], None] = lambda: None) -> Any:
    from launcher.trainer.trainer_threads import TrainerThreads

    return TrainerThreads(threads, Scope(), lambda batch, *_: step(int(batch["n"][0])), apply)


def numbers(last: int) -> Iterator[Arrays]:
    return ({"n": np.array([n])} for n in range(1, last + 1))


def test_threads_process_each_batch_once_and_no_more_than_requested() -> None:
    at_once = threading.Barrier(3, timeout=10)
    told: list[int] = []

    def step(number: int) -> float:
        at_once.wait()
        return float(number)

    batches = numbers(12)
    crew(3, step).train(batches, 9, lambda batch, loss: told.append(int(loss)))
    assert sorted(told) == list(range(1, 10))
    assert int(next(batches)["n"][0]) == 10, "the next time goes on behind them"


def test_one_thread_keeps_the_order_and_applies_results_during_the_next_step() -> None:
    begun = [threading.Event() for _ in range(4)]
    brought: list[int] = []
    told: list[int] = []

    def step(number: int) -> float:
        begun[number].set()
        assert len(brought) >= number - 2, "no more than one step is missing"
        return 0.0

    def apply() -> None:
        number = len(brought) + 1
        assert number == 3 or begun[number + 1].wait(10), "the next step waits for this"
        brought.append(number)

    crew(1, step, apply).train(numbers(3), 3, lambda batch, _: told.append(int(batch["n"][0])))
    assert told == [1, 2, 3]
    assert brought == [1, 2, 3], "the last one too"


def test_only_one_thread_applies_results_and_only_one_reports() -> None:
    inside = {"in": 0, "told": 0}
    brought = []

    def enter(name: str) -> None:
        inside[name] += 1
        assert inside[name] == 1, f"two were at {name}"
        time.sleep(0.001)
        inside[name] -= 1

    def apply() -> None:
        enter("in")
        brought.append(1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        crew(4, lambda n: 0.0, apply).train(numbers(200), 200, lambda *_: enter("told"))
    finally:
        sys.setswitchinterval(before)
    assert 1 <= len(brought) <= 200 / 4


def test_two_threads_apply_results_once_per_two_batches() -> None:
    brought: list[int] = []

    def step(number: int) -> float:
        time.sleep(0.005)  # long beside `apply`: nobody finds another one at it
        return 0.0

    crew(2, step, lambda: brought.append(1)).train(numbers(20), 20, lambda *_: None)
    assert 1 <= len(brought) <= 10


def test_in_lockstep_all_batches_are_applied_before_the_next_start() -> None:
    events: list[str] = []

    def step(number: int) -> float:
        events.append("step")
        return 0.0

    told = lambda *_: events.append("told")  # noqa: E731
    crew(2, step, lambda: events.append("apply")).train_in_steps(numbers(5), 5, told)
    whole = ["step", "step", "apply", "told", "told"]
    assert events == [*whole, *whole, "step", "apply", "told"]


@pytest.mark.parametrize("threads", [1, 3])
def test_after_a_failure_no_batch_starts_and_the_failure_is_raised(threads: int) -> None:
    begun: list[int] = []

    def step(number: int) -> float:
        begun.append(number)
        if number == 5:
            raise ValueError("five")
        time.sleep(0.005)
        return 0.0

    with pytest.raises(ValueError, match="five"):
        crew(threads, step).train(numbers(100), 100, lambda *_: None)
    assert max(begun) < 5 + threads + 1
