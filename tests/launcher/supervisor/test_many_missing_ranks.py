"""Tests of messages about missing ranks: of many ranks, and while DNS does not respond."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.runtimes import load_runtime
from launcher.supervisor.coordinator import coordinator
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.member_states import GangLimits, Member, describe_missing
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.fake_clock import FakeClock
from tests.launcher.supervisor.loopback_gang import train_settings

LIMITS = GangLimits(
    silence=10, life=20, rendezvous=60, join=120, serve=60, finish=60, restarts=3, batch_size=1
)


def test_a_message_about_many_missing_ranks_describes_the_first_ten() -> None:
    text = describe_missing([Member(rank) for rank in range(1000)], 0.0, 130.0, LIMITS)
    assert "1000 of 1000 ranks did not join" in text
    assert "rank 9 has not called rank 0; and 990 more ranks. Fix: " in text
    text = describe_missing([Member(rank) for rank in range(10)], 0.0, 130.0, LIMITS)
    assert "rank 9 has not called rank 0. Fix: " in text


def test_the_main_thread_waits_only_once_for_a_dns_that_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with six missing ranks it waited a minute, and the watchdog took it for stuck in the storage."""
    clock, asked = FakeClock(), []

    class SlowDns(PodNetwork):
        def resolve(self, name: str) -> list[str]:
            asked.append(name)
            clock.pause(10)
            return []

    monkeypatch.setattr(coordinator, "time", SimpleNamespace(**vars(time) | {"monotonic": clock}))
    clock.pause(100)
    rank_0 = Coordinator(
        train_settings(tmp_path),
        load_runtime("fleet"),
        SlowDns(),
        Timings(),
        address="127.0.0.1",
        pause=clock.pause,
        wake=lambda: None,
    )
    texts = [rank_0._describe_absence(rank) for rank in range(1, 10)]
    assert clock.now < 120
    assert len(asked) == 1
    assert "rank 1: quick-start-0a1b2c3d-1.paddle-training does not resolve" in texts[0]
    assert "rank 9: DNS responds too slowly to find out whether" in texts[-1]
    clock.pause(30)
    rank_0._describe_absence(1)
    assert len(asked) == 2
