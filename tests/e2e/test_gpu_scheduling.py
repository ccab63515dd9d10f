"""Test training pods with GPUs on the local cluster, whose nodes claim in their status to have GPUs.

Real are the scheduling, the devices of processes, their environment, and the shared memory. There is no device plugin,
so a container does not get the variable NVIDIA_VISIBLE_DEVICES. No program uses a GPU, and there is no driver: the
script of this test needs no library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.paths import POD_UID
from testkit.local_cluster import Cluster, Training
from testkit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

Make = Callable[..., Training]

SCRIPT = """\
import json
import os
from pathlib import Path

shared = os.statvfs("/dev/shm")
seen = {"environ": dict(os.environ), "sharedMemory": shared.f_blocks * shared.f_frsize}
folder = Path(os.environ["PADDLE_LAUNCHER_OUTPUT_DIR"])
(folder / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))
"""
RESOURCE = "nvidia.com/gpu"
GPUS = 2
"""GPUs of each node."""
MIB = 1 << 20
LIMIT = 512
"""Memory limit of a training pod in MiB."""
VERSION = "/opt/python/lib/python3.11/site-packages/paddle/version/__init__.py"
"""File of the image in which its PaddlePaddle says that it was built without CUDA."""


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Return the names of the nodes, which have pretend GPUs during the test. List this fixture before `train`."""

    def gpus() -> dict[str, str | None]:
        """Return the number of GPUs of each node that pods may use."""
        found = cluster.get("nodes", "default")
        return {one["metadata"]["name"]: one["status"]["allocatable"].get(RESOURCE) for one in found}

    def set_gpus(**status: Any) -> None:
        for name in names:
            cluster.objects.patch("nodes", "", name, {"status": status}, "status")

    names = sorted(gpus())
    try:
        set_gpus(capacity={RESOURCE: str(GPUS)})  # which the kubelet copies to `allocatable`
        until(lambda: gpus() == dict.fromkeys(names, str(GPUS)), "GPUs of all nodes", 60, 0.5)
        yield names
    finally:
        set_gpus(capacity={RESOURCE: None}, allocatable={RESOURCE: None})


def gpu_values(**changes: Any) -> dict[str, Any]:
    """Return values of a training that gives each pod all GPUs of a node."""
    requests = {"cpu": "50m", "memory": f"{LIMIT}Mi"}
    return {
        "runtime": "collective",
        "portsNum": 2,
        "portsNumSparse": 2,
        "resources": {"requests": requests, "limits": {"memory": f"{LIMIT}Mi", RESOURCE: GPUS}},
        **changes,
        "training": {"config": "devices/show.py", "logPeriod": 50, **changes.get("training", {})},
    }


def add_script(training: Training) -> None:
    folder = training.job / "devices"
    folder.mkdir(parents=True)
    (folder / "show.py").write_text(SCRIPT)
    os.chown(training.job, POD_UID, POD_UID)


def pretend_gpu_build(training: Training) -> dict[str, Any]:
    """Let the image's PaddlePaddle, a build for CPUs, say that it has CUDA; return the values for it."""
    data = {"__init__.py": "cuda_version     = '12.6'\n"}
    training.cluster.apply("ConfigMap", "gpu-build", training.namespace, data=data)
    mount = {"name": "gpu-build", "mountPath": VERSION, "subPath": "__init__.py", "readOnly": True}
    return {
        "extraVolumes": [{"name": "gpu-build", "configMap": {"name": "gpu-build"}}],
        "extraVolumeMounts": [mount],
    }


@pytest.mark.seconds(60)
def test_pods_get_nodes_and_devices_of_their_own_and_more_pods_than_free_gpus_wait(
    nodes: list[str], train: Make, cluster: Cluster
) -> None:
    training = train("ctr", **gpu_values(trainers=2, training={"sharedMemory": "96Mi"}))
    add_script(training)
    source = cluster.shared / "sources" / f"{training.namespace}.txt"
    source.write_text("".join(f"line {number}\n" for number in range(100)))
    try:
        training.upgrade({"data": {"source": f"file://{source.name}"}})
        assert training.ended() == "Failed", "the image's PaddlePaddle is built for CPUs"
        wanted = "resources.limits (GPUs) is 2, but must be absent with this image"
        assert any(wanted in message for message in training.messages()), training.messages()

        training.upgrade({"runId": "gpus", **pretend_gpu_build(training)})
        training.complete()
    finally:
        source.unlink()
    check_devices(training)
    # The first training is over, so that all GPUs are free again: enough for one pod on each node, and one pod is left.
    waiting = train("ctr", **gpu_values(trainers=len(nodes) + 1, data={"enabled": False, "source": ""}))
    add_script(waiting)
    waiting.upgrade(pretend_gpu_build(waiting))
    check_missing_gpus(waiting, nodes)


def check_devices(training: Training) -> None:
    """Check nodes, devices, environment and shared memory of a training with two pods."""
    current = training.described()["k8sJob"]
    pods = [pod for pod in training.pods() if pod["metadata"]["labels"]["job-name"] == current]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
    assert all({"key": RESOURCE, "operator": "Exists"} in pod["spec"]["tolerations"] for pod in pods)
    seen = [json.loads((training.output / f"seen-{rank}.json").read_text()) for rank in range(4)]
    environs = [one["environ"] for one in seen]
    names = ("FLAGS_selected_gpus", "LOCAL_RANK", "GROUP_RANK", "NCCL_SOCKET_IFNAME")
    assert [[environ.get(name) for name in names] for environ in environs] == [
        ["0", "0", "0", "=eth0"],
        ["1", "1", "0", "=eth0"],
        ["0", "0", "1", "=eth0"],
        ["1", "1", "1", "=eth0"],
    ]
    assert not [environ for environ in environs if "PADDLE_DISTRI_BACKEND" in environ]
    assert {one["sharedMemory"] for one in seen} == {96 * MIB}


def check_missing_gpus(training: Training, nodes: list[str]) -> None:
    """Check that one pod more than nodes waits, and that `status` says why; then the default of the shared memory."""

    def running() -> list[dict[str, Any]]:
        return [pod for pod in training.pods() if pod["status"]["phase"] == "Running"]

    def status() -> str:
        return " ".join(training.cluster.launcher("status", "-n", training.namespace).stdout.split())

    until(lambda: len(running()) == len(nodes), "a running pod on each node", 90, 1, training.last_log_lines)
    assert {pod["spec"]["nodeName"] for pod in running()} == set(nodes)
    until(lambda: f"{len(nodes)} Insufficient {RESOURCE}" in status(), "the reason in status", 60, 5, status)
    size = "import os; found = os.statvfs('/dev/shm'); print(found.f_blocks * found.f_frsize)"
    name = running()[0]["metadata"]["name"]
    found = training.cluster.kubectl("exec", name, "-n", training.namespace, "--", "python", "-c", size)
    assert int(found) == LIMIT * MIB, "by default as large as the memory limit"
