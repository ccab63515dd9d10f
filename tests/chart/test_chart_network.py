"""Whom the network policies admit: the training's own pods, and nobody else."""

from __future__ import annotations

from chart_tools import CHART, ONE_MACHINE, render

OWN = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "demo"}
TRAINING = OWN | {"app.kubernetes.io/component": "training"}


def policies(*files, values=None):
    made = render(*(files or (ONE_MACHINE,)), values=values)
    found = {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "NetworkPolicy"}
    return found["demo-training"], found["demo-data"]


def matches(selector, labels):
    """Whether a label selector takes a pod with these labels (matchLabels and NotIn, as used here)."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) not in rule["values"] for rule in selector.get("matchExpressions", [])
    )


def ports(policy):
    """Ports that may be reached outside the release."""
    return {
        (port["protocol"], port["port"])
        for rule in policy["egress"]
        for port in rule.get("ports", [])
        if not any("podSelector" in peer for peer in rule.get("to", []))
    }


def test_each_pod_of_the_release_is_under_exactly_one_policy():
    """The command line's reader pod counts as well: no pod is left open."""
    training, data = policies()
    for component in ("training", "data", "reader"):
        labels = OWN | {"app.kubernetes.io/component": component}
        under = [matches(policy["podSelector"], labels) for policy in (training, data)]
        assert under == [component == "training", component != "training"], component
    stranger = TRAINING | {"app.kubernetes.io/instance": "other"}
    assert not any(matches(policy["podSelector"], stranger) for policy in (training, data))


def test_training_pods_are_reached_by_this_releases_training_pods_on_all_ports_and_by_nobody_else():
    training, _ = policies()
    assert set(training["policyTypes"]) == {"Ingress", "Egress"}
    assert training["ingress"] == [{"from": [{"podSelector": {"matchLabels": TRAINING}}]}]


def test_metrics_are_open_to_whom_a_person_names_on_that_one_port():
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {"networkPolicy": {"metricsFrom": [prometheus]}, "peerPort": 9000}
    training, data = policies(values=values)
    assert training["ingress"][1:] == [{"from": [prometheus], "ports": [{"port": 9000, "protocol": "TCP"}]}]
    assert "ingress" not in data


def test_nobody_reaches_the_data_pod():
    _, data = policies()
    assert "ingress" not in data
    assert "Ingress" in data["policyTypes"]


def test_without_need_pods_reach_names_only():
    training, data = policies()
    assert ports(training) == ports(data) == {("UDP", 53), ("TCP", 53)}


def test_efs_is_reached_on_2049_only():
    training, data = policies(CHART / "ci" / "efs-csi.yaml")
    assert ("TCP", 2049) in ports(training)
    assert ports(data) == {("UDP", 53), ("TCP", 53), ("TCP", 2049), ("TCP", 443)}


def test_only_the_api_rendezvous_opens_the_api_server():
    training, data = policies(CHART / "ci" / "api-rendezvous.yaml")
    assert {("TCP", 443), ("TCP", 6443)} <= ports(training)
    assert ("TCP", 6443) not in ports(data)


def test_events_open_the_api_server_and_a_webhook_https_for_the_training_alone():
    training, data = policies(values={"notify": {"events": True}})
    assert ports(training) - ports(data) == {("TCP", 443), ("TCP", 6443)}
    training, data = policies(values={"notify": {"webhook": {"secretName": "chat"}}})
    assert ports(training) - ports(data) == {("TCP", 443)}


def test_a_model_to_begin_from_in_a_bucket_is_reached_by_the_training_alone():
    training, data = policies(values={"training": {"initFrom": "s3://bucket/a"}})
    assert ports(training) - ports(data) == {("TCP", 443), ("TCP", 80)}


def test_s3_opens_https_to_the_given_blocks_and_the_pod_identity_agent():
    for policy in policies(CHART / "ci" / "s3-source-and-export.yaml"):
        https = [
            rule for rule in policy["egress"] if {"port": 443, "protocol": "TCP"} in rule.get("ports", [])
        ]
        assert [rule["to"] for rule in https] == [[{"ipBlock": {"cidr": "10.0.0.0/16"}}]]
        assert {
            "to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}],
            "ports": [{"port": 80, "protocol": "TCP"}],
        } in policy["egress"]


def test_a_store_on_a_port_of_its_own_is_reached_by_both_jobs_through_extra_egress():
    for policy in policies(CHART / "ci" / "s3-compatible-store.yaml"):
        assert ("TCP", 9000) in ports(policy)


def test_plain_http_opens_port_80_for_the_data_pod_alone():
    training, data = policies(values={"data": {"source": "http://example.org/a", "sha256": "0" * 64}})
    assert ("TCP", 80) in ports(data)
    assert ("TCP", 80) not in ports(training)


def test_an_open_block_never_holds_the_nodes_metadata_service():
    """It would hand out the node's role."""
    for policy in policies(CHART / "ci" / "minimal.yaml"):
        blocks = [
            peer["ipBlock"] for rule in policy["egress"] for peer in rule.get("to", []) if "ipBlock" in peer
        ]
        assert blocks
        assert all(
            block.get("except") == ["169.254.169.254/32"] for block in blocks if block["cidr"] == "0.0.0.0/0"
        )
