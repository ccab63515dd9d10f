"""Connections that the NetworkPolicies admit: only those between pods of one training."""

from __future__ import annotations

import ipaddress

import pytest
from chart_tools import CHART, ONE_MACHINE, helm_template, one, render

OWN = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "demo"}
TRAINING = OWN | {"app.kubernetes.io/component": "training"}
HELM_TEST = {
    "from": [{"podSelector": {"matchLabels": OWN | {"app.kubernetes.io/component": "test"}}}],
    "ports": [{"port": 7168, "protocol": "TCP"}],
}


def policies(*files, values=None):
    made = render(*(files or (ONE_MACHINE,)), values=values)
    found = {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "NetworkPolicy"}
    name = one(made, "Service")["metadata"]["name"]
    return found[f"{name}-training"], found[f"{name}-data"]


def matches(selector, labels):
    """Return whether a label selector (matchLabels and NotIn) selects a pod with these labels."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) not in rule["values"] for rule in selector.get("matchExpressions", [])
    )


def ports(policy):
    """Return the ports outside the release that a pod may connect to."""
    return {
        (port["protocol"], port["port"])
        for rule in policy["egress"]
        for port in rule.get("ports", [])
        if not any("podSelector" in peer for peer in rule.get("to", []))
    }


def test_exactly_one_policy_selects_each_pod_of_the_release():
    """This includes the command line's reader pod."""
    training, data = policies()
    for component in ("training", "data", "reader", "test"):
        labels = OWN | {"app.kubernetes.io/component": component}
        under = [matches(policy["podSelector"], labels) for policy in (training, data)]
        assert under == [component == "training", component != "training"], component
    stranger = TRAINING | {"app.kubernetes.io/instance": "other"}
    assert not any(matches(policy["podSelector"], stranger) for policy in (training, data))


def test_only_training_pods_of_the_release_may_connect_to_training_pods():
    training, _ = policies()
    assert set(training["policyTypes"]) == {"Ingress", "Egress"}
    assert training["ingress"] == [{"from": [{"podSelector": {"matchLabels": TRAINING}}]}, HELM_TEST]


def test_helm_test_pod_may_connect_to_peer_port_of_training_pods_and_accepts_no_connection():
    _, data = policies()
    [rule] = [rule for rule in data["egress"] if any("podSelector" in peer for peer in rule.get("to", []))]
    assert rule == {"to": [{"podSelector": {"matchLabels": TRAINING}}], "ports": HELM_TEST["ports"]}
    pod = one(render(ONE_MACHINE), "Pod")
    assert matches(data["podSelector"], pod["metadata"]["labels"])
    assert matches(HELM_TEST["from"][0]["podSelector"], pod["metadata"]["labels"])


def test_metrics_from_admits_its_peers_on_peer_port_only():
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {"networkPolicy": {"metricsFrom": [prometheus]}, "peerPort": 9000}
    training, data = policies(values=values)
    assert training["ingress"][2:] == [{"from": [prometheus], "ports": [{"port": 9000, "protocol": "TCP"}]}]
    assert "ingress" not in data


def test_data_pod_accepts_no_connection():
    _, data = policies()
    assert "ingress" not in data
    assert "Ingress" in data["policyTypes"]


def test_pods_connect_only_to_dns_by_default():
    training, data = policies()
    assert ports(training) == ports(data) == {("UDP", 53), ("TCP", 53)}


@pytest.mark.parametrize("scenario", ["efs-csi", "nfs", "host-path", "existing-claim"])
def test_no_pod_reaches_nfs_since_the_node_mounts_the_storage(scenario):
    """A program that speaks NFS would be root on the whole file system."""
    for policy in policies(CHART / "ci" / f"{scenario}.yaml"):
        assert ("TCP", 2049) not in ports(policy)
        assert all(rule.get("ports") for rule in policy["egress"] if "podSelector" not in str(rule))


def test_api_server_is_reached_only_with_rendezvous_api():
    training, data = policies(CHART / "ci" / "api-rendezvous.yaml")
    assert {("TCP", 443), ("TCP", 6443)} <= ports(training)
    assert ("TCP", 6443) not in ports(data)


def test_events_and_webhook_open_the_api_server_and_https_for_training_pods_only():
    training, data = policies(values={"notify": {"events": True}})
    assert ports(training) - ports(data) == {("TCP", 443), ("TCP", 6443)}
    training, data = policies(values={"notify": {"webhook": {"secretName": "chat"}}})
    assert ports(training) - ports(data) == {("TCP", 443)}


def test_initial_model_in_a_bucket_is_reached_by_training_pods_only():
    training, data = policies(values={"training": {"initModelPath": "s3://bucket/a"}})
    assert ports(training) - ports(data) == {("TCP", 443), ("TCP", 80)}


