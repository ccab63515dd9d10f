"""Tests that stop, kill and start the local cluster on this machine.

Every test leaves a running cluster. Nothing else may use the cluster meanwhile.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from local.cluster import api_requests, cluster_lifecycle, daemon_configs, images_on_nodes, supervisor
from local.paths import CLONE, KUBECONFIG, STATE
from testkit.waiting import until
from tests.faults import cluster_faults

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.restarts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and mounts need root"),
]


def _local(*words, code=0, **env):
    argv, env = [sys.executable, "-m", "local", *words], {**os.environ, **env}
    ended = subprocess.run(argv, cwd=CLONE, env=env, capture_output=True, text=True, check=False, timeout=400)
    assert ended.returncode == code, f"local {' '.join(words)}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def _size():
    return str(len(cluster_lifecycle.running_nodes()) or 3)


def _list_leftovers():
    """Return what is left of the cluster on this machine: processes, mounts, cgroups, links, routes and rules."""
    commands = (
        ["ps", "-eo", "args"],
        ["ip", "-o", "link"],
        ["ip", "route"],
        ["iptables-save"],
        ["ip", "netns"],
    )
    lines = [line for argv in commands for line in subprocess.check_output(argv, text=True).splitlines()]
    lines += Path("/proc/mounts").read_text().splitlines()
    marks = f"{STATE}/nodes", "kube-", "cluster.supervisor", "pt-host", "10.87.", "10.88.", "node1"
    found = [line for line in lines if any(mark in line for mark in marks)]
    groups = [root / daemon_configs.GROUP for root in supervisor.cgroup_hierarchies()]
    return found + [str(group) for group in groups if group.exists()]


@pytest.fixture(autouse=True)
def _cluster():
    _local("up", NODES=_size())
    yield
    _local("up", NODES=_size())


def test_an_api_server_is_not_started_before_etcd_answers():
    with cluster_faults.stopped_daemons("etcd", "apiserver"):
        (supervisor.HELD / "apiserver").unlink()
        time.sleep(5)
        assert cluster_lifecycle.daemon_states()["apiserver"] != "running"


def test_a_second_start_changes_nothing():
    before = cluster_lifecycle.supervisor_process()
    assert "nothing was changed" in _local("up", NODES=_size())
    assert cluster_lifecycle.supervisor_process() == before


def test_killed_daemons_are_restarted_and_the_cluster_is_ready_again():
    names = [node.name for node in cluster_lifecycle.running_nodes()]
    killed = ("etcd", "coredns", f"{names[0]}-containerd", f"{names[0]}-kubelet")
    with cluster_faults.stopped_daemons(*killed):
        assert "exited with -9" in _local("status")
    assert not api_requests.unready_nodes(names, 0)
    assert set(cluster_lifecycle.daemon_states().values()) == {"running"}


def test_a_start_after_a_crash_of_the_whole_cluster_keeps_the_objects_and_images():
    objects, first = set(api_requests.list_nodes()), cluster_lifecycle.running_nodes()[0]
    images = {name for name in images_on_nodes.image_names(first) if name.startswith("localhost/")}
    size = _size()
    os.kill(cluster_lifecycle.supervisor_process(), signal.SIGKILL)
    until(lambda: cluster_lifecycle.supervisor_process() is None, "the end of the cluster", 30)
    _local("up", NODES=size)
    assert set(api_requests.list_nodes()) == objects
    assert images <= images_on_nodes.image_names(first)


@pytest.mark.parametrize("seconds", [0.4, 1.0])
def test_a_start_after_an_interrupted_stop_restores_the_cluster(seconds):
    size, argv = _size(), [sys.executable, "-m", "local", "down"]
    with subprocess.Popen(argv, cwd=CLONE, stdout=subprocess.DEVNULL) as half:
        time.sleep(seconds)
        half.kill()
    _local("up", NODES=size)
    assert not api_requests.unready_nodes([node.name for node in cluster_lifecycle.running_nodes()], 0)


def test_down_leaves_nothing_and_another_number_of_nodes_can_be_started():
    size = int(_size())
    assert _list_leftovers(), "the cluster runs"
    _local("down")
    assert _list_leftovers() == []
    assert "is not running" in _local("status")
    _local("down")  # a second stop is not an error
    _local("up", NODES=str(size))
    _local("up", NODES="1")
    assert set(api_requests.list_nodes()) == {"node1"}
    _local("up", NODES=str(size))
    assert len(api_requests.list_nodes()) == size


def test_other_kubeconfigs_are_neither_read_nor_written(tmp_path):
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    files = [tmp_path / "other", home / ".kube" / "config"]
    for file in files:
        file.write_text("not a kubeconfig: {{{")
        os.utime(file, (1, 1))
    tools = os.environ.get("PADDLE_TRAINING_CACHE") or str(Path.home() / ".cache" / "paddle-training")
    env = {"KUBECONFIG": str(files[0]), "HOME": str(home), "PADDLE_TRAINING_CACHE": tools}
    _local("up", NODES=_size(), **env)
    _local("status", **env)
    for file in files:
        assert file.read_text() == "not a kubeconfig: {{{"
        assert file.stat().st_mtime == 1
    assert KUBECONFIG.stat().st_mode & 0o777 == 0o600


def test_the_token_of_the_emulated_eks_cluster_is_accepted():
    token = (KUBECONFIG.parent / "eks-token").read_text().strip()
    context = ssl.create_default_context(cafile=str(KUBECONFIG.parent / "pki" / "ca.crt"))
    request = urllib.request.Request(  # noqa: S310 - an https address of our own
        f"{daemon_configs.SERVER}/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310
        assert answer.status == 200
