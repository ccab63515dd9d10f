"""What status.json says a run waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.gang.machine import Member
from launcher.gang.status import status
from launcher.settings import TrainSettings
from tests.launcher.core.kit import environ
from tests.launcher.core.test_machine import NOW, plan, rank


def told(*members: Member, do: str = "train") -> dict[str, Any]:
    settings = TrainSettings.from_environ(environ(PADDLE_LAUNCHER_TRAINERS="2"))
    return status(settings, members, plan(do), now=NOW, wall=NOW)


def at(number: int, state: str, storage: float = 0.0) -> Member:
    member = rank(number, "training", 3)
    assert member.state is not None
    return replace(member, state=replace(member.state, progress={"state": state}, storage=storage))


@pytest.mark.parametrize("state", ["starting", "meeting", "loading"])
def test_a_run_trains_once_every_trainer_had_its_first_batch(state: str) -> None:
    found = told(at(0, "training"), at(1, state))
    assert found["state"] == "starting"
    assert found["waitingFor"] == f"rank 1 (pod pod-1 on node node-a) ({state}) to begin training"
    found = told(at(0, "training"), at(1, "saving"))
    assert (found["state"], found["waitingFor"]) == ("training", None)


def test_a_storage_that_does_not_answer_is_named_with_its_rank() -> None:
    found = told(at(0, "saving"), at(1, "saving", storage=45.2))
    assert found["waitingFor"] == (
        "the storage to answer rank 1 (pod pod-1 on node node-a): no answer for 45 s"
    )
    assert [each["storageSeconds"] for each in found["ranks"]] == [0.0, 45.2]