def test_s3_source_opens_https_to_the_given_networks_and_the_pod_identity_agent():
    for policy in policies(CHART / "ci" / "s3-source-and-export.yaml"):
        https = [
            rule for rule in policy["egress"] if {"port": 443, "protocol": "TCP"} in rule.get("ports", [])
        ]
        assert [rule["to"] for rule in https] == [[{"ipBlock": {"cidr": "10.0.0.0/16"}}]]
        assert {
            "to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}],
            "ports": [{"port": 80, "protocol": "TCP"}],
        } in policy["egress"]


def test_extra_egress_opens_another_port_for_both_jobs():
    for policy in policies(CHART / "ci" / "s3-compatible-store.yaml"):
        assert ("TCP", 9000) in ports(policy)


def test_http_source_opens_port_80_for_the_data_pod_only():
    training, data = policies(values={"data": {"source": "http://example.org/a", "sha256": "0" * 64}})
    assert ("TCP", 80) in ports(data)
    assert ("TCP", 80) not in ports(training)


def test_training_pods_that_prepare_data_reach_the_source_and_the_test_source():
    sources = {"source": "http://example.org/a", "sha256": "0" * 64, "testSource": "s3://bucket/b"}
    training, data = policies(values={"data": {**sources, "preparedBy": "trainingPods"}})
    opened = {("TCP", 80), ("TCP", 443), ("UDP", 53), ("TCP", 53)}
    assert ports(training) == ports(data) == opened
    there, _ = policies(values={"data": {**sources, "preparedBy": "trainingPods", "enabled": False}})
    assert ports(there) == {("UDP", 53), ("TCP", 53)}


def test_data_pod_reaches_a_test_source_in_a_bucket():
    _, data = policies(values={"data": {"source": "file://a", "testSource": "s3://bucket/b"}})
    assert ("TCP", 443) in ports(data)


def excepted(cidr, chart=CHART, key="sourceCidrs", values=None):
    """Return what the policies of a chart except from one network that they open."""
    values = {**(values or {"data": {"source": "https://example.org/a"}}), "networkPolicy": {key: [cidr]}}
    made = render(*(() if chart == CHART else (chart / "ci" / "export.yaml",)), values=values, chart=chart)
    rules = [rule for item in made if item["kind"] == "NetworkPolicy" for rule in item["spec"]["egress"]]
    blocks = [peer["ipBlock"] for rule in rules for peer in rule.get("to", []) if "ipBlock" in peer]
    found = {tuple(block.get("except", ())) for block in blocks if block["cidr"] == cidr}
    assert len(found) == 1, found
    return list(found.pop())


NETWORKS = (
    "0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "168.0.0.0/7", "169.0.0.0/8", "169.254.0.0/16", "169.254.169.128/25",
    "169.254.169.255/31", "169.254.169.0/25", "169.254.168.0/24", "10.0.0.0/8", "170.0.0.0/8",
    "::/0", "8000::/1", "::/1", "fc00::/7", "fd00::/8", "fd00:ec2::/32", "fd00:EC2:0:0::/64", "fd00:ec2::254/127",
    "fd00:ec2:0:0:0:0:0:0/96", "fd00:ec3::/32", "fd00:ec2::256/127", "2000::/3", "::fd00:ec2/96",
)  # fmt: skip


@pytest.mark.parametrize("cidr", NETWORKS)
def test_metadata_service_is_excepted_from_each_network_that_contains_it(cidr):
    """The metadata service returns the credentials of the node's role; Kubernetes rejects an `except` outside."""
    network = ipaddress.ip_network(cidr, strict=False)
    metadata = "169.254.169.254" if network.version == 4 else "fd00:ec2::254"
    expected = [f"{metadata}/{network.max_prefixlen}"] if ipaddress.ip_address(metadata) in network else []
    assert excepted(cidr) == expected
    api = {"rendezvous": "api", "data": {"source": "file://a"}}
    assert excepted(cidr, key="apiServerCidrs", values=api) == expected
    serving = CHART.parent / "paddle-serving"
    assert excepted(cidr, serving, "s3Cidrs", {"image": "example.org/a"}) == expected


@pytest.mark.parametrize("cidr", ["169.254.169.254/32", "fd00:ec2::254/128", "fd00:0ec2:0::254/128"])
def test_network_that_is_the_metadata_service_is_rejected(cidr):
    done = helm_template(ONE_MACHINE, values={"networkPolicy": {"sourceCidrs": [cidr]}})
    assert done.returncode
    assert f'networkPolicy.sourceCidrs is "{cidr}"' in done.stderr
