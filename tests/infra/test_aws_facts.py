"""Properties of instance types, and pods that are larger than one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import moto.ec2
import pytest

from infra import aws_facts, chart_values


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
    assert aws_facts.is_arm(kind) is arm


def ec2_types() -> dict[str, Any]:
    """Return what DescribeInstanceTypes says of all types, from moto's copy."""
    packed = (Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz").read_bytes()
    return dict(json.loads(gzip.decompress(packed)))


def test_gpu_families_equal_ec2() -> None:
    seen = set()
    for kind, about in ec2_types().items():
        family, given = kind.partition(".")[0], about.get("GpuInfo", {}).get("Gpus", [])
        if family in aws_facts.GPU_FAMILIES:
            assert [gpu["Manufacturer"] for gpu in given] == ["NVIDIA"], kind
            assert "x86_64" in about["ProcessorInfo"]["SupportedArchitectures"], kind
            seen.add(family)
        assert bool(given) is aws_facts.has_gpus(kind), f"{kind}: settings.py would not see its GPUs"
    # p3 is not in moto's copy.
    assert set(aws_facts.GPU_FAMILIES) - seen == {"p3"}
    assert aws_facts.has_gpus("p3.2xlarge")


MACHINES = {
    "m6i.large": {"cpu": "2", "memory": "8192Mi", "nvidia.com/gpu": "0"},
    "g6.12xlarge": {"cpu": "48", "memory": "196608Mi", "nvidia.com/gpu": "4"},
}


def _problems(values: dict[str, Any], *kinds: str) -> list[str]:
    machines = {kind: MACHINES[kind] for kind in kinds or ["m6i.large"]}
    return [str(problem) for problem in chart_values.pod_size_problems(values, machines)]


@pytest.mark.parametrize(
    ("resources", "key", "most"),
    [
        ({"limits": {"memory": "20Gi"}}, "memory", "8192Mi"),
        ({"requests": {"cpu": "2500m"}}, "cpu", "2"),
        ({"limits": {"nvidia.com/gpu": 1}}, "nvidia.com/gpu", "0"),
    ],
)
@pytest.mark.parametrize("part", ["resources", "data.resources"])
def test_pod_larger_than_instance_type_raises(resources: Any, key: str, most: str, part: str) -> None:
    values = {"resources": resources} if part == "resources" else {"data": {"resources": resources}}
    (text,) = _problems(values)
    assert text.startswith(f"{part}: {key} is ")
    assert f"but must be at most {most}: " in text
    assert ("for example g6.xlarge" in text) is ("gpu" in key)
    assert _problems(values, "g6.12xlarge") == []
    # The autoscaler and spot capacity decide which of the types starts.
    assert _problems(values, "g6.12xlarge", "m6i.large") == [text]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"resources": None, "data": None},
        {"resources": {"requests": {"cpu": 2, "memory": "8Gi", "nvidia.com/gpu.shared": 4}}},
        {"resources": {"requests": {"memory": "6Gi"}, "limits": {"memory": "20Gi"}}},
        {"resources": {"requests": {"memory": "2 GB"}}},
    ],
)
def test_pod_that_is_not_larger_passes(values: dict[str, Any]) -> None:
    """The chart's schema rejects quantities that Kubernetes does not know."""
    assert _problems(values) == []
