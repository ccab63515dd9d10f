"""Tests of the planned addresses, of the daemons' configuration files, and of the nodes' cgroups."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from local.cluster import cluster_lifecycle, daemon_configs, supervisor
from local.cluster.api_requests import unready_reason
from local.cluster.daemon_configs import NODE_SUBNET, POD_SUBNET, plan_nodes
from local.external_commands import LocalError
from local.paths import CLONE
from testkit.written_files import write_files


@pytest.mark.parametrize("count", [0, 6, -1])
def test_plan_nodes_with_a_count_outside_the_range_raises_an_error_with_the_range(count):
    with pytest.raises(LocalError, match=rf"NODES={count}: .*1 to 5"):
        plan_nodes(count)


def test_every_node_has_unique_addresses_subnets_and_folders_inside_the_clusters():
    every = plan_nodes(daemon_configs.MAX_NODES)
    for what in ("name", "address", "pod_subnet", "link", "cgroup", "folder", "socket"):
        assert len({getattr(node, what) for node in every}) == len(every)
    for node in every:
        assert ipaddress.ip_address(node.address) in ipaddress.ip_network(NODE_SUBNET)
        assert ipaddress.ip_network(node.pod_subnet).subnet_of(ipaddress.ip_network(POD_SUBNET))
        assert len(str(node.socket)) < 108  # the kernel's limit for a socket's path


def test_overlapping_routes_returns_only_routes_of_other_networks():
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.88.4.0/22", "dev": "vpn0"},
        {"dst": "10.88.0.0/16", "dev": "pt-host"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
    ]
    assert cluster_lifecycle.overlapping_routes(routes) == ["10.88.4.0/22 of vpn0"]


def test_files_of_a_node_refer_only_to_its_own_folder(monkeypatch):
    monkeypatch.setattr(daemon_configs, "kubeconfig", str)
    one, two = plan_nodes(2)
    files = daemon_configs.cluster_files((one, two), [])
    of_one = [text for path, text in files.items() if path.is_relative_to(one.folder)]
    assert len(of_one) == 5
    assert sum(str(one.folder) in text for text in of_one) == 3
    assert not [text for text in of_one if str(two.folder) in text]


def test_api_server_listens_only_on_the_bridge(tmp_path):
    commands = daemon_configs.daemon_commands(plan_nodes(1), tmp_path, tmp_path)
    assert commands["apiserver"][0] == f"{tmp_path}/kube-apiserver"
    assert "--bind-address=10.87.0.1" in commands["apiserver"]
    assert list(commands)[-3:] == ["node1-containerd", "node1-kubelet", "node1-proxy"]


def test_corefile_forwards_other_names_to_the_machines_resolvers(monkeypatch):
    monkeypatch.setattr(daemon_configs, "kubeconfig", str)
    resolv_conf = "# comment\nsearch corp\nnameserver 127.0.0.53\nnameserver 10.87.0.254\n"
    for text, expected in ((resolv_conf, True), ("search corp\n", False)):
        files = daemon_configs.cluster_files((), daemon_configs.parse_resolvers(text))
        corefile = files[daemon_configs.STATE / "Corefile"]
        assert ("  forward . 127.0.0.53\n" in corefile) == expected
        assert ("forward" in corefile) == expected


def _node(status="True", heartbeat="2026-01-01T00:00:10Z", taints=()):
    ready = {"type": "Ready", "status": status, "message": "cni missing", "lastHeartbeatTime": heartbeat}
    return {"spec": {"taints": [{"key": key} for key in taints]}, "status": {"conditions": [ready]}}


def test_unready_reason_ignores_reports_from_before_this_start():
    since = 1767225605.0  # 2026-01-01T00:00:05Z
    assert unready_reason(_node(), since) == ""
    assert (
        unready_reason(_node(heartbeat="2026-01-01T00:00:01Z"), since) == "has not reported since this start"
    )
    assert unready_reason(_node(status="False"), since) == "cni missing"
    assert "taint" in unready_reason(_node(taints=["node.kubernetes.io/not-ready"]), since)
    assert unready_reason(None, since) == "has not registered"


def test_cgroups_of_version_1_get_the_cpus_of_the_machine(tmp_path):
    """Files of a real hierarchy appear when the folder is created; here the group exists already."""
    for folder, cpus in (("", "0-3\n"), ("paddle-training/", "\n"), ("paddle-training/node1/", "\n")):
        write_files(tmp_path, {f"{folder}cpuset.cpus": cpus, f"{folder}cpuset.mems": cpus})
    supervisor.create_cgroups(tmp_path, plan_nodes(1))
    assert (tmp_path / "paddle-training" / "node1" / "cpuset.cpus").read_text() == "0-3\n"


def test_cgroups_of_version_2_pass_on_the_controllers(tmp_path):
    below = ("paddle-training/", "paddle-training/node1/", "paddle-training/node2/")
    write_files(tmp_path, {f"{folder}cgroup.controllers": "memory\n" for folder in ("", *below)})
    write_files(tmp_path, {f"{folder}cpuset.cpus": "\n" for folder in below})  # the top has no such file
    supervisor.create_cgroups(tmp_path, plan_nodes(2))
    for folder in ("", *below):
        assert (tmp_path / folder / "cgroup.subtree_control").read_text() == "+memory"


def test_daemon_starts_under_its_condition_restarts_and_stays_stopped_while_held(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "HELD", tmp_path)
    monkeypatch.setattr(supervisor, "LOGS", tmp_path)
    monkeypatch.setattr(supervisor, "RESTART_SECONDS", 0)
    conditions = [False, True, False, True, True]
    daemon = supervisor.Daemon("sleeper", ["sleep", "60"], lambda: conditions.pop(0))
    daemon.step()
    assert daemon.state == "not started yet"
    daemon.step()
    first = daemon.process
    assert daemon.state == "running"
    first.kill()
    first.wait()
    daemon.step()
    assert daemon.state == "exited with -9"
    daemon.step()
    second = daemon.process
    assert second.pid != first.pid
    (tmp_path / "sleeper").touch()
    daemon.step()
    second.wait(10)
    daemon.step()
    daemon.step()
    assert daemon.state == "exited with -9"
    (tmp_path / "sleeper").unlink()
    daemon.step()
    third = daemon.process
    third.kill()
    third.wait()
    assert conditions == []


def test_supervisor_reaps_orphans_and_survives_without_any_child():
    code = """if True:
        import os
        from local.cluster.supervisor import _reap_orphans
        child = os.fork() or os._exit(0)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        _reap_orphans(set())
        assert not os.path.exists(f"/proc/{child}")
        _reap_orphans(set())
    """
    subprocess.run([sys.executable, "-c", code], cwd=CLONE, check=True, timeout=60)


def test_a_full_disk_does_not_end_the_supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "HELD", tmp_path)
    monkeypatch.setattr(supervisor, "LOGS", tmp_path)
    daemon = supervisor.Daemon("short", ["true"], lambda: True)
    daemon.step()
    daemon.process.wait()
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(supervisor, "print", full, raising=False)
    monkeypatch.setattr(supervisor, "write_file_atomically", full)
    daemon.step()
    assert daemon.state == "exited with 0"
    assert supervisor.write_states([daemon], "") == "", "the next call writes them"


def test_a_start_waits_for_a_status_that_reads_the_running_process(tmp_path, monkeypatch):
    """`make status` holds a shared lock for a moment."""
    monkeypatch.setattr(cluster_lifecycle, "RUNNING", tmp_path / "cluster.pid")
    monkeypatch.setattr(cluster_lifecycle, "LOGS", tmp_path)
    started = []
    monkeypatch.setattr(cluster_lifecycle.subprocess, "Popen", lambda argv, **_: started.append(argv))
    with (tmp_path / "cluster.pid").open("w") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        timer = threading.Timer(0.3, fcntl.flock, (reader, fcntl.LOCK_UN))
        timer.start()
        cluster_lifecycle._start_supervisor(3)
        timer.join()
    assert started
