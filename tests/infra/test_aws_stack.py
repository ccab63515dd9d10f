"""Target aws with mocks: names and tags, the blocks of subnets, and who can mount and decrypt."""

from __future__ import annotations

import importlib
import ipaddress
import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.vpc_network import plan_subnets
from testkit.aws_emulator import authorization

from .recording_mocks import Recorder, aws_stack, default, everything


def _takes_tags(token: str) -> bool:
    module, kind = re.fullmatch(r"aws:(\w+)/\w+:(\w+)", token).groups()  # type: ignore[union-attr]
    return hasattr(getattr(importlib.import_module(f"pulumi_aws.{module}"), kind), "tags")


def test_every_taggable_resource_has_stack_tags() -> None:
    tags = {"Project": "paddle-training", "Stack": "dev", "ManagedBy": "pulumi", "Team": "paddle"}
    tags["KubernetesCluster"] = "paddle-training-dev"
    for args in everything().resources:
        if args.typ.startswith("aws:") and _takes_tags(args.typ) and "bucketObject" not in args.typ:
            assert args.inputs["tags"].items() >= tags.items(), args.name
            assert args.inputs["tags"]["Name"], args.name


def test_names_begin_with_project_and_stack() -> None:
    for args in everything().resources:
        if not args.typ.startswith("pulumi:"):
            assert args.name.startswith("paddle-training-dev"), args.name


@given(
    st.integers(16, 22).flatmap(
        lambda bits: st.integers(0, 2**bits - 1).map(
            lambda n: f"{ipaddress.IPv4Address(n << (32 - bits))}/{bits}"
        )
    ),
    st.integers(1, 3),
)
def test_subnets_are_inside_vpc_and_disjoint(block: str, zones: int) -> None:
    plans = plan_subnets(block, zones)
    nets = [ipaddress.IPv4Network(net) for plan in plans for net in plan]
    assert len(plans) == zones
    assert all(net.subnet_of(ipaddress.IPv4Network(block)) for net in nets)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(nets, 2))
    assert all(net.prefixlen <= 28 for net in nets), "AWS allows no subnet smaller than /28"


@given(st.integers(1, 2))
def test_subnets_stay_when_a_zone_is_added(zones: int) -> None:
    assert plan_subnets("10.0.0.0/16", zones) == plan_subnets("10.0.0.0/16", zones + 1)[:zones]


FILES, POINT = (f"arn:aws:mock:::paddle-training-dev-{part}" for part in ("efs", "pods"))


def _mount(made: Recorder, role: str, **request: str) -> bool:
    """Return whether EFS lets a client mount as `role`; no role: a client without IAM.

    EFS evaluates the file-system policy and the policies of the role together, and a Deny wins. A file system without
    a policy admits everybody.
    """
    policies = made.of("FileSystemPolicy")
    rules = [rule for p in policies for rule in json.loads(p.inputs["policy"])["Statement"]]
    own = [p for p in made.of("RolePolicy") if p.name.endswith(f"-{role}")] if role else []
    rules += [rule for p in own for rule in json.loads(p.inputs["policy"])["Statement"]]
    allowed = [rule for rule in rules if rule["Effect"] == "Allow"]
    denied = [rule for rule in rules if rule["Effect"] == "Deny"]
    given = {"aws:SecureTransport": "true", "elasticfilesystem:AccessPointArn": POINT, **request}
    context = {key: value for key, value in given.items() if value}
    action = "elasticfilesystem:ClientMount"
    if authorization.is_allowed(denied, action, FILES, context):
        return False
    return not policies or authorization.is_allowed(allowed, action, FILES, context)


@pytest.mark.parametrize("role", ["efs-node", "bastion"])
def test_file_system_requires_tls_iam_and_access_point(role: str) -> None:
    made = aws_stack(bastion={"enabled": True})
    assert _mount(made, role)
    assert not _mount(made, ""), "without IAM"
    assert not _mount(made, "efs-csi"), "a role without the right to mount"
    assert not _mount(made, role, **{"aws:SecureTransport": "false"})
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": ""}), "the root of the file system"
    assert not _mount(made, role, **{"elasticfilesystem:AccessPointArn": f"{POINT}2"})
    rights = json.loads(made.one("RolePolicy", role).inputs["policy"])["Statement"]
    clients = {a for rule in rights for a in rule["Action"] if a.startswith("elasticfilesystem:Client")}
    assert clients == {"elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"}, "not as root"


def test_pods_use_the_key_only_through_s3() -> None:
    rights = json.loads(default().one("RolePolicy", "pods").inputs["policy"])["Statement"]
    key = "arn:aws:mock:::paddle-training-dev-key"
    for service, allowed in (("s3", True), ("ec2", False), ("", False)):
        context = {"kms:ViaService": f"{service}.us-west-2.amazonaws.com"} if service else {}
        assert authorization.is_allowed(rights, "kms:Decrypt", key, context) is allowed, service
