"""Kubernetes quantities, and whether the nodes hold all pods."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import moto.ec2
import pytest

from infra import node_capacity, settings_rules
from infra.node_capacity import parse_quantity

from .recording_mocks import aws_settings

VALUES: dict[str, Any] = {
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


def ec2_types() -> dict[str, Any]:
    """Return what DescribeInstanceTypes says of all types, from moto's copy."""
    packed = (Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz").read_bytes()
    return dict(json.loads(gzip.decompress(packed)))


def test_count_gpus_equals_ec2_in_supported_families() -> None:
    seen = set()
    for kind, about in ec2_types().items():
        family, given = kind.partition(".")[0], about.get("GpuInfo", {}).get("Gpus", [])
        if family in node_capacity.GPU_FAMILIES:
            assert [gpu["Manufacturer"] for gpu in given] == ["NVIDIA"], kind
            assert "x86_64" in about["ProcessorInfo"]["SupportedArchitectures"], kind
            assert node_capacity.count_gpus(kind) == given[0]["Count"], kind
            seen.add(family)
        assert bool(given) is (node_capacity.count_gpus(kind) > 0), (
            f"{kind}: settings_rules would not see its GPUs"
        )
    # p3 is not in moto's copy.
    assert set(node_capacity.GPU_FAMILIES) - seen == {"p3"}
    assert [node_capacity.count_gpus(f"p3.{size}xlarge") for size in (2, 8, 16)] == [1, 4, 8]


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


@pytest.mark.parametrize(("gpus", "placed"), [(1, 4), (2, 2), (3, 0), (0, 6)])
def test_place_pods_counts_gpus(gpus: int, placed: int) -> None:
    node = node_capacity.Size(64, 2**40, 2)
    pod, data = node_capacity.Size(1, 2**30, gpus), node_capacity.Size(1, 2**30)
    found = node_capacity.place_pods(
        node=node_capacity.usable_size(node), nodes=2, trainers=6, trainer=pod, data=data, one_a_node=False
    )
    assert found == (placed, True), "the data pod needs no GPU"


def test_place_pods_without_room_for_data_pod_reports_it() -> None:
    node, pod = node_capacity.Size(1, 2**30), node_capacity.Size(1, 2**30)
    placed, data = node_capacity.place_pods(
        node=node, nodes=3, trainers=3, trainer=pod, data=pod, one_a_node=False
    )
    assert (placed, data) == (3, False)


def _capacity(values: dict[str, Any], **nodes: Any) -> tuple[list[str], list[str]]:
    loaded = aws_settings(nodes=nodes)
    machines = {
        kind: replace(MACHINE, gpus=node_capacity.count_gpus(kind)) for kind in loaded.nodes.instance_types
    }
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


def test_capacity_pods_with_more_gpus_than_a_node_raise() -> None:
    wanted = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    problems, _ = _capacity(wanted, instanceTypes=["g6.xlarge"])
    assert len(problems) == 1
    assert "2.00 cores and 8.0 GiB, 1 GPU each: 0 trainers fit" in problems[0]
    assert "3 trainers of 0.00 cores and 0.0 GiB, 4 GPUs" in problems[0]
    assert _capacity(wanted, instanceTypes=["g6.12xlarge"]) == ([], [])
    # The autoscaler and spot capacity decide which type starts, so the one with the fewest GPUs counts.
    assert "0 trainers fit" in _capacity(wanted, instanceTypes=["g6.12xlarge", "g6.16xlarge"])[0][0]


def test_capacity_gpu_nodes_without_requested_gpus_warn_about_cost() -> None:
    problems, warnings = _capacity({}, instanceTypes=["g6.xlarge"])
    assert problems == []
    assert len(warnings) == 1
    assert "g6.xlarge have GPUs, but the training requests none" in warnings[0]
    one = {"resources": {**VALUES["resources"], "limits": {"nvidia.com/gpu": 1}}}
    assert _capacity(one, instanceTypes=["g6.xlarge"]) == ([], [])


def test_capacity_zero_nodes_passes() -> None:
    assert _capacity({"trainers": 30}, min=0, desired=0) == ([], [])


def test_capacity_auto_counts_max_nodes() -> None:
    assert _capacity({}, auto=True, min=0, desired=0) == ([], [])
    problems, _ = _capacity({"trainers": 30}, auto=True, min=0, desired=0)
    assert "nodes.max" in problems[0]
