"""Tests that stop, kill and start the local cluster on this machine.

Every test leaves a running cluster. Nothing else may use the cluster meanwhile.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from local.cluster import (
    api_requests,
    cluster_lifecycle,
    daemon_configs,
    daemon_processes,
    node_lifecycle,
    node_network,
)
from local.images import images_on_nodes
from local.paths import CLONE, KUBECONFIG
from testkit.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.restarts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and mounts need root"),
]


def _local(*words, code=0, **env):
    ended = subprocess.run(
        [sys.executable, "-m", "local", *words],
        cwd=CLONE,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ended.returncode == code, f"local {' '.join(words)}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def _size():
    return str(len(cluster_lifecycle.running_nodes()) or 3)


def _names():
    return [
        *cluster_lifecycle.CONTROL_PLANE,
        *(d for n in cluster_lifecycle.running_nodes() for d in node_lifecycle.daemon_names(n)),
    ]


def _kill(*names):
    for name in names:
        who = daemon_processes.running_daemon(name)
        if who:
            os.kill(who.pid, signal.SIGKILL)
    until(
        lambda: not any(daemon_processes.running_daemon(name) for name in names),
        "the exit of killed daemons",
        10,
    )


def _assert_running():
    running = cluster_lifecycle.running_nodes()
    assert running
    assert cluster_lifecycle.is_running(running)


@pytest.fixture(autouse=True)
def _cluster():
    _local("up", NODES=_size())
    yield
    _local("up", NODES=_size())


def test_an_api_server_is_not_started_before_etcd_answers():
    etcd = daemon_processes.running_daemon("etcd")
    _kill("apiserver")
    os.kill(etcd.pid, signal.SIGSTOP)
    resume = threading.Timer(25, os.kill, (etcd.pid, signal.SIGCONT))  # an API server gives up after 20 s
    try:
        resume.start()
        _local("up", NODES=_size())
    finally:
        resume.cancel()
        os.kill(etcd.pid, signal.SIGCONT)
    _assert_running()
    assert daemon_processes.running_daemon("etcd") == etcd


def test_a_second_start_changes_nothing():
    before = {name: daemon_processes.running_daemon(name) for name in _names()}
    assert "nothing was changed" in _local("up", NODES=_size())
    assert {name: daemon_processes.running_daemon(name) for name in _names()} == before


def test_a_start_restarts_killed_daemons_and_no_others():
    first = cluster_lifecycle.running_nodes()[0]
    killed = ("etcd", "coredns", node_lifecycle.daemon_names(first)[0], node_lifecycle.daemon_names(first)[1])
    kept = "scheduler"
    before = daemon_processes.running_daemon(kept)
    _kill(*killed)
    _local("up", NODES=_size())
    _assert_running()
    assert daemon_processes.running_daemon(kept) == before


def test_a_start_after_a_crash_of_all_daemons_keeps_the_objects():
    objects = set(api_requests.list_nodes())
    _kill(*_names())
    _local("up", NODES=_size())
    _assert_running()
    assert set(api_requests.list_nodes()) == objects


def test_a_start_repairs_the_network_of_a_node():
    last = cluster_lifecycle.running_nodes()[-1]
    node_network.remove_node_network(last)
    assert not cluster_lifecycle.is_running(cluster_lifecycle.running_nodes())
    _local("up", NODES=_size())
    _assert_running()


def test_records_of_an_earlier_boot_do_not_start_a_daemon_twice():
    name = "scheduler"
    record = daemon_processes.RECORDS / f"{name}.json"
    real = record.read_text()
    record.write_text(real.replace(daemon_processes.read_boot_id(), "former"))
    _local("up", NODES=_size())
    _assert_running()
    assert len(daemon_processes.find_marked_processes(name)) == 1


@pytest.mark.parametrize("seconds", [0.7, 2.0])
def test_a_start_after_an_interrupted_stop_restores_the_cluster(seconds):
    size = _size()
    with subprocess.Popen(
        [sys.executable, "-m", "local", "down"], cwd=CLONE, stdout=subprocess.DEVNULL
    ) as half:
        time.sleep(seconds)
        half.kill()
    _local("up", NODES=size)
    _assert_running()


def test_down_leaves_nothing_running_and_keeps_the_images():
    size = _size()
    first = cluster_lifecycle.running_nodes()[0]
    images = {name for name in images_on_nodes.image_names(first) if name.startswith("localhost/")}
    assert "nothing of the local cluster is left" in _local("down")
    assert cluster_lifecycle.find_leftovers() == []
    _local("residue")
    _local("down")  # a second stop is not an error
    _local("up", NODES=size)
    assert images <= images_on_nodes.image_names(cluster_lifecycle.running_nodes()[0])


def test_residue_lists_a_running_cluster_and_exits_with_1():
    output = _local("residue", code=1)
    for kind in ("process", "cgroup", "network namespace", "link pt0", "iptables rule", "route"):
        assert kind in output


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
