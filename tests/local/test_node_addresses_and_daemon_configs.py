"""Tests of the planned addresses and of the daemons' configuration files and command lines."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from local.cluster import daemon_configs, node_lifecycle, node_network
from local.cluster.api_requests import unready_reason
from local.cluster.node_addresses import NODE_SUBNET, POD_SUBNET, all_possible_nodes, plan_nodes
from local.errors import LocalError


@pytest.mark.parametrize("count", [0, 6, -1])
def test_plan_nodes_with_a_count_outside_the_range_raises_an_error_with_the_range(count):
    with pytest.raises(LocalError, match=rf"NODES={count}: .*1 to 5"):
        plan_nodes(count)


def test_every_node_has_unique_addresses_subnets_and_folders_inside_the_clusters():
    every = all_possible_nodes()
    for what in ("name", "address", "pod_subnet", "netns", "link", "cgroup", "folder", "socket"):
        assert len({getattr(node, what) for node in every}) == len(every)
    for node in every:
        assert ipaddress.ip_address(node.address) in ipaddress.ip_network(NODE_SUBNET)
        assert ipaddress.ip_network(node.pod_subnet).subnet_of(ipaddress.ip_network(POD_SUBNET))
        assert len(str(node.socket)) < 108  # the kernel's limit for a socket's path
        assert len(node.link) <= 15  # the kernel's limit for the name of a link


def test_overlapping_routes_returns_only_routes_of_other_networks():
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.88.4.0/22", "dev": "vpn0"},
        {"dst": "10.88.1.0/24", "dev": "pt0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
    ]
    assert node_network.overlapping_routes(routes) == ["10.88.4.0/22 of vpn0"]


def test_node_configs_refer_only_to_the_nodes_own_folder():
    one, two = plan_nodes(2)
    for render in (
        daemon_configs.cni_config,
        daemon_configs.containerd_config,
        daemon_configs.kubelet_config,
    ):
        assert str(one.folder) in render(one)
        assert str(two.folder) not in render(one)


def test_api_server_listens_only_on_the_bridge(tmp_path):
    assert "--bind-address=10.87.0.1" in daemon_configs.apiserver_command(tmp_path / "kube-apiserver")


def test_corefile_forwards_other_names_to_the_machines_resolvers(tmp_path):
    outside = daemon_configs.parse_resolvers(
        "# comment\nsearch corp\nnameserver 192.0.2.53\nnameserver 10.87.0.1\n"
    )
    assert outside == ["192.0.2.53"]
    assert "forward . 192.0.2.53" in daemon_configs.corefile(tmp_path / "k", outside)
    assert "forward ." not in daemon_configs.corefile(tmp_path / "k", [])


def _node(status="True", heartbeat="2026-01-01T00:00:10Z", taints=()):
    return {
        "spec": {"taints": [{"key": key} for key in taints]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": status, "message": "cni missing", "lastHeartbeatTime": heartbeat}
            ]
        },
    }


def test_unready_reason_ignores_reports_from_before_this_start():
    since = 1767225605.0  # 2026-01-01T00:00:05Z
    assert unready_reason(_node(), since) == ""
    assert (
        unready_reason(_node(heartbeat="2026-01-01T00:00:01Z"), since) == "has not reported since this start"
    )
    assert unready_reason(_node(status="False"), since) == "cni missing"
    assert "taint" in unready_reason(_node(taints=["node.kubernetes.io/not-ready"]), since)
    assert unready_reason(None, since) == "has not registered"


def test_a_stopped_node_leaves_no_links_to_its_container_logs(tmp_path: Path) -> None:
    logs, node = tmp_path / "containers", tmp_path / "node-1"
    logs.mkdir()
    node.mkdir()
    (logs / "dangling.log").symlink_to(node / "pod-logs" / "gone" / "0.log")
    (node / "0.log").touch()
    (logs / "intact.log").symlink_to(node / "0.log")
    (logs / "of-another-node.log").symlink_to(tmp_path / "node-10" / "0.log")
    (logs / "a-file.log").touch()
    node_lifecycle.remove_links_below(logs, node)
    assert sorted(file.name for file in logs.iterdir()) == ["a-file.log", "of-another-node.log"]
    node_lifecycle.remove_links_below(tmp_path / "absent", node)
