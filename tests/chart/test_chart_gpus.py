"""Tests of the chart's training pods with GPUs: toleration, shared memory, and values that are rejected."""

from __future__ import annotations

import copy

import pytest
from chart_tools import CHART, SCENARIOS, helm_template, one, render

GPUS = CHART / "ci" / "gpus.yaml"
CPUS = CHART / "ci" / "collective.yaml"
SHM = "/dev/shm"  # noqa: S108 - not a file of a known name
FOR_GPUS = {"key": "nvidia.com/gpu", "operator": "Exists"}
OWN_SHM = {
    "extraVolumes": [{"name": "mine", "emptyDir": {"medium": "Memory"}}],
    "extraVolumeMounts": [{"name": "mine", "mountPath": f"{SHM}/"}],
}


def pod(file=GPUS, **values):
    """Return the spec of the training pod."""
    return one(render(file, values=values), "Job", "training")["spec"]["template"]["spec"]


def shared_memory(spec):
    """Return the emptyDir that is mounted at /dev/shm of the training container, or None."""
    [train] = spec["containers"]
    names = [one["name"] for one in train["volumeMounts"] if one["mountPath"].rstrip("/") == SHM]
    assert len(names) < 2, "Kubernetes rejects a second mount of one folder"
    return next((one["emptyDir"] for one in spec["volumes"] if one["name"] in names), None)


def without_shared_memory(spec):
    found = copy.deepcopy(spec)
    found["volumes"] = [one for one in found["volumes"] if one["name"] != "shared-memory"]
    for container in found["containers"]:
        mounts = container["volumeMounts"]
        container["volumeMounts"] = [one for one in mounts if one["name"] != "shared-memory"]
    return found


@pytest.mark.parametrize("scenario", [file for file in SCENARIOS if file != GPUS], ids=lambda file: file.stem)
def test_pods_without_gpus_have_neither_the_toleration_nor_an_own_shared_memory(scenario):
    for manifest in render(scenario):
        if manifest["kind"] not in ("Job", "CronJob"):
            continue
        assert not {SHM, "nvidia.com/gpu"} & set(texts(manifest)), manifest["metadata"]["name"]


def texts(value):
    """Return all keys and texts of a manifest."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value]


def test_the_value_of_shared_memory_adds_one_volume_and_one_mount_and_nothing_else():
    before, after = pod(CPUS), pod(CPUS, training={"sharedMemory": "1Gi"})
    assert shared_memory(before) is None
    assert shared_memory(after) == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert after != before
    assert without_shared_memory(after) == before


def test_shared_memory_is_by_default_limited_by_the_memory_limit_only_with_gpus():
    assert shared_memory(pod()) == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert shared_memory(pod(training={"sharedMemory": ""})) == {"medium": "Memory"}


def test_a_users_own_mount_of_shared_memory_replaces_the_default():
    spec = pod(training={"sharedMemory": ""}, **OWN_SHM)
    assert shared_memory(spec) == {"medium": "Memory"}
    assert "shared-memory" not in [volume["name"] for volume in spec["volumes"]]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], True),
        ([{"key": "team", "operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], True),
        ([{"operator": "Exists"}], False),
        ([{"operator": "Exists", "effect": "NoSchedule"}], False),
        ([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}], False),
    ],
)
def test_pods_with_gpus_tolerate_the_taint_of_gpu_nodes_unless_the_user_sets_a_toleration_for_it(
    given, added
):
    found = pod(scheduling={"tolerations": given})["tolerations"]
    assert (FOR_GPUS in found) == added
    assert [one for one in found if one in given] == given


def test_a_schedule_renders_the_same_pods():
    values = {"training": {"schedule": "@daily"}, "data": {"enabled": True, "source": "file://lines.txt"}}
    cron_job = one(render(GPUS, values=values), "CronJob", "training")
    spec = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert FOR_GPUS in spec["tolerations"]
    assert shared_memory(spec) == {"medium": "Memory", "sizeLimit": "2Gi"}


def test_the_data_job_does_not_tolerate_the_taint_of_gpu_nodes():
    manifests = render(GPUS, values={"data": {"enabled": True, "source": "file://lines.txt"}})
    assert "tolerations" not in one(manifests, "Job", "data")["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "differs from the limit, which is 4"),
        ({"resources": {"limits": {"nvidia.com/gpu": "500m"}}}, "must be a number of GPUs without decimals"),
        (
            {"training": {"sharedMemory": "28.5Gi"}},
            'training.sharedMemory is "28.5Gi", but must be at most 28Gi, the value of resources.limits.memory',
        ),
        ({"training": {"sharedMemory": "31G"}}, "must be at most 28Gi"),
        ({"training": {"sharedMemory": "0"}}, "/training/sharedMemory"),
        (OWN_SHM, 'training.sharedMemory is "2Gi", but must be empty with /dev/shm in extraVolumeMounts'),
        (
            {"extraVolumes": [{"name": "shared-memory", "emptyDir": {}}]},
            'extraVolumes is "shared-memory", but must be a name other than shared-memory',
        ),
    ],
)
def test_invalid_values_of_gpus_and_shared_memory_are_rejected(values, fault):
    done = helm_template(GPUS, values=values)
    assert done.returncode != 0
    assert fault in done.stderr


def test_gpus_in_requests_only_are_rejected():
    done = helm_template(CPUS, values={"resources": {"requests": {"nvidia.com/gpu": 1}}})
    assert (
        "resources.requests.nvidia.com/gpu is 1, but must be equal to resources.limits.nvidia.com/gpu, or absent: "
        "Kubernetes rejects pods whose request of GPUs differs from the limit, which is not set"
    ) in done.stderr


@pytest.mark.parametrize("size", ["28Gi", "30G", "28672Mi", "30064771072"])
def test_shared_memory_may_be_as_large_as_the_memory_limit(size):
    assert shared_memory(pod(training={"sharedMemory": size}))["sizeLimit"] == size


@pytest.mark.parametrize("gpus", [4, "4"])
def test_requests_that_equal_the_limits_are_accepted(gpus):
    assert pod(resources={"requests": {"nvidia.com/gpu": gpus}})


def test_gpus_are_rejected_with_runtimes_that_use_cpus_only():
    limits = {"memory": "2Gi", "nvidia.com/gpu": 1}
    done = helm_template(CHART / "ci" / "one-machine.yaml", values={"resources": {"limits": limits}})
    assert "resources.limits.nvidia.com/gpu is 1, but must be absent with runtime fleet" in done.stderr
