"""Connections that the NetworkPolicies admit: only those between pods of one training."""

from __future__ import annotations

import ipaddress

import pytest
from chart_tools import CHART, ONE_MACHINE, SERVING, one, render

OWN = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "demo"}
TRAINING = OWN | {"app.kubernetes.io/component": "training"}


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
    """Return the ports outside the release that a pod may connect to, in addition to those of DNS."""
    found = {
        (port["protocol"], port["port"])
        for rule in policy["egress"]
        for port in rule.get("ports", [])
        if not any("podSelector" in peer for peer in rule.get("to", []))
    }
    assert {("UDP", 53), ("TCP", 53)} <= found
    return {port for protocol, port in found if (protocol, port) not in {("UDP", 53), ("TCP", 53)}}


def test_exactly_one_policy_selects_each_pod():
    """The command line's reader pod is one of them."""
    training, data = policies()
    for component in ("training", "data", "reader", "test"):
        labels = OWN | {"app.kubernetes.io/component": component}
        under = [matches(policy["podSelector"], labels) for policy in (training, data)]
        assert under == [component == "training", component != "training"], component
    stranger = TRAINING | {"app.kubernetes.io/instance": "other"}
    assert not any(matches(policy["podSelector"], stranger) for policy in (training, data))
    assert set(training["policyTypes"]) == set(data["policyTypes"]) == {"Ingress", "Egress"}
    peers = [peer for rule in data["egress"] for peer in rule.get("to", []) if "podSelector" in peer]
    assert peers == [{"podSelector": {"matchLabels": TRAINING}}], "on peerPort only: network_test.yaml"


HTTP = {"source": "http://example.org/a", "sha256": "0" * 64}
BY_TRAINING_PODS = {**HTTP, "testSource": "s3://bucket/b", "preparedBy": "trainingPods"}


@pytest.mark.parametrize(
    ("scenario", "values", "training", "data"),
    [
        ("one-machine", {}, set(), set()),
        # The node mounts the storage: a program that speaks NFS (2049) would be root on the whole file system.
        *((name, {}, set(), {443}) for name in ("efs-csi", "nfs", "host-path", "existing-claim")),
        ("api-rendezvous", {}, {443, 6443}, {443}),
        ("one-machine", {"notify": {"events": True}}, {443, 6443}, set()),
        ("one-machine", {"notify": {"webhook": {"secretName": "chat"}}}, {443}, set()),
        ("one-machine", {"training": {"initModelPath": "s3://bucket/a"}}, {443, 80}, set()),
        ("s3-source-and-export", {}, {443, 80}, {443, 80}),
        # networkPolicy.extraEgress opens another port for both Jobs.
        ("s3-compatible-store", {}, {443, 80, 9000}, {443, 80, 9000}),
        ("one-machine", {"data": HTTP}, set(), {443, 80}),
        ("one-machine", {"data": {"source": "file://a", "testSource": "s3://bucket/b"}}, set(), {443, 80}),
        ("one-machine", {"data": BY_TRAINING_PODS}, {443, 80}, {443, 80}),
        ("one-machine", {"data": {**BY_TRAINING_PODS, "enabled": False}}, set(), {443, 80}),
        # Each Job of a schedule prepares its own data.
        ("one-machine", {"data": HTTP, "training": {"schedule": "@daily"}}, {443, 80}, {443, 80}),
    ],
)
def test_pods_reach_dns_and_exactly_the_ports_that_the_values_need(scenario, values, training, data):
    found = policies(CHART / "ci" / f"{scenario}.yaml", values=values)
    assert tuple(map(ports, found)) == (training, data)
    for policy in found:
        open_rules = [rule["to"] for rule in policy["egress"] if not rule.get("ports")]
        extra = [{"ipBlock": {"cidr": "10.1.0.0/16"}}]  # networkPolicy.extraEgress of s3-source-and-export
        assert [peers for peers in open_rules if "podSelector" not in str(peers) and peers != extra] == []


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
    assert excepted(cidr, SERVING, "s3Cidrs", {"image": "example.org/a"}) == expected
