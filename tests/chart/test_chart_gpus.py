"""Names under which Kubernetes counts GPUs. charts/paddle-training/tests/gpus_test.yaml tests the pods' fields."""

from __future__ import annotations

import pytest
from chart_tools import CHART, one, render, settings


@pytest.mark.parametrize(
    ("gpus", "count"),
    [
        ({"nvidia.com/gpu": 2}, 2),
        ({"nvidia.com/gpu.shared": 1}, 1),
        ({"nvidia.com/mig-1g.10gb": 1}, 1),
        ({"nvidia.com/mig-1g.5gb.shared": 1}, 1),
        ({"amd.com/gpu": 4}, 4),
        ({"gpu.intel.com/xe": 2}, 2),
        ({"nvidia.com/gpu-a100": 4}, 4),
        ({"nvidia.com/gpu.H100-80GB.shared": 2}, 2),
        ({"aliyun.com/gpu-mem": 8}, 1),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, 1),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 4000}, 2),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_gpus_under_every_name_count_and_their_pods_tolerate_the_taint_of_that_name(gpus, count):
    values = {"resources": {"limits": {"memory": "2Gi", **gpus}}, "training": {"processesPerPod": None}}
    made = one(render(CHART / "ci" / "collective.yaml", values=values), "Job", "training")["spec"]["template"]
    found = settings(made)
    assert found["release"]["gpusPerPod"] == found["training"]["processesPerPod"] == count
    [shared_memory] = [each for each in made["spec"]["volumes"] if each["name"] == "shared-memory"]
    assert shared_memory["emptyDir"] == {"medium": "Memory"}
    tolerated = {each.get("key") for each in made["spec"]["tolerations"]}
    assert set(gpus) <= tolerated
    assert ("nvidia.com/gpu" in tolerated) == any(name.startswith("nvidia.com/") for name in gpus)
