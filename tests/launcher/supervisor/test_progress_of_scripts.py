"""Tests of a progress.json that a user's own program wrote, with any content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.errors import ProcessError
from launcher.io.files import write_json
from launcher.schema import to_json
from launcher.settings import TrainSettings
from launcher.supervisor.coordinator.decisions import AttemptPlan
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.coordinator.status import build_status
from launcher.supervisor.peers.messages import Failure, MemberState
from launcher.supervisor.peers.peer_server import STATE_MAX_BYTES
from launcher.supervisor.progress import MAX_BYTES, finite_number, read_progress, whole_number
from tests.launcher.supervisor.loopback_gang import pod_environ


def test_an_integer_that_no_float_can_hold_is_no_number() -> None:
    assert finite_number(10**400) is whole_number(-(10**400)) is None


@pytest.mark.parametrize(
    "text",
    [json.dumps({"batch": 1, "note": "x" * MAX_BYTES}), '{"batch": ' + "[" * 5_000],
    ids=["long", "deep"],
)
def test_a_file_that_is_too_long_or_too_deep_is_left_out(tmp_path: Path, text: str) -> None:
    """A rank whose state is too long for rank 0 would count as lost."""
    settings = TrainSettings.from_environ(pod_environ(PADDLE_LAUNCHER_WORK_DIR=str(tmp_path)))
    (tmp_path / "progress.json").write_text('{"batch": 1}')
    assert read_progress(settings) == {"batch": 1}
    (tmp_path / "progress.json").write_text(text)
    assert read_progress(settings) == {}


def test_the_status_has_no_infinite_number(tmp_path: Path) -> None:
    progress = {"pass": 0, "batch": 1, "batches": 10, "state": "training", "loss": 1.7e308}
    members = [
        Member(
            rank, MemberState(rank, "pod", "training", 0, progress={**progress, "samples_per_second": speed})
        )
        for rank, speed in enumerate((1.7e308, 1.7e308, 5e-324))
    ]
    settings = TrainSettings.from_environ(pod_environ())
    status = build_status(settings, members, AttemptPlan(0, "train"), now=1.0, silence=10, wall=1.0)
    write_json(tmp_path / "status.json", to_json(status))
    assert (status.samples_per_second, status.loss, status.eta) == (None, None, None)


def test_the_text_of_a_failure_fits_into_a_state() -> None:
    """A program may quote a row of any length in its error."""
    failure = Failure.from_error(ProcessError(f"the parser failed: {'é' * 10**6} at the end"), 0.0, 1)
    body = json.dumps({"state": MemberState(1, "a", failure=failure).to_json(0.0), "seen": 0})
    assert len(body) < STATE_MAX_BYTES
    assert failure.text.startswith("the parser failed")
    assert failure.text.endswith("at the end")
