"""Tests of the chart's training pods with GPUs: toleration, shared memory, and values that are rejected."""

from __future__ import annotations

import copy

import pytest
from chart_tools import CHART, SCENARIOS, env, one, render, settings

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


def test_pods_with_zero_gpus_do_not_tolerate_the_taint_of_gpu_nodes():
    assert (
        FOR_GPUS not in pod(CPUS, resources={"limits": {"memory": "2Gi", "nvidia.com/gpu": 0}})["tolerations"]
    )


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


@pytest.mark.parametrize("size", ["28Gi", "30G", "28672Mi", "30064771072"])
def test_shared_memory_may_be_as_large_as_the_memory_limit(size):
    assert shared_memory(pod(training={"sharedMemory": size}))["sizeLimit"] == size


@pytest.mark.parametrize("gpus", [4, "4"])
def test_requests_that_equal_the_limits_are_accepted(gpus):
    assert pod(resources={"requests": {"nvidia.com/gpu": gpus}})


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
    made = one(render(CPUS, values=values), "Job", "training")["spec"]["template"]
    found, spec = settings(made), made["spec"]
    assert found["release"]["gpusPerPod"] == found["training"]["processesPerPod"] == count
    assert shared_memory(spec) == {"medium": "Memory"}
    tolerated = {one.get("key") for one in spec["tolerations"]}
    assert set(gpus) <= tolerated
    assert ("nvidia.com/gpu" in tolerated) == any(name.startswith("nvidia.com/") for name in gpus)


def test_a_runtime_class_is_that_of_the_training_pods_only():
    values = {"runtimeClassName": "nvidia", "data": {"enabled": True, "source": "file://lines.txt"}}
    manifests = render(GPUS, values=values)
    assert one(manifests, "Job", "training")["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in one(manifests, "Job", "data")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in pod()


def test_a_patch_of_the_pods_spec_is_merged_and_replaces_lists_and_removes_null():
    patch = {
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "securityContext": {"fsGroup": 1000650000, "runAsNonRoot": False, "seccompProfile": None},
        "nodeSelector": {"kubernetes.io/arch": None, "a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "serviceAccountName": None,
    }
    before, after = pod(), pod(podSpecPatch=patch)
    del before["serviceAccountName"], before["securityContext"]["seccompProfile"]
    assert after == {
        **before,
        **{field: patch[field] for field in ("dnsConfig", "tolerations")},
        "securityContext": {**before["securityContext"], "fsGroup": 1000650000, "runAsNonRoot": False},
        "nodeSelector": {"a": "b"},
    }


def test_each_job_has_its_own_patch_and_a_patch_makes_a_new_job():
    data = {"enabled": True, "source": "file://lines.txt", "podSpecPatch": {"hostname": "data"}}
    manifests = render(GPUS, values={"podSpecPatch": {"hostname": "training"}, "data": data})
    jobs = [one(manifests, "Job", name) for name in ("training", "data")]
    assert [job["spec"]["template"]["spec"]["hostname"] for job in jobs] == ["training", "data"]
    plain = render(GPUS, values={"data": {"enabled": True, "source": "file://lines.txt"}})
    for job, name in zip(jobs, ("training", "data"), strict=True):
        assert job["metadata"]["name"] != one(plain, "Job", name)["metadata"]["name"]


def test_variables_of_paddle_and_the_python_path_may_be_set_for_scripts():
    given = {"PADDLE_PG_TIMEOUT": "60000", "PYTHONPATH": "/mine", "PADDLE_LOSS_SCALE": "2"}
    spec = pod(CPUS, extraEnv=[{"name": name, "value": value} for name, value in given.items()])
    found = env(spec["containers"][0])
    assert (found["PADDLE_PG_TIMEOUT"], found["PADDLE_LOSS_SCALE"]) == ("60000", "2")
    assert found["PADDLE_LAUNCHER_PYTHONPATH"] == "/mine"
    assert "PYTHONPATH" not in found, "the image needs its own one"
