"""Tests of status.json and of the metrics page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.schema import RestartRecord, to_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.coordinator.status import build_status, render_metrics
from launcher.supervisor.peers.messages import MemberState
from tests.launcher.supervisor.loopback_gang import pod_environ, train_settings
from tests.launcher.supervisor.test_decisions import NOW, plan, rank


def build_status_json(*members: Member, do: str = "train") -> dict[str, Any]:
    """Return status.json of a run in the given action, with these members."""
    settings = TrainSettings.from_environ(pod_environ(PADDLE_LAUNCHER_TRAINERS="2"))
    return to_json(build_status(settings, members, plan(do), now=NOW, silence=10, wall=NOW))  # type: ignore[no-any-return]


def build_member(number: int, state: str, storage: float = 0.0) -> Member:
    """Return a member in `state` whose storage has not answered for `storage` seconds."""
    member = rank(number, "training", 3)
    assert member.state is not None
    return replace(member, state=replace(member.state, progress={"state": state}, storage=storage))


@pytest.mark.parametrize("state", ["starting", "joining", "loading"])
def test_a_run_is_starting_until_every_trainer_had_its_first_batch(state: str) -> None:
    found = build_status_json(build_member(0, "training"), build_member(1, state))
    assert found["state"] == "starting"
    assert found["waitingFor"] == f"rank 1 (pod pod-1 on node node-a) ({state}) to start training"
    found = build_status_json(build_member(0, "training"), build_member(1, "saving"))
    assert (found["state"], found["waitingFor"]) == ("training", None)


def test_waiting_for_contains_the_rank_whose_storage_does_not_answer() -> None:
    found = build_status_json(build_member(0, "saving"), build_member(1, "saving", storage=45.2))
    assert found["waitingFor"] == (
        "the storage to answer rank 1 (pod pod-1 on node node-a): no answer for 45 s"
    )
    assert [each["storageSeconds"] for each in found["ranks"]] == [0.0, 45.2]


def build_members(phase: str, *progress: dict[str, Any]) -> list[Member]:
    """Return one member for each progress, all in `phase` of attempt 1."""
    return [
        Member(number, MemberState(number, f"pod{number}", phase, 1, progress=value), heard=100.0)
        for number, value in enumerate(progress)
    ]


def test_status_has_the_total_speed_the_slowest_position_and_the_longest_eta(tmp_path: Path) -> None:
    settings = train_settings(tmp_path, PADDLE_LAUNCHER_PASSES="4", PADDLE_LAUNCHER_BATCH_SIZE="10")
    members = build_members(
        "training",
        {"pass": 2, "batch": 5, "batches": 10, "samples_per_second": 100.0, "loss": 1.0, "state": "saving"},
        {"pass": 1, "batch": 9, "batches": 10, "samples_per_second": 50.0, "loss": 3.0},
        {"pass": None, "loss": float("nan"), "samples_per_second": "fast"},
    )
    plan = AttemptPlan(1, "train", restarts=(RestartRecord(0, "a death", 4990.0, [0, "trainer", 1, 1, 2]),))
    status = build_status(settings, members, plan, now=100.0, silence=10, wall=5000.0)
    value = to_json(status)
    assert (value["pass"], value["batch"], value["samplesPerSecond"], value["loss"]) == (1, 9, 150.0, 2.0)
    assert value["etaSeconds"] == pytest.approx((3 * 10 - 9) * 10 / 50.0)
    assert value["ranks"][2]["loss"] is None
    assert [rank["state"] for rank in value["ranks"]] == ["saving", "training", "training"]
    assert value["restarts"] == [{"attempt": 0, "cause": "a death", "at": 4990.0}]
    assert (value["state"], value["attempt"], value["waitingFor"]) == ("training", 1, None)
    json.dumps(value, allow_nan=False)
    page = render_metrics(status, 1.5).decode()
    assert 'paddle_training_restarts_total{cause="a death"} 1.0' in page
    assert "paddle_training_rendezvous_seconds 1.5" in page
    assert "paddle_training_pass 1.0" in page


def test_status_has_what_a_run_waits_for_and_no_progress_of_an_earlier_attempt(tmp_path: Path) -> None:
    settings = train_settings(tmp_path)
    stale = build_members("idle", {"pass": 3, "batch": 1}, {"pass": 3, "batch": 1})
    value = build_status(
        settings, [*stale, Member(2)], AttemptPlan(2, "wait"), now=100.0, silence=10, wall=0.0
    )
    assert value.state == "rendezvous"
    assert value.waiting_for == "rank 2 to join"
    assert value.number is None
    assert (value.waiting_since, value.join_seconds) == (-100.0, 900 + 6 * 3600)
    lost = [replace(stale[0], heard=90.0), stale[1]]
    value = build_status(settings, lost, AttemptPlan(2, "wait", 95.0), now=100.0, silence=10, wall=0.0)
    assert (value.waiting_for, value.waiting_since) == ("rank 0 to join", -5.0), "it was lost during the wait"
    value = build_status(settings, stale, AttemptPlan(2, "wait", 95.0), now=100.0, silence=10, wall=0.0)
    assert value.waiting_since is None
    value = build_status(
        settings, build_members("training", {}), AttemptPlan(1, "stop"), now=100.0, silence=10, wall=0.0
    )
    assert (value.state, value.waiting_for) == ("restarting", "rank 0 to stop its processes")
    value = build_status(
        settings, build_members("serving", {}), AttemptPlan(1, "serve"), now=100.0, silence=10, wall=0.0
    )
    assert value.waiting_for == "the pservers of rank 0 to accept connections"


def test_a_script_reports_its_own_batch_size_and_passes(tmp_path: Path) -> None:
    progress = {"pass": 1, "batch": 10, "batches": 20, "samples_per_second": 8.0, "state": "training"}
    settings = train_settings(tmp_path, PADDLE_LAUNCHER_TRAINERS="2", PADDLE_LAUNCHER_PASSES="10")
    members = build_members("training", {**progress, "batch_size": 4, "passes": 3}, {})
    present = replace(plan("train"), attempt=1)
    found = build_status(settings, members, present, now=NOW, silence=10, wall=NOW)
    assert (found.passes, found.number, found.batch) == (3, 1, 10)
    assert found.eta == (20 + 10) * 4 / 8
