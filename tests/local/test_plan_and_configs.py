"""Addresses, settings and command lines are pure, so they are tested by value."""

from __future__ import annotations

import ipaddress
import json

import pytest

from local.cluster import configs, network
from local.cluster.api import why_unready
from local.cluster.plan import NODE_SUBNET, POD_SUBNET, every_node, nodes
from local.errors import LocalError


@pytest.mark.parametrize("count", [0, 6, -1])
def test_a_cluster_of_no_or_too_many_nodes_is_refused_with_the_range(count):
    with pytest.raises(LocalError, match=rf"NODES={count}: .*1 to 5"):
        nodes(count)


def test_nodes_have_addresses_subnets_and_folders_of_their_own_inside_ours():
    every = every_node()
    for what in ("name", "address", "pod_subnet", "netns", "link", "cgroup", "folder", "socket"):
        assert len({getattr(node, what) for node in every}) == len(every)
    for node in every:
        assert ipaddress.ip_address(node.address) in ipaddress.ip_network(NODE_SUBNET)
        assert ipaddress.ip_network(node.pod_subnet).subnet_of(ipaddress.ip_network(POD_SUBNET))
        assert len(str(node.socket)) < 108  # the kernel's limit for a socket's path


def test_links_fit_the_kernels_fifteen_letters():
    assert all(len(node.link) <= 15 for node in every_node())


def test_a_route_of_the_machine_that_overlaps_ours_is_named():
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.88.4.0/22", "dev": "vpn0"},
        {"dst": "10.88.1.0/24", "dev": "pt0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
    ]
    assert network.clashes(routes) == ["10.88.4.0/22 of vpn0"]


def test_each_node_keeps_everything_below_its_own_folder():
    one, two = nodes(2)
    for render in (configs.cni, configs.containerd, configs.kubelet):
        assert str(one.folder) in render(one)
        assert str(two.folder) not in render(one)


def test_the_kubelet_never_collects_images_and_keeps_its_pods_logs_apart():
    kubelet = json.loads(configs.kubelet(nodes(1)[0]))
    assert kubelet["imageGCHighThresholdPercent"] == 100
    assert kubelet["cgroupRoot"] == "/pt-node1"
    assert kubelet["podLogsDir"].endswith("/node1/pod-logs")


def test_daemons_of_a_node_keep_the_machines_sys(tmp_path):
    command = configs.kubelet_command(nodes(1)[0], tmp_path / "kubelet")
    assert command[:2] == ["nsenter", "--net=/run/netns/pt-node1"]


def test_the_api_server_listens_on_the_bridge_only(tmp_path):
    assert "--bind-address=10.87.0.1" in configs.apiserver(tmp_path / "kube-apiserver")


def test_names_outside_the_cluster_are_forwarded_to_the_machines_resolvers(tmp_path):
    outside = configs.resolvers("# comment\nsearch corp\nnameserver 192.0.2.53\nnameserver 10.87.0.1\n")
    assert outside == ["192.0.2.53"]
    assert "forward . 192.0.2.53" in configs.corefile(tmp_path / "k", outside)
    assert "forward" not in configs.corefile(tmp_path / "k", [])


def _node(status="True", heartbeat="2026-01-01T00:00:10Z", taints=()):
    return {
        "spec": {"taints": [{"key": key} for key in taints]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": status, "message": "cni missing", "lastHeartbeatTime": heartbeat}
            ]
        },
    }


def test_a_node_counts_as_ready_only_by_what_it_said_since_this_start():
    since = 1767225605.0  # 2026-01-01T00:00:05Z
    assert why_unready(_node(), since) == ""
    assert why_unready(_node(heartbeat="2026-01-01T00:00:01Z"), since) == "has not reported since this start"
    assert why_unready(_node(status="False"), since) == "cni missing"
    assert "taint" in why_unready(_node(taints=["node.kubernetes.io/not-ready"]), since)
    assert why_unready(None, since) == "has not registered"
