"""Tests of when a launcher obeys a stop signal."""

from __future__ import annotations

import signal

import pytest

from launcher.errors import StoppedError
from launcher.supervisor.agent import SPARE_SECONDS, StopRequest
from launcher.supervisor.peers.messages import Failure, Phase, Plan
from tests.launcher.supervisor.gang_members import make_plan

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
