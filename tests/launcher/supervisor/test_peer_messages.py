"""Tests that states and plans arrive as they were sent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ProcessError
from launcher.paths import Position
from launcher.schema import RestartRecord, TrainerProgress, from_json
from launcher.supervisor.peers.messages import Action, Failure, MemberState, Phase, Plan
from launcher.supervisor.peers.peer_server import STATE_MAX_BYTES

texts = st.text(max_size=8)
positions = st.builds(Position, st.integers(0, 99), st.integers(0, 99))
failures = st.builds(
    Failure,
    texts,
    st.integers(0, 255),
    st.floats(0, 1e6),
    st.integers(-1, 9),
    texts,
    st.none() | st.integers(-64, 255),
    st.none() | positions,
)
states = st.builds(
    MemberState,
    st.integers(0, 999),
    texts,
    st.sampled_from(Phase),
    st.integers(-1, 99),
    st.none() | failures,
    fingerprint=st.none() | st.dictionaries(texts, texts),
    progress=st.builds(TrainerProgress, st.none() | st.integers(), saved=st.none() | positions),
    hang=st.none() | failures,
    ended=st.lists(texts).map(tuple),
)


@settings(max_examples=30)
@given(states)
def test_a_state_arrives_as_it_was_sent_and_its_failures_keep_their_age(state: MemberState) -> None:
    arrived = MemberState.from_json(json.loads(json.dumps(state.to_json(2e6))), 3e6)
    for before, after in ((state.failure, arrived.failure), (state.hang, arrived.hang)):
        assert (after and after.at) == (before and pytest.approx(before.at + 1e6))
    times = {
        name: each and replace(each, at=0.0) for name in ("failure", "hang") if (each := getattr(state, name))
    }
    assert replace(arrived, **{name: replace(getattr(arrived, name), at=0.0) for name in times}) == replace(
        state, **times
    )


@settings(max_examples=30)
@given(
    st.builds(
        Plan,
        attempt=st.integers(0, 99),
        do=st.sampled_from(Action),
        addresses=st.lists(texts).map(tuple),
        resume=st.none() | positions,
        cause=st.none() | failures,
        replaced=st.lists(texts).map(tuple),
    )
)
def test_a_plan_arrives_as_it_was_sent_without_what_only_rank_0_needs(plan: Plan) -> None:
    assert from_json(Plan, json.loads(json.dumps(plan.to_json()))) == plan
    more = replace(
        plan, since=9.0, restarts=(RestartRecord(1, "x"),), counted_restarts=1, incarnations=("a",)
    )
    assert from_json(Plan, json.loads(json.dumps(more.to_json()))) == plan


@pytest.mark.parametrize(
    "garbage",
    [
        [],
        {},
        {"rank": "1", "incarnation": "x"},
        {"rank": 1, "incarnation": "x", "phase": "dancing"},
        {"rank": 1, "incarnation": "x", "attempt": None},
        {"rank": 1, "incarnation": "x", "progress": []},
        {"rank": 1, "incarnation": "x", "failure": {}},
    ],
)
def test_an_invalid_state_is_rejected(garbage: Any) -> None:
    with pytest.raises(ValueError, match=r"rank|dancing|attempt|progress|failure|is \[\]"):
        MemberState.from_json(garbage, 1.0)


def test_the_text_of_a_failure_fits_into_a_state() -> None:
    """A program may quote a row of any length in its error."""
    failure = Failure.from_error(ProcessError(f"the parser failed: {'é' * 10**6} at the end"), 0.0, 1)
    body = json.dumps({"state": MemberState(1, "a", failure=failure).to_json(0.0), "seen": 0})
    assert len(body) < STATE_MAX_BYTES
    assert failure.text.startswith("the parser failed")
    assert failure.text.endswith("at the end")
