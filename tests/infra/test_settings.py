"""Every setting that is refused, with its key, value, limit, reason and mend; and those that are not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from infra import capacity, checks, reading, settings
from infra.problems import SettingsError

from .support import AWS, LOCAL, ROOT, config


def _refused(given: dict[str, str]) -> list[Any]:
    with pytest.raises(SettingsError) as caught:
        settings.load(given)
    for problem in caught.value.problems:
        assert problem.limit, problem.key
        assert problem.reason, problem.key
        assert problem.mend, problem.key
    return list(caught.value.problems)


NETWORK = [
    ({"vpcCidr": "10.0.0.0/8"}, "network.vpcCidr", "/16 to /22"),
    ({"vpcCidr": "10.0.0.0/23"}, "network.vpcCidr", "/16 to /22"),
    ({"vpcCidr": "10.0.0.1/16"}, "network.vpcCidr", "without host bits"),
    ({"vpcCidr": "ten"}, "network.vpcCidr", "CIDR"),
    ({"serviceCidr": "10.0.8.0/22"}, "network.serviceCidr", "outside the VPC"),
    ({"serviceCidr": "172.20.0.0/25"}, "network.serviceCidr", "/12 to /24"),
    ({"serviceCidr": "8.8.0.0/16"}, "network.serviceCidr", "inside 10.0.0.0/8"),
    ({"zones": 1}, "network.zones", "2 to 3"),
    ({"zones": 4}, "network.zones", "2 to 3"),
    ({"availabilityZones": ["us-east-1a", "us-west-2a"]}, "network.availabilityZones", "us-west-2"),
    ({"availabilityZones": ["us-west-2a"]}, "network.availabilityZones", "2"),
    ({"availabilityZones": ["us-west-2a", "us-west-2a"]}, "network.availabilityZones", "different"),
    ({"availabilityZones": ["us-west-2-lax-1a", "us-west-2a"]}, "network.availabilityZones", "us-west-2"),
    ({"nat": "many"}, "network.nat", "single, per-az, none"),
    ({"vpcId": "vpc-0a"}, "network.subnetIds", "set together"),
    ({"subnetIds": ["subnet-0a", "subnet-0b"]}, "network.subnetIds", "set together"),
    ({"vpcId": "vpc-0a", "subnetIds": ["subnet-0a"]}, "network.subnetIds", "at least two"),
    ({"vpcId": "my-vpc"}, "network.vpcId", "vpc-"),
    ({"vpcId": "vpc-0a", "subnetIds": ["subnet-0a", "subnet-0a"]}, "network.subnetIds", "different"),
]
OTHERS = [
    ({"cluster": {}}, "cluster.admins", "at least one"),
    (
        {"cluster": {"admins": ["arn:aws:sts::123456789012:assumed-role/Admin/me"]}},
        "cluster.admins",
        "roles or users",
    ),
    ({"cluster": {"admins": ["role/A"], "viewers": ["role/A"]}}, "cluster.viewers", "nobody who is in"),
    ({"cluster": {"admins": ["role/A"], "publicCidrs": ["0.0.0.0/0"]}}, "cluster.publicCidrs", "openToWorld"),
    ({"cluster": {"admins": ["role/A"], "publicCidrs": ["0.0.0.0/1"]}}, "cluster.publicCidrs", "openToWorld"),
    ({"cluster": {"admins": ["role/A"], "publicCidrs": ["me"]}}, "cluster.publicCidrs", "CIDR"),
    ({"cluster": {"admins": ["role/A"], "version": "1.35.4"}}, "cluster.version", "minor"),
    ({"cluster": {"admins": ["role/A"], "version": 1.3}}, "cluster.version", "a text"),
    ({"cluster": {"admins": ["role/A"], "logRetentionDays": 8}}, "cluster.logRetentionDays", "CloudWatch"),
    ({"nodes": {"min": 4, "desired": 3}}, "nodes.min", "at most nodes.desired"),
    ({"nodes": {"desired": 5, "max": 4}}, "nodes.desired", "at most nodes.max"),
    ({"nodes": {"desired": "3"}}, "nodes.desired", "a whole number"),
    ({"nodes": {"desired": True}}, "nodes.desired", "a whole number"),
    ({"nodes": {"instanceTypes": []}}, "nodes.instanceTypes", "at least one"),
    ({"nodes": {"instanceTypes": ["m6i.large", "m7g.large"]}}, "nodes.instanceTypes", "one processor"),
    ({"nodes": {"placementGroup": True}}, "nodes.placementGroup", "singleZone"),
    (
        {"nodes": {"placementGroup": True, "singleZone": True, "instanceTypes": ["t3.large"]}},
        "nodes.instanceTypes",
        "burst",
    ),
    ({"nodes": {"capacity": "spot"}}, "nodes.capacity", "ON_DEMAND, SPOT"),
    ({"nodes": {"diskGib": 8}}, "nodes.diskGib", "20 to 16384"),
    ({"dns": {"zone": "paddle"}}, "dns.zone", "two labels"),
    ({"dns": {"zone": "Paddle.internal"}}, "dns.zone", "lower-case"),
    ({"dns": {"zone": "a..b"}}, "dns.zone", "domain name"),
    ({"dns": {"externalName": "api.example.com"}}, "dns.externalName", "set together"),
    ({"dns": {"publicZoneId": "example.com"}}, "dns.publicZoneId", "hosted zone"),
    ({"kms": {"keyArn": "alias/mine"}}, "kms.keyArn", "ARN"),
    ({"kms": {"keyArn": "arn:aws:kms:eu-west-1:123456789012:key/1-2"}}, "kms.keyArn", "us-west-2"),
    ({"iam": {"path": "teams"}}, "iam.path", "slash"),
    ({"iam": {"permissionsBoundary": "Boundary"}}, "iam.permissionsBoundary", "ARN"),
    ({"tags": {"aws:x": "y"}}, "tags", "aws:"),
    ({"tags": {f"k{n}": "v" for n in range(41)}}, "tags", "at most 40"),
    ({"budget": {"dollars": 50}}, "budget.email", "budget.dollars"),
    ({"budget": {"dollars": 50, "email": "nobody"}}, "budget.email", "mail address"),
    ({"nodes": {"amiRelease": "newest"}}, "nodes.amiRelease", "release of"),
    ({"nodes": {"auto": True}, "network": {"nat": "none"}}, "nodes.auto", "nat none"),
    ({"tags": {"x": 1}}, "tags", "texts"),
    ({"storage": {"type": "s3"}}, "storage.type", "efs-csi, nfs, hostPath, existingClaim"),
    ({"storage": {"type": "hostPath"}}, "storage.path", "folder"),
    ({"storage": {"type": "existingClaim"}}, "storage.claim", "claim"),
    ({"storage": {"archiveAfterDays": 2}}, "storage.archiveAfterDays", "30"),
    ({"compute": "maybe"}, "compute", "on, off"),
    ({"target": "gcp"}, "target", "aws, kubeconfig"),
    ({"release": {"name": "x" * 54}}, "release.name", "53"),
    ({"namespace": {"name": "Paddle"}}, "namespace.name", "DNS label"),
    ({"namespace": "paddle"}, "namespace", "a mapping"),
    ({"nodes": {"desird": 3}}, "nodes.desird", "desired"),
    ({"nodse": {"desired": 3}}, "nodse", "nodes"),
    ({"valuesFiles": "one.yaml"}, "valuesFiles", "a list of texts"),
]


@pytest.mark.parametrize(("network", "key", "limit"), NETWORK)
def test_a_network_that_cannot_work_is_refused(network: dict[str, Any], key: str, limit: str) -> None:
    problems = _refused(config(**{**AWS, "network": network}))
    assert {problem.key for problem in problems} == {f"paddle-training:{key}"}
    assert limit in "\n".join(map(str, problems))


@pytest.mark.parametrize(("keys", "key", "limit"), OTHERS)
def test_a_setting_that_cannot_work_is_refused(keys: dict[str, Any], key: str, limit: str) -> None:
    problems = _refused(config(**{**AWS, **keys}))
    assert f"paddle-training:{key}" in [problem.key for problem in problems]
    assert limit in "\n".join(map(str, problems))


def test_a_missing_region_is_refused() -> None:
    assert [problem.key for problem in _refused(config(region=None, **AWS))] == ["aws:region"]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"kubeconfig": {}}, "kubeconfig.path"),
        ({"kubeconfig": {"path": "x"}}, "kubeconfig.context"),
        ({"image": ""}, "image"),
        ({"storage": {}}, "storage.type"),
        ({"storage": {"type": "nfs"}}, "storage.server"),
        ({"storage": {"type": "hostPath"}}, "storage.path"),
        ({"storage": {"type": "hostPath", "path": "shared"}}, "storage.path"),
        ({"storage": {"type": "existingClaim"}}, "storage.claim"),
        ({"compute": "off"}, "compute"),
    ],
)
def test_an_existing_cluster_needs_what_cannot_be_guessed(keys: dict[str, Any], key: str) -> None:
    problems = _refused(config(region=None, **{**LOCAL, **keys}))
    assert f"paddle-training:{key}" in [problem.key for problem in problems]


def test_all_mistakes_are_in_one_message() -> None:
    problems = _refused(config(**{**AWS, "nodes": {"min": 4}, "dns": {"zone": "x"}, "wrong": {}}))
    assert len(problems) == 3


def test_a_mistake_brings_no_second_message_about_the_default_in_its_place() -> None:
    names = {"publicZoneId": "example.com", "externalName": "paddle.example.com"}
    assert [p.key for p in _refused(config(**{**AWS, "dns": names}))] == ["paddle-training:dns.publicZoneId"]


def test_zero_and_false_are_values_and_not_absences() -> None:
    loaded = settings.load(
        config(
            **{**AWS, "nodes": {"min": 0, "desired": 0}, "storage": {"archiveAfterDays": 0, "protect": False}}
        )
    )
    assert loaded.nodes.min == 0
    assert loaded.storage.archive_after_days == 0
    assert loaded.storage.protect is False


def test_compute_off_may_be_written_as_yaml_people_write_it() -> None:
    assert settings.load(config(**{**AWS, "compute": "false"})).compute == "off"


def test_an_unknown_newer_kubernetes_is_passed_on() -> None:
    assert (
        settings.load(config(**{**AWS, "cluster": {"admins": ["role/A"], "version": "1.39"}})).cluster.version
        == "1.39"
    )


def test_keys_of_other_namespaces_are_none_of_ours() -> None:
    assert settings.load({**config(**AWS), "kubernetes:x": "1", "pulumi:tags": "{}"}).target == "aws"


VALUES = {
    "trainers": 3,
    "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
    "data": {"source": "s3://b/k"},
}


LARGE = capacity.Size(2, 8 * capacity.GIB)


def _values_problems(values: dict[str, Any], **keys: Any) -> list[str]:
    loaded = settings.load(config(**{**AWS, **keys}))
    return [str(problem) for problem in checks.value_problems(loaded, values)]


def _capacity(values: dict[str, Any], **nodes: Any) -> tuple[list[str], list[str]]:
    loaded = settings.load(config(**{**AWS, "nodes": nodes}))
    machines = dict.fromkeys(loaded.nodes.instance_types, LARGE)
    problems, warnings = checks.capacity_problems(loaded, {**VALUES, **values}, machines)
    return [str(problem) for problem in problems], warnings


def test_nodes_that_hold_all_trainers_and_the_data_pod_pass() -> None:
    assert _capacity({}) == ([], [])


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"trainers": 30}, "trainers fit"),
        ({"hostPorts": True, "trainers": 4}, "one trainer a node"),
        ({"resources": {"limits": {"memory": "20Gi"}}}, "0 trainers fit"),
        ({"resources": {"requests": {"memory": "2 GB"}}}, "no quantity"),
    ],
)
def test_pods_that_even_empty_machines_cannot_hold_are_refused(values: Any, word: str) -> None:
    problems, warnings = _capacity(values)
    assert (len(problems), warnings) == (1, [])
    assert word in problems[0]


def test_where_daemons_may_leave_too_little_it_only_warns() -> None:
    close = {"requests": {"cpu": "1500m", "memory": "6Gi"}}
    problems, warnings = _capacity({"resources": close, "data": {"resources": {"requests": {"cpu": "400m"}}}})
    assert problems == []
    assert "no room is left for the data pod" in warnings[0]


def test_no_nodes_by_intention_are_not_counted() -> None:
    assert _capacity({"trainers": 30}, min=0, desired=0) == ([], [])


def test_with_auto_the_most_nodes_count() -> None:
    assert _capacity({}, auto=True, min=0, desired=0) == ([], [])
    problems, _ = _capacity({"trainers": 30}, auto=True, min=0, desired=0)
    assert "nodes.max" in problems[0]


def test_spot_gets_several_types_of_one_size_unless_they_are_listed() -> None:
    spot = settings.load(config(**{**AWS, "nodes": {"capacity": "SPOT"}})).nodes.instance_types
    assert len(spot) > 3
    assert {kind.partition(".")[2] for kind in spot} == {"large"}
    listed = {"capacity": "SPOT", "instanceTypes": ["m5.large"]}
    assert settings.load(config(**{**AWS, "nodes": listed})).nodes.instance_types == ("m5.large",)


@pytest.mark.parametrize(
    ("source", "count"), [("https://example.com/x", 1), ("s3://b/k", 0), ("file://x", 0)]
)
def test_a_source_outside_aws_is_refused_without_nat(source: str, count: int) -> None:
    problems = _values_problems({**VALUES, "data": {"source": source}}, network={"nat": "none"})
    assert len(problems) == count


def test_every_setting_is_described_and_has_its_default_in_one_place() -> None:
    rows = list(reading.described(settings.Settings))
    assert len(rows) > 15
    assert all(description for _, description, _ in rows)
    assert "config" not in yaml.safe_load((ROOT / "Pulumi.yaml").read_text())


@pytest.mark.parametrize("stack", ["dev", "local"])
def test_the_stacks_that_come_with_the_project_load(stack: str) -> None:
    file = ROOT / {"dev": "Pulumi.dev.yaml", "local": "local/Pulumi.local.yaml"}[stack]
    written = yaml.safe_load(file.read_text())["config"]
    keys = {
        key.removeprefix("paddle-training:"): value for key, value in written.items() if key != "aws:region"
    }
    assert settings.load(config(region=written.get("aws:region"), **keys)).target in ("aws", "kubeconfig")
    assert "encryptionsalt" not in file.read_text()


def test_the_pure_modules_import_no_pulumi() -> None:
    modules = (
        "capacity",
        "chart_check",
        "chart_values",
        "cidr",
        "kubeconfigs",
        "naming",
        "policies",
        "preflight",
        "settings",
    )
    program = "; ".join(f"import infra.{name}" for name in modules)
    loaded = f"{program}; import sys; print([name for name in sys.modules if name.startswith('pulumi')])"
    ran = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
