"""Explanations of why pods wait and why they failed (object_states.yaml), and the states of claims."""

from pathlib import Path

import pytest
import yaml

from launcher.cli import object_states

from .conftest import make_pod, matches

CASES = yaml.safe_load(Path(__file__).with_name("object_states.yaml").read_text())
SCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "True"}]}


@pytest.mark.parametrize("case", CASES["pending"].values(), ids=CASES["pending"])
def test_explanation_of_a_pending_pod(case):
    pod = make_pod("p", phase="Pending", **{**SCHEDULED, **case["status"]})
    explanation = object_states.explain_pending(pod, case.get("events", ()))
    assert matches(explanation, case["expected"]), explanation


@pytest.mark.parametrize(
    ("case", "code"),
    [
        pytest.param(case, code, id=f"{name} {code}")
        for name, case in CASES["failed"].items()
        for code in case["codes"]
    ],
)
def test_explanation_of_a_failed_pod(case, code):
    end = {"exitCode": code, **{key: case[key] for key in ("message", "reason") if key in case}}
    ended = [{"name": "train", "state": {"terminated": end}}]
    pod = make_pod("p", phase="Failed", containerStatuses=ended, **case.get("status", {}))
    explanation = object_states.explain_failure(pod)
    assert matches(explanation, case["expected"]), explanation


def test_an_unbound_claim_is_explained_by_its_newest_event():
    claim = {"status": {"phase": "Pending"}, "spec": {"volumeName": "paddle-pv"}}
    events = [{"reason": "FailedBinding", "message": "volume paddle-pv is bound to another claim"}]
    explanation = object_states.explain_claim(claim, "paddle", events)
    assert "Pending, not Bound (it requests paddle-pv)" in explanation
    assert "bound to another claim" in explanation
    assert object_states.explain_claim({"status": {"phase": "Bound"}}, "paddle") == ""
    assert object_states.explain_claim(None, "paddle") == "the claim paddle does not exist"
