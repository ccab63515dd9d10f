"""Tests of the clock that measures a process' own time per step."""

from __future__ import annotations

import threading
import time

import pytest

from launcher.io import step_clock
from launcher.io.step_clock import StepClock, processor_seconds


def test_waits_do_not_count_and_each_mean_is_of_the_newest_steps() -> None:
    now = 0.0
    clock = StepClock(lambda: now, lambda: now)

    def train(steps: int, own: float, wait: float) -> None:
        nonlocal now
        for _ in range(steps):
            now += own
            if wait:
                with clock.paused():
                    now += wait
            clock.add_step()

    clock.resume()
    train(step_clock.LEAST_STEPS - 1, own=1.0, wait=1.0)
    assert clock.step_seconds is None, "not enough steps"
    train(1, own=1.0, wait=1.0)
    assert clock.step_seconds == pytest.approx(1.0)
    train(step_clock.LEAST_STEPS, own=0.1, wait=0.2)
    assert clock.step_seconds == pytest.approx(1.0), "not enough seconds"
    train(20, own=0.1, wait=0.2)
    assert clock.step_seconds == pytest.approx(0.1), "no longer the slow steps before"
    clock.pause()
    now += 100.0
    clock.resume()
    train(100, own=0.2, wait=0.0)
    assert clock.step_seconds == pytest.approx(0.2), "without the pause"


def test_processor_seconds_are_those_of_all_threads_and_not_of_a_wait() -> None:
    def work() -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass

    ended, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (work(), ended.set(), leave.wait()))
    before = processor_seconds()
    thread.start()
    work()
    assert ended.wait(60)
    worked = processor_seconds()
    assert worked - before >= 0.19
    leave.set()
    thread.join()
    before, start = processor_seconds(), time.monotonic()
    time.sleep(0.5)
    # On a busy machine the thread waits for a processor after its sleep.
    assert processor_seconds() - before < time.monotonic() - start - 0.4
