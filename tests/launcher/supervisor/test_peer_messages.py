"""Tests that states and orders arrive as they were sent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.paths import Position
from launcher.supervisor.peers.messages import PHASES, Failure, MemberState, Order

texts = st.text(max_size=8)
places = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
failures = st.builds(
    Failure,
    texts,
    st.integers(0, 255),
    st.floats(0, 1e6),
    st.integers(-1, 9),
    texts,
    st.none() | st.integers(-64, 255),
    places,
)
states = st.builds(
    MemberState,
    st.integers(0, 999),
    texts,
    st.sampled_from(PHASES),
    st.integers(-1, 99),
    st.none() | failures,
    texts,
    texts,
    texts,
    st.none() | st.dictionaries(texts, texts),
    st.dictionaries(texts, st.integers()),
)


@given(states)
def test_a_state_arrives_as_it_was_sent_and_a_failure_keeps_its_age(state: MemberState) -> None:
    arrived = MemberState.from_json(json.loads(json.dumps(state.to_json(2e6))), 3e6)
    if state.failure is not None:
        assert arrived.failure is not None
        assert arrived.failure.at == pytest.approx(state.failure.at + 1e6)
        arrived = replace(arrived, failure=replace(arrived.failure, at=state.failure.at))
    assert arrived == state


@given(
    st.builds(
        Order,
        st.integers(0, 99),
        st.sampled_from(["wait", "serve", "end"]),
        st.lists(texts).map(tuple),
        st.none() | st.builds(Position, st.integers(0, 9), st.integers(0, 9)),
        st.none() | texts,
        st.integers(0, 255),
    )
)
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"rank": 1},
        {"rank": "1", "incarnation": "x"},
        {"rank": 1, "incarnation": "x", "phase": "dancing"},
        {"rank": 1, "incarnation": "x", "attempt": None},
        {"rank": 1, "incarnation": "x", "progress": []},
        {"rank": 1, "incarnation": "x", "failure": {}},
        {"rank": 1, "incarnation": "x", "more": 1},
    ],
)
def test_an_invalid_state_is_rejected(garbage: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        MemberState.from_json(garbage, 1.0)
