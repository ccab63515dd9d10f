"""Upgrades between all pairs of scenarios: which Jobs and volumes are kept, and which are replaced."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from chart_tools import EXAMPLES, ONE_MACHINE, SCENARIOS, Manifest, render

CASES: dict[str, tuple[Path, ...]] = {path.stem: (path,) for path in SCENARIOS}
CASES |= {path.stem: (ONE_MACHINE, path) for path in EXAMPLES}
# Fields that are mutable in an existing Job.
FREE = {"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"}


def fixed(item: Manifest) -> Any:
    """Return the immutable part of an object in Kubernetes; None when all of it is mutable."""
    spec = item.get("spec", {})
    if item["kind"] == "Job":
        return {key: value for key, value in spec.items() if key not in FREE}
    if item["kind"] == "PersistentVolume":
        return {key: value for key, value in spec.items() if key in ("csi", "nfs", "hostPath", "claimRef")}
    if item["kind"] == "PersistentVolumeClaim":
        return spec
    return {"clusterIP": spec["clusterIP"]} if item["kind"] == "Service" else item.get("roleRef")


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[tuple[str, str], Manifest]]:
    """Return the objects of each scenario, by kind and name."""
    return {
        name: {(item["kind"], item["metadata"]["name"]): item for item in render(*files)}
        for name, files in CASES.items()
    }


def test_no_upgrade_changes_immutable_fields_or_renames_a_job_needlessly(objects: Any) -> None:
    for (before, old), (after, new) in itertools.permutations(objects.items(), 2):
        for key in old.keys() & new.keys():
            assert fixed(old[key]) == fixed(new[key]), f"{before} to {after}: {key} would be rejected"
        for one, other in itertools.product(old.keys() - new.keys(), new.keys() - old.keys()):
            if one[0] == other[0] == "Job":
                same = fixed(old[one]) == fixed(new[other])
                assert not same, f"{before} to {after}: {one} is renamed for nothing"


def test_scenarios_share_a_volume_or_a_job_exactly_when_its_content_is_equal(objects: Any) -> None:
    def sharing(kind: str) -> set[frozenset[str]]:
        names = {name for made in objects.values() for of, name in made if of == kind}
        return {frozenset(case for case, made in objects.items() if (kind, name) in made) for name in names}

    places: dict[str, set[str]] = {}
    for case, made in objects.items():
        for (kind, _), item in made.items():
            if kind == "PersistentVolume":
                source = {key: item["spec"].get(key) for key in ("csi", "nfs", "hostPath", "mountOptions")}
                places.setdefault(json.dumps(source), set()).add(case)
    assert sharing("PersistentVolume") == {frozenset(cases) for cases in places.values()}
    assert {cases for cases in sharing("Job") if len(cases) > 1} == {frozenset({"host-path", "host-ports"})}
