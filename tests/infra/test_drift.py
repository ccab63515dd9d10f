"""What differs between the release in the cluster and the stack, and what an update makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import drift, training
from infra.chart_values import CHART
from infra.naming import folder_digest
from infra.state import READ_STATE
from infra.training import LOST

from .support import ROOT, local_stack

OURS = f"chart {folder_digest(ROOT / CHART)}. {LOST}"
BY_HAND = f"{OURS} Puts back what revision 7 changed by hand: trainers."
URN = "urn:pulumi:dev::paddle-training::paddle:infra:Training$kubernetes:helm.sh/v3:Release::{}-release"


def _registered(before: str, **keys: Any) -> str:
    """The description that the release gets when the state has `before`."""
    state = {URN.format("paddle-training-dev"): {"outputs": {"description": before}}}
    made = local_stack(answers={READ_STATE: {"outputs": state}}, **keys)
    return str(made.one("Release").inputs["description"])


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings that the program gives."""
    said: list[str] = []
    monkeypatch.setattr(training.pulumi.log, "warn", said.append)
    return said


def _in_the_cluster(monkeypatch: pytest.MonkeyPatch, description: str, **changes: Any) -> None:
    """The stack's values with changes, as the release's revision 7."""
    values = local_stack().one("Release").inputs["values"]
    live = drift.Revision(7, description, {**values, **changes})
    monkeypatch.setattr(drift, "newest_revision", lambda *where: live)


def test_a_hand_made_revision_is_told_key_by_key_and_put_back(
    monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    _in_the_cluster(monkeypatch, "Upgrade complete", trainers=2)
    assert _registered(OURS) == BY_HAND
    [said] = warned
    assert "revision 7" in said
    assert "\n  trainers: 2 in the cluster, 3 in the stack" in said


@pytest.mark.parametrize("before", [OURS, BY_HAND])
@pytest.mark.parametrize("case", ["last update's", "same values", "kept", "no release"])
def test_otherwise_the_description_stays_and_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], before: str, case: str
) -> None:
    # A revision of the last update may differ from the stack's settings, which were changed since.
    trainers = 3 if case == "same values" else 2
    _in_the_cluster(monkeypatch, before if case == "last update's" else "by hand", trainers=trainers)
    if case == "no release":
        monkeypatch.setattr(drift, "newest_revision", lambda *where: None)
    assert (
        _registered(before, **({"release": {"keepManualValues": True}} if case == "kept" else {})) == before
    )
    assert warned == []


def test_an_edit_of_the_chart_shows_after_a_hand_made_revision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    older = BY_HAND.replace("chart ", "chart 0")
    _in_the_cluster(monkeypatch, older)
    assert _registered(older) == OURS


def test_a_release_that_cannot_be_read_is_told_and_changes_nothing(tmp_path: Path, warned: list[str]) -> None:
    assert _registered(BY_HAND) == BY_HAND
    [said] = warned
    assert "was not compared with the cluster: " in said
    assert "No such file" in said
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], '
        '"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], '
        '"users": [{"name": "u", "user": {"token": "t"}}]}'
    )
    for given in (str(kubeconfig), kubeconfig.read_text()):
        with pytest.raises(drift.UnreadableError, match="refused"):
            drift.newest_revision(given, "c", "paddle", "paddle-training")
        with pytest.raises(drift.UnreadableError, match="context"):
            drift.newest_revision(given, "d", "paddle", "paddle-training")


@pytest.mark.parametrize(
    ("live", "stack", "lines"),
    [
        ({"a": {"b": 1, "c": []}}, {"a": {"b": 1, "c": None}}, []),
        ({"a": {"b": False}}, {"a": {"b": True}}, ["a.b: false in the cluster, true in the stack"]),
        ({}, {"a": ["x"]}, ['a: not set in the cluster, ["x"] in the stack']),
        ({"a": {"b": "y"}}, {"a": {}}, ['a.b: "y" in the cluster, not set in the stack']),
        ({"a": "b"}, {"a": {"b": 1}}, ['a: "b" in the cluster, {"b": 1} in the stack']),
    ],
)
def test_differences_are_found_where_something_was_changed_added_or_removed(
    live: Any, stack: Any, lines: list[str]
) -> None:
    assert list(drift.differences(live, stack)) == lines
