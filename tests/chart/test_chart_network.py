"""Connections that the NetworkPolicies admit: only those between pods of one training."""

from __future__ import annotations

from chart_tools import CHART, ONE_MACHINE, one, render

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


def test_efs_is_reached_on_port_2049_only():
    training, data = policies(CHART / "ci" / "efs-csi.yaml")
    assert ("TCP", 2049) in ports(training)
    assert ports(data) == {("UDP", 53), ("TCP", 53), ("TCP", 2049), ("TCP", 443)}


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


def test_open_networks_never_include_the_nodes_metadata_service():
    """The metadata service returns the credentials of the node's role."""
    for policy in policies(CHART / "ci" / "minimal.yaml"):
        blocks = [
            peer["ipBlock"] for rule in policy["egress"] for peer in rule.get("to", []) if "ipBlock" in peer
        ]
        assert blocks
        assert all(
            block.get("except") == ["169.254.169.254/32"] for block in blocks if block["cidr"] == "0.0.0.0/0"
        )
