"""What a rank does with an order, by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.errors import StorageFailedError
from launcher.gang.follower import Follower
from launcher.gang.messages import Failure, Order
from tests.launcher.core.test_machine import NOW


class Children:
    """Notes what it is told."""

    def __init__(self, order: Order) -> None:
        self.attempt, self.phase, self.failure = order.attempt, "serving", None
        self.running, self.told = True, ""

    def poll(self, now: float) -> None:
        """Nothing happens by itself."""

    def train(self) -> None:
        self.told = "train"

    def finish(self, now: float) -> None:
        self.told = "finish"

    def stop(self, now: float) -> None:
        self.told = "stop"


SERVE = Order(3, "serve", ("10.0.0.0", "10.0.0.1"))


def follower(start: Any = Children) -> Follower:
    made = Follower(start, 1, 10)
    made.staged, made.address = True, "10.0.0.1"
    return made


def serving() -> tuple[Follower, Any]:
    made = follower()
    made.step(SERVE, NOW, NOW)
    return made, made.crew


def test_a_rank_starts_once_an_attempt_and_says_so() -> None:
    made, crew = serving()
    assert made.told == ("serving", 3, None)
    crew.running = False
    made.step(Order(3, "stop"), NOW, NOW)
    made.step(SERVE, NOW, NOW)
    assert made.crew is crew
    made.step(replace(SERVE, attempt=4), NOW, NOW)
    assert made.crew is not crew


def test_others_hear_of_the_start_before_the_first_child() -> None:
    heard = []

    def start(order: Order) -> Children:
        heard.append(made.told)
        return Children(order)

    made = follower(start)
    made.step(SERVE, NOW, NOW)
    assert heard == [("serving", 3, None)]


@pytest.mark.parametrize("do", ["train", "finish"])
def test_a_rank_does_what_it_is_told(do: Any) -> None:
    made, crew = serving()
    made.step(replace(SERVE, do=do), NOW, NOW)
    assert crew.told == do


@pytest.mark.parametrize(
    ("order", "heard"),
    [
        (Order(3, "stop"), NOW),
        (Order(4, "wait"), NOW),
        (replace(SERVE, do="train", attempt=4), NOW),
        (SERVE, NOW - 10),
    ],
)
def test_a_rank_without_a_fresh_order_for_its_attempt_ends_its_children(order: Order, heard: float) -> None:
    made, crew = serving()
    made.step(order, heard, NOW)
    assert (crew.told, made.told[0]) == ("stop", "serving")
    crew.running = False
    made.step(order, heard, NOW)
    assert made.told[:2] == ("idle", 3)


@pytest.mark.parametrize(
    ("order", "heard"),
    [
        (SERVE, NOW - 10),
        (replace(SERVE, do="train"), NOW),
        (replace(SERVE, addresses=("10.0.0.0", "10.9.9.9")), NOW),
    ],
)
def test_a_rank_starts_nothing_by_an_old_order_or_anothers(order: Order, heard: float) -> None:
    made = follower()
    made.step(order, heard, NOW)
    assert made.crew is None


def test_a_rank_that_is_told_to_stop_never_starts_that_attempt() -> None:
    made = follower()
    made.step(Order(3, "stop"), NOW, NOW)
    assert made.told == ("idle", 3, None)
    made.step(SERVE, NOW, NOW)
    assert made.crew is None


def test_a_start_that_fails_is_the_attempts_failure() -> None:
    def start(order: Order) -> Children:
        raise StorageFailedError("EIO")

    made = follower(start)
    made.step(SERVE, NOW, NOW)
    assert made.told == ("idle", 3, Failure("EIO", 71, NOW, 1))
