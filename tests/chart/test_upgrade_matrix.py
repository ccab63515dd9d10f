"""From each scenario to each other one: which Jobs and volumes an upgrade keeps, and which it makes anew."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from chart_tools import EXAMPLES, ONE_MACHINE, SCENARIOS, Manifest, render

CASES: dict[str, tuple[Path, ...]] = {path.stem: (path,) for path in SCENARIOS}
CASES |= {path.stem: (ONE_MACHINE, path) for path in EXAMPLES}
# What Kubernetes lets be changed in a Job that exists.
FREE = {"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"}


def fixed(item: Manifest) -> Any:
    """What of an object cannot be changed, as Kubernetes has it; None for what can be changed whole."""
    spec = item.get("spec", {})
    if item["kind"] == "Job":
        return {key: value for key, value in spec.items() if key not in FREE}
    if item["kind"] == "PersistentVolume":
        return {key: value for key, value in spec.items() if key in ("csi", "nfs", "hostPath", "claimRef")}
    if item["kind"] == "PersistentVolumeClaim":
        return spec
    return {"clusterIP": spec["clusterIP"]} if item["kind"] == "Service" else item.get("roleRef")


def objects(name: str) -> dict[tuple[str, str], Manifest]:
    return {(item["kind"], item["metadata"]["name"]): item for item in render(*CASES[name])}


@pytest.mark.parametrize("before", CASES)
def test_an_upgrade_changes_nothing_that_cannot_be_changed_and_renames_nothing_without_need(
    before: str,
) -> None:
    old = objects(before)
    for after in CASES:
        new = objects(after)
        for key in old.keys() & new.keys():
            assert fixed(old[key]) == fixed(new[key]), f"{before} to {after}: {key} would be refused"
        for one, other in itertools.product(old.keys() - new.keys(), new.keys() - old.keys()):
            if one[0] == other[0] == "Job":
                assert fixed(old[one]) != fixed(new[other]), (
                    f"{before} to {after}: {one} is renamed for nothing"
                )


def test_which_scenarios_share_a_job_or_a_volume() -> None:
    """By hand: the one list that a change of the chart must be held against."""
    shared = {
        (kind, one, other)
        for one, other in itertools.combinations(sorted(CASES), 2)
        for kind, _ in objects(one).keys() & objects(other).keys()
        if kind in ("Job", "PersistentVolume")
    }
    print(sorted(shared))
    assert shared == set()
