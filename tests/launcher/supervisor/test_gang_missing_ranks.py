"""Tests of gangs on loopback whose lost rank comes back late or not at all, as on spot machines."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.reporting.test_notifications import Hook
from tests.launcher.supervisor.loopback_gang import LoopbackGang

pytestmark = pytest.mark.slow


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


def build_gang(root: Path, hook: Hook, hours: float) -> LoopbackGang:
    """Return a gang of two ranks that waits `hours` for a rank after the usual rendezvous time of one second."""
    return LoopbackGang(
        root,
        trainers=2,
        passes=8,
        FAKE_PASS_SECONDS="0.4",
        rendezvous_seconds=1,
        rank_wait_hours=hours,
        PADDLE_LAUNCHER_WEBHOOK=hook.url,
    )


def lose(gang: LoopbackGang, rank: int) -> None:
    """In the third pass, send SIGTERM to the launcher of a rank, as a reclaimed node does, and wait for its exit."""
    gang.wait_until(lambda: "Pass=2\n" in gang.read_log(0))
    gang.processes[rank].send_signal(signal.SIGTERM)
    assert gang.processes[rank].wait(60) == 143, gang.pod_log(rank)


def received_events(hook: Hook) -> list[str]:
    """Return the events of the webhook's messages; a message that was sent again counts once."""
    return [str(message["event"]) for message in {each["id"]: each for each in hook.accepted}.values()]


def test_training_continues_when_a_missing_rank_comes_back_and_users_are_notified_once(
    tmp_path: Path, hook: Hook
) -> None:
    with build_gang(tmp_path, hook, hours=0.2) as gang:
        lose(gang.start(), 1)
        gang.wait_until(lambda: "waiting" in received_events(hook))
        assert not gang.is_running(0, "train"), "the waiting rank runs no process"
        assert not gang.is_running(0, "pserver")
        status = gang.read_json("status.json")
        assert (status["state"], status["waitingFor"]) == (
            "rendezvous",
            f"rank 1 (pod {gang.run}-1-x on node node-1) to join",
        )
        assert status["joinSeconds"] == 721
        assert 1 <= time.time() - status["waitingSince"] < 721
        gang.start(1)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(0)
        assert gang.read_json("status.json")["waitingSince"] is None
        events = received_events(hook)
        assert events == ["started", "restarted", "waiting", "joined", "completed"]
        cause = str(next(each["cause"] for each in hook.accepted if each["event"] == "waiting"))
        assert "1 of 2 ranks did not join within 1 s (rendezvousSeconds): rank 1: " in cause
        assert "waits for them for up to 0.2 h more (training.rankWaitHours). Fix: run `python -m" in cause


def test_rank_1_waits_for_a_missing_rank_0_and_notifies_users(tmp_path: Path, hook: Hook) -> None:
    with build_gang(tmp_path, hook, hours=0.2) as gang:
        gang.start().wait_until(lambda: "Pass=1\n" in gang.read_log(0))
        # A slow machine may need more than the second of the first rendezvous; then rank 0 notified users of that.
        hook.accepted.clear()
        lose(gang, 0)
        gang.wait_until(lambda: "waiting" in received_events(hook))
        cause = str(next(each["cause"] for each in hook.accepted if each["event"] == "waiting"))
        assert "rank 0 has been unreachable for " in cause
        assert "(training.rankWaitHours). Fix: run `python -m launcher status`" in cause
        gang.start(0)
        assert gang.wait_for_exit() == [0, 0], gang.pod_log(1)
        assert received_events(hook).count("waiting") == 1
        assert received_events(hook).count("joined") == 1
