"""Manual changes of the release: how they are found, and what the next `up` does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import training
from infra.chart_values import CHART
from infra.naming import folder_digest
from infra.training import DATA_LOSS_NOTE

from .recording_mocks import ROOT, local_stack

OURS = f"chart {folder_digest(ROOT / CHART)}. {DATA_LOSS_NOTE}"
BY_HAND = f"{OURS} Reverts manual changes of revision 7: trainers."
READ = training.read_revisions


def _registered(**keys: Any) -> str:
    """Return the description that the program gives the release."""
    return str(local_stack(**keys).one("Release").inputs["description"])


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that collects the program's warnings."""
    said: list[str] = []
    monkeypatch.setattr(training.pulumi.log, "warn", said.append)
    return said


def _in_the_cluster(monkeypatch: pytest.MonkeyPatch, *descriptions: str, **changes: Any) -> None:
    """Make the release have revisions 7, 6, … with these descriptions; 7 has the stack's values with `changes`."""
    values = local_stack().one("Release").inputs["values"]
    revisions = [
        training.Revision(7 - index, description, {**values, **({} if index else changes)})
        for index, description in enumerate(descriptions)
    ]
    monkeypatch.setattr(training, "read_revisions", lambda *where: revisions)


@pytest.mark.parametrize("earlier", [[OURS], ["Upgrade complete", OURS], []])
def test_manual_revision_is_reported_and_reverted(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], earlier: list[str]
) -> None:
    """Also when helm no longer keeps the revision of the last `up`."""
    _in_the_cluster(monkeypatch, "Upgrade complete", *earlier, trainers=2)
    assert _registered() == BY_HAND
    [said] = warned
    assert "revision 7" in said
    assert "\n  trainers: 2 in the cluster, 3 in the stack" in said


@pytest.mark.parametrize("before", [OURS, BY_HAND])
@pytest.mark.parametrize("case", ["last update's", "same values", "kept"])
def test_description_without_manual_changes_stays(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], before: str, case: str
) -> None:
    # The revision of the last update differs from settings that were changed since then.
    trainers = 3 if case == "same values" else 2
    newest = [] if case == "last update's" else ["by hand"]
    _in_the_cluster(monkeypatch, *newest, before, "by hand", OURS, trainers=trainers)
    assert _registered(**({"release": {"keepManualValues": True}} if case == "kept" else {})) == before
    assert warned == []


def test_description_changes_with_chart_after_manual_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_the_cluster(monkeypatch, BY_HAND.replace("chart ", "chart 0"))
    assert _registered() == OURS


def test_unreadable_release_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    monkeypatch.setattr(training, "read_revisions", READ)
    assert _registered() == OURS
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
        with pytest.raises(training.UnreadableError, match="refused"):
            READ(given, "c", "paddle", "paddle-training")
        with pytest.raises(training.UnreadableError, match="context"):
            READ(given, "d", "paddle", "paddle-training")


@pytest.mark.parametrize(
    ("live", "stack", "lines"),
    [
        ({"a": {"b": 1, "c": []}}, {"a": {"b": 1, "c": None}}, []),
        ({"a": {"b": False}}, {"a": {"b": True}}, ["a.b: false in the cluster, true in the stack"]),
        ({}, {"a": ["x"]}, ['a: not set in the cluster, ["x"] in the stack']),
        ({"a": {"b": "y"}}, {"a": {}}, ['a.b: "y" in the cluster, not set in the stack']),
        (
            {"a": "b"},
            {"a": {"b": 1}},
            ['a: "b" in the cluster, not set in the stack', "a.b: not set in the cluster, 1 in the stack"],
        ),
    ],
)
def test_differences_lists_changed_added_and_removed_keys(live: Any, stack: Any, lines: list[str]) -> None:
    assert list(training.differences(live, stack)) == lines
