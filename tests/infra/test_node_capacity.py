"""Kubernetes quantities, and whether the nodes hold all pods."""

from __future__ import annotations

from typing import Any

import pytest

from infra import node_capacity, settings_rules
from infra.node_capacity import parse_quantity
from infra.settings_loader import load_settings

from .recording_mocks import AWS, config

VALUES = {
    "trainers": 3,
    "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    "data": {"source": "s3://b/k"},
}
MACHINE = node_capacity.Size(2, 8 * node_capacity.GIB)


@pytest.mark.parametrize(
    ("text", "value"),
    [("250m", 0.25), ("1", 1.0), (2, 2.0), ("1.5Gi", 1.5 * 2**30), ("512Mi", 2**29), ("1G", 1e9)],
)
def test_parse_quantity_returns_base_units(text: object, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "1GiB", "-1", "1 Gi"])
def test_parse_quantity_invalid_raises(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("kind", "arm"),
    [
        ("m6i.large", False),
        ("m7g.large", True),
        ("t4g.medium", True),
        ("c7gn.large", True),
        ("g5.xlarge", False),
    ],
)
def test_is_arm_depends_on_family(kind: str, arm: bool) -> None:
    assert node_capacity.is_arm(kind) is arm


def test_for_pods_is_less_than_machine() -> None:
    for cores, gib in ((2, 4), (2, 8), (64, 128)):
        whole = node_capacity.Size(cores, gib * node_capacity.GIB)
        left = node_capacity.usable_size(whole)
        assert 0 < left.cpu < whole.cpu
        assert 0 < left.memory < whole.memory


def test_place_pods_with_host_ports_one_trainer_per_node() -> None:
    node, pod = node_capacity.Size(64, 2**40), node_capacity.Size(1, 2**30)
    placed, data = node_capacity.place_pods(
        node=node, nodes=2, trainers=3, trainer=pod, data=pod, one_a_node=True
    )
    assert (placed, data) == (2, True)


def test_place_pods_without_room_for_data_pod_reports_it() -> None:
    node, pod = node_capacity.Size(1, 2**30), node_capacity.Size(1, 2**30)
    placed, data = node_capacity.place_pods(
        node=node, nodes=3, trainers=3, trainer=pod, data=pod, one_a_node=False
    )
    assert (placed, data) == (3, False)


def _capacity(values: dict[str, Any], **nodes: Any) -> tuple[list[str], list[str]]:
    loaded = load_settings(config(**{**AWS, "nodes": nodes}))
    machines = dict.fromkeys(loaded.nodes.instance_types, MACHINE)
    problems, warnings = settings_rules.capacity_problems(loaded, {**VALUES, **values}, machines)
    return [str(problem) for problem in problems], warnings


def test_capacity_sufficient_nodes_pass() -> None:
    assert _capacity({}) == ([], [])


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"trainers": 30}, "trainers fit"),
        ({"hostPorts": True, "trainers": 4}, "one trainer on each node"),
        ({"resources": {"limits": {"memory": "20Gi"}}}, "0 trainers fit"),
        ({"resources": {"requests": {"memory": "2 GB"}}}, "not a quantity"),
    ],
)
def test_capacity_insufficient_machines_raises(values: Any, word: str) -> None:
    problems, warnings = _capacity(values)
    assert (len(problems), warnings) == (1, [])
    assert word in problems[0]


def test_capacity_insufficient_after_daemons_warns() -> None:
    close = {"requests": {"cpu": "1500m", "memory": "6Gi"}}
    problems, warnings = _capacity({"resources": close, "data": {"resources": {"requests": {"cpu": "400m"}}}})
    assert problems == []
    assert "no room is left for the data pod" in warnings[0]


def test_capacity_zero_nodes_passes() -> None:
    assert _capacity({"trainers": 30}, min=0, desired=0) == ([], [])


def test_capacity_auto_counts_max_nodes() -> None:
    assert _capacity({}, auto=True, min=0, desired=0) == ([], [])
    problems, _ = _capacity({"trainers": 30}, auto=True, min=0, desired=0)
    assert "nodes.max" in problems[0]
