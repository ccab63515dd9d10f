"""The lifecycle of resources in an emulated account: references, faults, rules, refresh and inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from testkit.aws_emulator import pulumi_engine
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.resource_model import Model

VPC, SUBNET, ROLE = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "aws:iam/role:Role"
CLUSTER, NODES, ADDON = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup", "aws:eks/addon:Addon"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})


def _make(model: Model, kind: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
    checked, failures = model.check(kind, "thing", {}, inputs, os.urandom(8))
    assert not failures
    return model.create(kind, f"urn:pulumi:s::p::{kind}::thing", checked)


def _cluster(model: Model) -> tuple[list[str], str]:
    """Create a cluster, and return the ids of its subnets and the ARN of its role."""
    vpc, _ = _make(model, VPC, cidrBlock="10.0.0.0/16")
    zones = ("us-west-2a", "us-west-2b")
    make = [{"cidrBlock": f"10.0.{i}.0/24", "availabilityZone": zone} for i, zone in enumerate(zones)]
    subnets = [_make(model, SUBNET, vpcId=vpc, **subnet)[0] for subnet in make]
    role = _make(model, ROLE, name="r", assumeRolePolicy=TRUST)[1]["arn"]
    network = {"subnetIds": subnets}
    _make(model, CLUSTER, name="c", roleArn=role, vpcConfig=network, bootstrapSelfManagedAddons=False)
    return subnets, role


def test_update_changes_tags_of_every_service(model: Model) -> None:
    subnets, role = _cluster(model)
    _make(model, ADDON, clusterName="c", addonName="vpc-cni")
    sizes = {"minSize": 1, "desiredSize": 1, "maxSize": 3}
    group = {"clusterName": "c", "nodeRoleArn": role, "subnetIds": subnets, "scalingConfig": sizes}
    made = [
        (NODES, group),
        (VPC, {"cidrBlock": "10.1.0.0/16"}),
        ("aws:efs/fileSystem:FileSystem", {}),
        ("aws:ecr/repository:Repository", {}),
        ("aws:cloudwatch/logGroup:LogGroup", {}),
        ("aws:s3/bucket:Bucket", {}),
        ("aws:kms/key:Key", {}),
        (ROLE, {"assumeRolePolicy": TRUST}),
    ]
    for kind, inputs in made:
        rid, _ = _make(model, kind, **inputs, tags={"Name": "one", "Team": "x"})
        record = model.account.get(kind, rid)
        assert record is not None
        changed = record.inputs | {"tags": {"Name": "two", "Stack": "dev"}}
        model.update(kind, "urn", rid, record.inputs, changed)
        assert model.read(kind, "urn", rid, changed) is not None
        seen = model.account.get(kind, rid)
        assert seen is not None
        assert seen.inputs["tags"] == {"Name": "two", "Stack": "dev"}, kind


def _aws(account: Account, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "AWS_EMULATOR_DIR": str(account.folder),
        "AWS_EMULATOR_PYTHON": sys.executable,
    }
    command = [str(pulumi_engine.COMMANDS / "aws"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_aws_command_returns_only_tokens_of_existing_clusters(model: Model, account: Account) -> None:
    asked = ("eks", "get-token", "--cluster-name", "c", "--region", "us-west-2", "--output", "json")
    assert "ResourceNotFoundException" in _aws(account, *asked).stderr
    _cluster(model)
    stranger = json.loads(_aws(account, *asked).stdout)
    assert stranger["status"]["token"] != "let-me-in", (
        "the API server rejects a caller without an access entry"
    )
    _make(model, "aws:eks/accessEntry:AccessEntry", clusterName="c", principalArn=account.caller)
    credential = json.loads(_aws(account, *asked).stdout)
    assert credential["kind"] == "ExecCredential"
    assert credential["status"]["token"] == "let-me-in"
    assert _aws(account, "s3", "ls").returncode == 2
