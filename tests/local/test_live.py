"""The local cluster on this machine: started twice, stopped halfway, killed, taken down and brought up again.

Every test leaves a whole cluster behind. Nothing else may use the cluster meanwhile.
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

from local.cluster import configs, lifecycle, network, node, processes
from local.cluster.api import Api
from local.images import store
from local.paths import CLONE, KUBECONFIG
from tests.waiting import until

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
    return str(len(lifecycle.running_nodes()) or 3)


def _names():
    return [*lifecycle.CONTROL_PLANE, *(d for n in lifecycle.running_nodes() for d in node.daemons(n))]


def _kill(*names):
    for name in names:
        who = processes.record(name)
        if who:
            os.kill(who.pid, signal.SIGKILL)
    until(lambda: not any(processes.record(name) for name in names), "the end of killed daemons", 10)


def _assert_whole():
    running = lifecycle.running_nodes()
    assert running
    assert lifecycle.whole(running)


@pytest.fixture(autouse=True)
def _cluster():
    _local("up", NODES=_size())
    yield
    _local("up", NODES=_size())


def test_an_api_server_is_not_started_before_etcd_answers():
    etcd = processes.record("etcd")
    _kill("apiserver")
    os.kill(etcd.pid, signal.SIGSTOP)
    goes_on = threading.Timer(25, os.kill, (etcd.pid, signal.SIGCONT))  # an API server gives up after 20 s
    try:
        goes_on.start()
        _local("up", NODES=_size())
    finally:
        goes_on.cancel()
        os.kill(etcd.pid, signal.SIGCONT)
    _assert_whole()
    assert processes.record("etcd") == etcd


def test_a_second_start_changes_nothing():
    before = {name: processes.record(name) for name in _names()}
    assert "nothing was changed" in _local("up", NODES=_size())
    assert {name: processes.record(name) for name in _names()} == before


def test_killed_daemons_are_started_again_and_the_others_left_alone():
    first = lifecycle.running_nodes()[0]
    killed = ("etcd", "coredns", node.daemons(first)[0], node.daemons(first)[1])
    kept = "scheduler"
    before = processes.record(kept)
    _kill(*killed)
    _local("up", NODES=_size())
    _assert_whole()
    assert processes.record(kept) == before


def test_a_crash_of_everything_is_mended_with_the_objects_kept():
    objects = set(Api().nodes())
    _kill(*_names())
    _local("up", NODES=_size())
    _assert_whole()
    assert set(Api().nodes()) == objects


def test_a_node_that_lost_its_network_gets_a_new_one():
    last = lifecycle.running_nodes()[-1]
    network.remove_node(last)
    assert not lifecycle.whole(lifecycle.running_nodes())
    _local("up", NODES=_size())
    _assert_whole()


def test_records_of_a_former_boot_stop_nobody():
    name = "scheduler"
    record = processes.RECORDS / f"{name}.json"
    real = record.read_text()
    record.write_text(real.replace(processes.boot_id(), "former"))
    _local("up", NODES=_size())
    _assert_whole()
    assert len(processes.marked(name)) == 1


@pytest.mark.parametrize("seconds", [0.7, 2.0])
def test_a_stop_that_was_killed_halfway_is_mended_by_the_next_start(seconds):
    size = _size()
    with subprocess.Popen(
        [sys.executable, "-m", "local", "down"], cwd=CLONE, stdout=subprocess.DEVNULL
    ) as half:
        time.sleep(seconds)
        half.kill()
    _local("up", NODES=size)
    _assert_whole()


def test_down_leaves_nothing_and_the_images_stay_for_the_next_start():
    size = _size()
    first = lifecycle.running_nodes()[0]
    images = {name for name in store.names(first) if name.startswith("localhost/")}
    assert "nothing is left" in _local("down")
    assert lifecycle.leftovers() == []
    _local("residue")
    _local("down")  # a second stop is no mistake
    _local("up", NODES=size)
    assert images <= store.names(lifecycle.running_nodes()[0])


def test_residue_lists_a_running_cluster_and_fails():
    said = _local("residue", code=1)
    for kind in ("process", "cgroup", "network namespace", "link pt0", "iptables rule", "route"):
        assert kind in said


def test_another_clusters_kubeconfig_is_neither_read_nor_written(tmp_path):
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


def test_the_token_of_the_emulated_cluster_opens_it():
    token = (KUBECONFIG.parent / "eks-token").read_text().strip()
    context = ssl.create_default_context(cafile=str(KUBECONFIG.parent / "pki" / "ca.crt"))
    request = urllib.request.Request(  # noqa: S310 - an https address of our own
        f"{configs.SERVER}/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310
        assert answer.status == 200
