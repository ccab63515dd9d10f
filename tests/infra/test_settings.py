"""Settings: which are rejected (with key, value, limit, reason and fix) or accepted, and their descriptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aws.stack_access import read_stack
from infra import chart_values, settings, training
from infra.settings import SettingsError, load_settings, read_stack_config

from .recording_mocks import AWS, LOCAL, ROOT, aws_settings, aws_stack, config


def _refused(given: dict[str, str]) -> list[Any]:
    with pytest.raises(SettingsError) as caught:
        load_settings(given)
    for problem in caught.value.problems:
        assert all((problem.key, problem.reason, problem.fix)), problem
    return list(caught.value.problems)


_NETWORKS: list[tuple[dict[str, Any], str, str]] = [
    ({"vpcCidr": "10.0.0.0/8"}, "network.vpcCidr", "/16 to /22"),
    ({"vpcCidr": "10.0.0.0/23"}, "network.vpcCidr", "/16 to /22"),
    ({"vpcCidr": "10.0.0.1/16"}, "network.vpcCidr", "without host bits"),
    ({"vpcCidr": "ten"}, "network.vpcCidr", "CIDR"),
    ({"vpcCidr": "10.0.0.0"}, "network.vpcCidr", "CIDR"),
    ({"serviceCidr": "172.20.0.0/255.255.0.0"}, "network.serviceCidr", "CIDR"),
    ({"serviceCidr": "10.0.8.0/22"}, "network.serviceCidr", "outside the VPC"),
    ({"serviceCidr": "172.20.0.0/25"}, "network.serviceCidr", "/12 to /24"),
    ({"serviceCidr": "8.8.0.0/16"}, "network.serviceCidr", "inside 10.0.0.0/8"),
    ({"zones": 1}, "network.zones", "2 to 3"),
    ({"zones": 4}, "network.zones", "2 to 3"),
    ({"availabilityZones": ["us-east-1a", "us-west-2a"]}, "network.availabilityZones", "us-west-2"),
    ({"availabilityZones": ["us-west-2a"]}, "network.availabilityZones", "2"),
    ({"availabilityZones": ["us-west-2a", "us-west-2a"]}, "network.availabilityZones", "different"),
    ({"availabilityZones": ["us-west-2-lax-1a", "us-west-2a"]}, "network.availabilityZones", "us-west-2"),
    ({"nat": "many"}, "network.nat", "'single', 'per-az' or 'none'"),
    ({"vpcId": "vpc-0a"}, "network.subnetIds", "set together"),
    ({"subnetIds": ["subnet-0a", "subnet-0b"]}, "network.subnetIds", "set together"),
    ({"vpcId": "vpc-0a", "subnetIds": ["subnet-0a"]}, "network.subnetIds", "at least two"),
    ({"vpcId": "my-vpc"}, "network.vpcId", "vpc-"),
    ({"vpcId": "vpc-0a", "subnetIds": ["subnet-0a", "subnet-0a"]}, "network.subnetIds", "different"),
]
NETWORK = [({"network": network}, key, limit) for network, key, limit in _NETWORKS]
TYPES, GPUS, ADMIN = "nodes.instanceTypes", {"instanceTypes": ["g6.xlarge"]}, {"admins": ["role/A"]}
OTHERS = [
    ({"cluster": {}}, "cluster.admins", "at least one"),
    (
        {"cluster": {"admins": ["arn:aws:sts::123456789012:assumed-role/Admin/me"]}},
        "cluster.admins",
        "roles or users",
    ),
    ({"cluster": {**ADMIN, "viewers": ["role/A"]}}, "cluster.viewers", "role and user once"),
    (
        {"cluster": {"admins": ["role/A", "arn:aws:iam::123456789012:role/A"]}},
        *("cluster.admins", "role and user once"),
    ),
    ({"cluster": {**ADMIN, "viewers": ["user/b", "user/b"]}}, "cluster.viewers", "role and user once"),
    ({"cluster": ADMIN, "namespace": {"name": "kube-system"}}, "namespace.name", "a namespace of your own"),
    ({"cluster": ADMIN, "namespace": {"name": "default"}}, "namespace.name", "a namespace of your own"),
    ({"cluster": {**ADMIN, "publicCidrs": ["0.0.0.0/0"]}}, "cluster.publicCidrs", "openToWorld"),
    ({"cluster": {**ADMIN, "publicCidrs": ["0.0.0.0/1"]}}, "cluster.publicCidrs", "openToWorld"),
    ({"cluster": {**ADMIN, "publicCidrs": ["me"]}}, "cluster.publicCidrs", "CIDR"),
    ({"cluster": {**ADMIN, "publicCidrs": ["203.0.113.7"]}}, "cluster.publicCidrs", "CIDR"),
    ({"cluster": {**ADMIN, "publicCidrs": ["203.0.113.0/0.0.0.255"]}}, "cluster.publicCidrs", "CIDR"),
    ({"cluster": {**ADMIN, "version": "1.35.4"}}, "cluster.version", "minor"),
    ({"cluster": {**ADMIN, "version": 1.3}}, "cluster.version", "a valid string"),
    ({"cluster": {**ADMIN, "logRetentionDays": 8}}, "cluster.logRetentionDays", "CloudWatch"),
    ({"nodes": {"min": 4, "desired": 3}}, "nodes.min", "at most nodes.desired"),
    ({"nodes": {"auto": True, "min": 4}}, "nodes.min", "at most nodes.max"),
    ({"nodes": {"desired": 5, "max": 4}}, "nodes.desired", "at most nodes.max"),
    ({"nodes": {"desired": "3"}}, "nodes.desired", "a valid integer"),
    ({"nodes": {"desired": True}}, "nodes.desired", "a valid integer"),
    ({"nodes": {"instanceTypes": []}}, TYPES, "at least one"),
    ({"nodes": {"instanceTypes": ["m6i.large", "m7g.large"]}}, TYPES, "one processor"),
    ({"nodes": {"instanceTypes": ["m6i.large", "g6.xlarge"]}}, TYPES, "remove either g6.xlarge or"),
    ({"nodes": {"instanceTypes": ["g5g.xlarge"]}}, TYPES, "an image for arm64"),
    ({"nodes": {"instanceTypes": ["g6f.xlarge"]}}, TYPES, "types without GPUs, or of g4dn, g5"),
    ({"nodes": {**GPUS, "placementGroup": True}}, TYPES, "no GPU types with"),
    ({"nodes": GPUS, "network": {"nat": "none"}}, TYPES, "no GPU types with network.nat none"),
    ({"nodes": {"placementGroup": True, "singleZone": False}}, "nodes.placementGroup", "singleZone"),
    ({"nodes": {"placementGroup": True, "instanceTypes": ["t3.large"]}}, TYPES, "burst"),
    ({"nodes": {"fallback": True, "auto": True}}, "nodes.fallback", "nodes.capacity is SPOT"),
    ({"nodes": {"fallback": True, "capacity": "SPOT"}}, "nodes.fallback", "nodes.auto is true"),
    ({"nodes": {"capacity": "spot"}}, "nodes.capacity", "'ON_DEMAND' or 'SPOT'"),
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
    ({"artifacts": {"uploads": {"a/b": "x", "a-b": "y"}}}, "artifacts.uploads", "differs from a/b"),
    ({"budget": {"dollars": 50}}, "budget.email", "budget.dollars"),
    ({"budget": {"dollars": 50, "email": "nobody"}}, "budget.email", "e-mail address"),
    ({"nodes": {"amiRelease": "latest"}}, "nodes.amiRelease", "release of"),
    ({"nodes": {"auto": True}, "network": {"nat": "none"}}, "nodes.auto", "nat none"),
    ({"tags": {"x": 1}}, "tags", "at most 40 tags"),
    ({"storage": {"type": "s3"}}, "storage.type", "'hostPath' or 'existingClaim'"),
    ({"storage": {"type": "hostPath"}}, "storage.path", "folder"),
    ({"storage": {"type": "existingClaim"}}, "storage.claim", "claim"),
    ({"storage": {"archiveAfterDays": 2}}, "storage.archiveAfterDays", "30"),
    ({"compute": "maybe"}, "compute", "'on' or 'off'"),
    ({"target": "gcp"}, "target", "'aws' or 'kubeconfig'"),
    ({"release": {"name": "x" * 54}}, "release.name", "53"),
    ({"namespace": {"name": "Paddle"}}, "namespace.name", "DNS label"),
    ({"namespace": "paddle"}, "namespace", "a mapping"),
    ({"nodes": {"desird": 3}}, "nodes.desird", "desired"),
    ({"nodse": {"desired": 3}}, "nodse", "nodes"),
    ({"valuesFiles": "one.yaml"}, "valuesFiles", "a list"),
    ({"valuesFiles": ["one.yaml", 3]}, "valuesFiles", "replace 3 in valuesFiles by a valid string"),
    ({"artifacts": {"uploads": {"a": 3}}}, "artifacts.uploads", "a mapping in which each value is"),
]


@pytest.mark.parametrize(("keys", "key", "limit"), [*NETWORK, *OTHERS])
def test_settings_invalid_value_raises(keys: dict[str, Any], key: str, limit: str) -> None:
    problems = _refused(config(**{**AWS, **keys}))
    assert {problem.key for problem in problems} == {f"paddle-training:{key}"}
    assert limit in "\n".join(map(str, problems))


def test_settings_missing_region_raises() -> None:
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
def test_settings_kubeconfig_target_missing_value_raises(keys: dict[str, Any], key: str) -> None:
    problems = _refused(config(region=None, **{**LOCAL, **keys}))
    assert f"paddle-training:{key}" in [problem.key for problem in problems]


def test_settings_reports_all_mistakes() -> None:
    problems = _refused(config(**{**AWS, "nodes": {"min": 4}, "dns": {"zone": "x"}, "wrong": {}}))
    assert len(problems) == 3


def test_settings_invalid_section_is_reported_once() -> None:
    names = {"publicZoneId": "example.com", "externalName": "paddle.example.com"}
    assert [p.key for p in _refused(config(**{**AWS, "dns": names}))] == ["paddle-training:dns.publicZoneId"]


def test_settings_zero_and_false_are_kept() -> None:
    loaded = aws_settings(nodes={"min": 0, "desired": 0}, storage={"archiveAfterDays": 0, "protect": False})
    assert loaded.nodes.min == 0
    assert loaded.storage.archive_after_days == 0
    assert loaded.storage.protect is False


def test_settings_compute_false_means_off() -> None:
    assert aws_settings(compute="false").compute == "off"


def test_settings_newer_kubernetes_version_is_accepted() -> None:
    newer = {"admins": ["role/A"], "version": "1.39"}
    assert aws_settings(cluster=newer).cluster.version == "1.39"


def test_settings_other_namespaces_are_ignored() -> None:
    assert load_settings({**config(**AWS), "kubernetes:x": "1", "pulumi:tags": "{}"}).target == "aws"


def _values_problems(values: dict[str, Any], **keys: Any) -> list[str]:
    loaded = aws_settings(**keys)
    return [str(problem) for problem in chart_values.value_problems(loaded, values)]


def test_settings_spot_defaults_to_several_types() -> None:
    spot = aws_settings(nodes={"capacity": "SPOT"}).nodes.instance_types
    assert len(spot) > 3
    assert {kind.partition(".")[2] for kind in spot} == {"large"}
    listed = {"capacity": "SPOT", "instanceTypes": ["m5.large"]}
    assert aws_settings(nodes=listed).nodes.instance_types == ("m5.large",)


@pytest.mark.parametrize(
    ("source", "count"), [("https://example.com/x", 1), ("s3://b/k", 0), ("file://x", 0)]
)
def test_value_rules_external_source_without_nat_raises(source: str, count: int) -> None:
    problems = _values_problems({"data": {"source": source}}, network={"nat": "none"})
    assert len(problems) == count


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"data": {"source": "s3://{bucket}/data/x.csv"}}, "data.source"),
        ({"data": {"source": "s3://{bucket}/sources"}}, "data.source"),
        ({"data": {"testSource": "s3://{bucket}/test/x.csv"}}, "data.testSource"),
        ({"training": {"exportTo": "s3://{bucket}/exports"}}, "training.exportTo"),
        ({"training": {"initModelPath": "s3://{bucket}/sources/m/run"}}, "training.initModelPath"),
        (
            {"data": {"source": "s3://{bucket}/sources/x"}, "training": {"exportTo": "s3://{bucket}/models"}},
            "",
        ),
        ({"data": {"source": "s3://other/data"}, "training": {"exportTo": "s3://other/x"}}, ""),
    ],
)
def test_value_rules_keys_of_the_bucket_that_pods_cannot_use_raise(values: dict[str, Any], key: str) -> None:
    problems = _values_problems(values)
    assert [problem.partition(" is ")[0] for problem in problems] == ([key] if key else [])


@pytest.mark.parametrize(("kind", "runtime", "count"), [("m7g.large", "fleet", 1), ("m7g.large", "v1", 0)])
def test_value_rules_arm_nodes_with_fleet_raise(kind: str, runtime: str, count: int) -> None:
    problems = _values_problems({"runtime": runtime}, nodes={"instanceTypes": [kind]})
    assert len(problems) == count
    assert all("nodes.instanceTypes is ['m7g.large']" in problem for problem in problems), problems


@pytest.mark.parametrize(
    "kinds", ["g6.xlarge m6i.large", "g5g.xlarge", "g5g.xlarge m6i.large", "g6.xlarge g7e.2xlarge"]
)
def test_settings_wrong_gpu_types_are_one_problem(kinds: str) -> None:
    assert len(_refused(config(**{**AWS, "nodes": {"instanceTypes": kinds.split()}}))) == 1


def test_settings_are_described_and_pulumi_yaml_matches() -> None:
    rows = list(settings.describe_settings())
    assert len(rows) > 15
    assert all(description for _, description, *_ in rows)
    assert (ROOT / "Pulumi.yaml").read_text(encoding="utf-8") == settings.pulumi_yaml()


@pytest.mark.parametrize("stack", ["dev", "local"])
def test_settings_of_included_stacks_load(stack: str) -> None:
    file = ROOT / {"dev": "Pulumi.dev.yaml", "local": "local/Pulumi.local.yaml"}[stack]
    written = yaml.safe_load(file.read_text())["config"]
    keys = {
        key.removeprefix("paddle-training:"): value for key, value in written.items() if key != "aws:region"
    }
    assert load_settings(config(region=written.get("aws:region"), **keys)).target in ("aws", "kubeconfig")
    assert "encryptionsalt" not in file.read_text()


def test_modules_without_pulumi_import_no_pulumi() -> None:
    modules = (*("aws_facts", "chart_values", "cluster_access", "naming", "iam_policies", "settings"),)
    program = "; ".join(f"import infra.{name}" for name in modules)
    loaded = f"{program}; import sys; print([name for name in sys.modules if name.startswith('pulumi')])"
    ran = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"


HIDDEN = {
    "values": {"training": {"extraArgs": [{"secure": "v1:x"}]}},
    "values.extraEnv": {"extraEnv": [{"name": "A", "value": {"secure": "v1:x"}}]},
    "image": {"secure": "v1:x"},
}


@pytest.mark.parametrize("key", ["values", "image", "valuesFiles"])
def test_pulumi_secret_in_a_setting_is_rejected_without_showing_it(key: str) -> None:
    given = config(**AWS, values={"extraEnv": [{"name": "A", "value": "s3cret"}], "nonsense": 1})
    with pytest.raises(SettingsError) as error:
        load_settings(given, secrets=[f"paddle-training:{key}", "aws:secretKey"])
    (problem,) = error.value.problems
    assert problem.key == f"paddle-training:{key}"
    assert "s3cret" not in str(error.value)
    assert "kubectl create secret" in problem.fix
    assert "valueFrom.secretKeyRef" in problem.fix


def test_secret_of_the_provider_is_no_setting_of_the_program() -> None:
    load_settings(config(**AWS), secrets=["aws:secretKey"])


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN)
def test_encrypted_value_in_a_stack_file_is_rejected(tmp_path: Path, value: Any) -> None:
    key = "image" if "secure" in value else "values"
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps({"config": {f"paddle-training:{key}": value}}))
    with pytest.raises(SettingsError, match=rf"paddle-training:{key}"):
        load_settings(read_stack_config(tmp_path, "dev"))
    other = {"config": {"aws:secretKey": {"secure": "v1:x"}, "aws:region": "us-west-2"}}
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps(other))
    with pytest.raises(SettingsError, match="aws:secretKey is"):
        load_settings(read_stack_config(tmp_path, "dev"))


NAMES = ["assumeRoles", "accessKey", "sharedCredentialsFiles", "profile"]


@pytest.mark.parametrize("name", NAMES)
def test_read_stack_credentials_in_settings_raises(name: str) -> None:
    with pytest.raises(
        SettingsError,
        match=rf"aws:{name} .*not `pulumi login`, kubectl.*\n.*config rm aws:{name}.*AWS_PROFILE=",
    ):
        read_stack("dev", [f"aws:{name}=[x]"])


@pytest.mark.parametrize("name", NAMES)
def test_program_credentials_in_settings_raises(name: str) -> None:
    with pytest.raises(SettingsError, match=f"aws:{name} "):
        load_settings({**config(**AWS), f"aws:{name}": "work"})


def test_read_stack_leaves_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI gets keys for each run, and has no profile."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-run")
    before = dict(os.environ)
    read_stack("dev")
    assert dict(os.environ) == before


def test_kubeconfig_names_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "read_revisions", lambda *where: [])
    monkeypatch.setenv("AWS_PROFILE", "work")
    providers = [r for r in aws_stack().resources if r.typ == "pulumi:providers:kubernetes"]
    assert providers
    for provider in providers:
        [user] = json.loads(provider.inputs["kubeconfig"])["users"]
        assert "profile" not in str(user)
        assert not user["user"]["exec"].get("env"), "the command inherits the environment of its user"
