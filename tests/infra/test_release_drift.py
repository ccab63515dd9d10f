"""Manual changes of the release: how they are found, and what the next `up` does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import release_drift, training
from infra.chart_values import CHART
from infra.naming import folder_digest
from infra.stack_state import READ_STATE
from infra.training import DATA_LOSS_NOTE

from .recording_mocks import ROOT, local_stack

OURS = f"chart {folder_digest(ROOT / CHART)}. {DATA_LOSS_NOTE}"
BY_HAND = f"{OURS} Reverts manual changes of revision 7: trainers."
URN = "urn:pulumi:dev::paddle-training::paddle:infra:Training$kubernetes:helm.sh/v3:Release::{}-release"


def _registered(before: str, **keys: Any) -> str:
    """Return the description that the release gets when the state has the description `before`."""
    state = {URN.format("paddle-training-dev"): {"outputs": {"description": before}}}
    made = local_stack(answers={READ_STATE: {"outputs": state}}, **keys)
    return str(made.one("Release").inputs["description"])


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that collects the program's warnings."""
    said: list[str] = []
    monkeypatch.setattr(training.pulumi.log, "warn", said.append)
    return said


def _in_the_cluster(monkeypatch: pytest.MonkeyPatch, description: str, **changes: Any) -> None:
    """Make revision 7 in the cluster have the stack's values with `changes`."""
    values = local_stack().one("Release").inputs["values"]
    live = release_drift.Revision(7, description, {**values, **changes})
    monkeypatch.setattr(release_drift, "newest_revision", lambda *where: live)


def test_manual_revision_is_reported_and_reverted(monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    _in_the_cluster(monkeypatch, "Upgrade complete", trainers=2)
    assert _registered(OURS) == BY_HAND
    [said] = warned
    assert "revision 7" in said
    assert "\n  trainers: 2 in the cluster, 3 in the stack" in said


@pytest.mark.parametrize("before", [OURS, BY_HAND])
@pytest.mark.parametrize("case", ["last update's", "same values", "kept", "no release"])
def test_description_without_manual_changes_stays(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], before: str, case: str
) -> None:
    # The revision of the last update differs from settings that were changed since then.
    trainers = 3 if case == "same values" else 2
    _in_the_cluster(monkeypatch, before if case == "last update's" else "by hand", trainers=trainers)
    if case == "no release":
        monkeypatch.setattr(release_drift, "newest_revision", lambda *where: None)
    assert (
        _registered(before, **({"release": {"keepManualValues": True}} if case == "kept" else {})) == before
    )
    assert warned == []


def test_description_changes_with_chart_after_manual_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    older = BY_HAND.replace("chart ", "chart 0")
    _in_the_cluster(monkeypatch, older)
    assert _registered(older) == OURS


def test_unreadable_release_warns_and_changes_nothing(tmp_path: Path, warned: list[str]) -> None:
    assert _registered(BY_HAND) == BY_HAND
    [said] = warned
    assert "could not be compared with the cluster: " in said
    assert "No such file" in said
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], '
        '"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], '
        '"users": [{"name": "u", "user": {"token": "t"}}]}'
    )
    for given in (str(kubeconfig), kubeconfig.read_text()):
        with pytest.raises(release_drift.UnreadableError, match="refused"):
            release_drift.newest_revision(given, "c", "paddle", "paddle-training")
        with pytest.raises(release_drift.UnreadableError, match="context"):
            release_drift.newest_revision(given, "d", "paddle", "paddle-training")


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
def test_differences_lists_changed_added_and_removed_keys(live: Any, stack: Any, lines: list[str]) -> None:
    assert list(release_drift.differences(live, stack)) == lines
