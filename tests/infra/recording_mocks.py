"""Run parts of the Pulumi program with mocks instead of an engine, and record what they register."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import resource as pulumi_resource
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks, set_mocks
from pulumi.runtime.proto import provider_pb2, source_pb2

from infra.chart_values import read_stack_inputs
from infra.settings import Settings, load_settings
from infra.stack_builder import create_kubeconfig_stack

# The SDK warns about its own deprecated classes when it is imported. This hides no other warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    for _module in (
        *("budgets", "cloudwatch", "ec2", "ecr", "efs", "eks"),
        *("iam", "kms", "route53", "s3", "ssm", "vpc"),
    ):
        # hasattr loads the module, because the SDK is lazy.
        hasattr(importlib.import_module(f"pulumi_aws.{_module}"), "any")

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"
ACCOUNT = "123456789012"

# Outputs of each resource type in addition to its inputs.
ANSWERS: dict[str, dict[str, Any]] = {
    "aws:eks/cluster:Cluster": {
        "endpoint": "https://ABC.gr7.us-west-2.eks.amazonaws.com",
        "certificateAuthority": {"data": "Q0E="},
        "vpcConfig": {"clusterSecurityGroupId": "sg-cluster", "subnetIds": []},
    },
    "aws:efs/fileSystem:FileSystem": {"dnsName": "fs-1.efs.us-west-2.amazonaws.com"},
    "aws:ecr/repository:Repository": {
        "repositoryUrl": "123456789012.dkr.ecr.us-west-2.amazonaws.com/launcher"
    },
    "aws:ec2/launchTemplate:LaunchTemplate": {"latestVersion": 1},
}
INVOKES: dict[str, Any] = {
    "aws:index/getCallerIdentity:getCallerIdentity": {
        "accountId": ACCOUNT,
        "arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/Admin/session",
        "id": ACCOUNT,
        "userId": "AIDA",
    },
    "aws:iam/getSessionContext:getSessionContext": {
        "id": "x",
        "issuerArn": f"arn:aws:iam::{ACCOUNT}:role/Admin",
    },
    "aws:index/getAvailabilityZones:getAvailabilityZones": {
        "names": ["us-west-2b", "us-west-2a", "us-west-2d", "us-west-2c"],
        "zoneIds": ["usw2-az2", "usw2-az1", "usw2-az4", "usw2-az3"],
        "groupNames": [],
        "id": REGION,
        "region": REGION,
    },
    "aws:ssm/getParameter:getParameter": {
        "value": "ami-0123",
        "insecureValue": "1.35.2-20261109",
        "arn": "arn",
        "id": "x",
        "name": "x",
        "type": "String",
    },
    "aws:ec2/getInstanceType:getInstanceType": {
        "id": "x",
        "defaultVcpus": 2,
        "memorySize": 8192,
        "gpuses": [],
    },
    "aws:route53/getZone:getZone": Exception("no matching Route 53 Hosted Zone found"),
    "aws:eks/getCluster:getCluster": Exception("reading EKS Cluster: couldn't find resource"),
    "aws:eks/getAddonVersion:getAddonVersion": {"id": "x", "version": "v1.2.3-eksbuild.1"},
    "aws:cloudwatch/getLogGroups:getLogGroups": {"id": "x", "arns": [], "logGroupNames": []},
    "aws:resourcegroupstaggingapi/getResources:getResources": {"id": "x", "resourceTagMappingLists": []},
    "aws:ec2/getVpc:getVpc": {
        "id": "vpc-0a",
        "cidrBlock": "10.9.0.0/16",
        "enableDnsSupport": True,
        "enableDnsHostnames": True,
        "arn": "arn",
    },
}
SUBNETS = {"subnet-0a": "us-west-2a", "subnet-0b": "us-west-2b", "subnet-0c": "us-west-2b"}


@dataclass
class Recorder(Mocks):
    """Mocks that record registrations in their order, and answer functions from INVOKES."""

    resources: list[MockResourceArgs] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    # Direct dependencies of each resource, by `type::name`.
    waits: dict[str, set[str]] = field(default_factory=dict)
    # Import ids by resource name; resources that are retained on delete.
    imports: dict[str, str] = field(default_factory=dict)
    retained: set[str] = field(default_factory=set)
    # Outputs of the stack that are known without resources.
    outputs: dict[str, Any] = field(default_factory=dict)
    # Inputs whose changes are ignored, by resource name.
    ignored: dict[str, list[str]] = field(default_factory=dict)
    # Answers of functions that override INVOKES; an exception is raised to the program.
    answers: dict[str, Any] = field(default_factory=dict)

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.resources.append(args)
        outputs = {
            "arn": f"arn:aws:mock:::{args.name}",
            "name": args.name,
            "bucket": args.name,
            "keyId": args.name,
        }
        return f"{args.name}-id", {**outputs, **args.inputs, **ANSWERS.get(args.typ, {})}

    def call(self, args: MockCallArgs) -> dict[str, Any]:
        self.calls.append(args.token)
        if args.token == "aws:ec2/getSubnet:getSubnet":
            subnet = args.args["id"]
            return {
                "id": subnet,
                "availabilityZone": SUBNETS[subnet],
                "vpcId": "vpc-0a",
                "cidrBlock": "10.9.0.0/20",
            }
        answer = self.answers.get(args.token, INVOKES.get(args.token))
        if answer is None and args.token in ("aws:iam/getRole:getRole", "aws:iam/getUser:getUser"):
            name = args.args.get("name") or args.args["userName"]
            kind = args.token.rpartition(":get")[2].lower()
            return {"id": name, "arn": f"arn:aws:iam::{ACCOUNT}:{kind}/{name}"}
        if answer is None:
            raise KeyError(args.token)
        if "zoneIds" in answer:
            zones = zip(answer["names"], answer["zoneIds"], strict=True)
            left = [name for name, zone in zones if zone not in args.args.get("excludeZoneIds", ())]
            return {**answer, "names": left}
        return dict(answer)

    def of(self, token: str) -> list[MockResourceArgs]:
        """Return the registrations of a type, by the end of its token: `Vpc`, `eks/cluster:Cluster`."""
        return [args for args in self.resources if args.typ.endswith(f":{token}") or args.typ.endswith(token)]

    def before(self, args: MockResourceArgs) -> set[str]:
        """Return the direct and indirect dependencies of a resource, as `type::name`."""
        seen: set[str] = set()
        queue = [f"{args.typ}::{args.name}"]
        while queue:
            more = self.waits.get(queue.pop(), set()) - seen
            seen |= more
            queue += more
        return seen

    def one(self, token: str, name: str = "") -> MockResourceArgs:
        """Return the only registration of a type whose name ends with `name`."""
        found = [args for args in self.of(token) if args.name.endswith(name)]
        assert len(found) == 1, f"{len(found)} of {token} {name}: {[args.name for args in found]}"
        return found[0]


class Monitor(MockMonitor):
    """Stand-in for the engine: records dependencies and options, which mocks do not receive, and reports failures."""

    mocks: Recorder

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        answer = self.mocks.answers.get(request.tok, INVOKES.get(request.tok))
        if isinstance(answer, Exception):
            reason = provider_pb2.CheckFailure(reason=str(answer))
            return provider_pb2.InvokeResponse(failures=[reason])
        return super().Invoke(request)

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        names = ["::".join(urn.split("::")[2:]).rpartition("$")[2] for urn in request.dependencies]
        self.mocks.waits[f"{request.type}::{request.name}"] = set(names)
        if request.importId:
            self.mocks.imports[request.name] = request.importId
        if request.ignoreChanges:
            self.mocks.ignored[request.name] = list(request.ignoreChanges)
        if request.retainOnDelete:
            self.mocks.retained.add(f"{request.type}::{request.name}")
        return super().RegisterResource(request)


def config(**keys: Any) -> dict[str, str]:
    """Return a stack's configuration as the engine passes it; `region=None` omits the region."""
    region = keys.pop("region", REGION)
    texts = {f"paddle-training:{k}": v if isinstance(v, str) else json.dumps(v) for k, v in keys.items()}
    return texts if region is None else {**texts, "aws:region": region}


AWS = {
    "image": "registry/launcher@sha256:1",
    "cluster": {"admins": ["role/Admin"]},
    "valuesFiles": ["charts/paddle-training/examples/quick_start.yaml"],
}
LOCAL = {
    "target": "kubeconfig",
    "kubeconfig": {"path": "/nowhere/kubeconfig", "context": "local"},
    "image": "localhost/paddle-training:{launcher}",
    "storage": {"type": "hostPath", "path": "/shared"},
    "valuesFiles": ["charts/paddle-training/examples/quick_start.yaml"],
}


def aws_settings(**keys: Any) -> Settings:
    """Return the settings `AWS` with changes."""
    return load_settings(config(**{**AWS, **keys}))


def local_settings(**keys: Any) -> Settings:
    """Return the settings `LOCAL` with changes."""
    return load_settings(config(region=None, **{**LOCAL, **keys}))


EVERYTHING: dict[str, Any] = {
    "network": {"nat": "none"},
    "values": {"data": {"source": "s3://{bucket}/sources/x"}},
    "nodes": {"placementGroup": True, "sshKeyName": "mine"},
    "bastion": {"enabled": True},
    "dns": {"publicZoneId": "Z1", "externalName": "paddle.example.com"},
    "cluster": {"admins": ["role/Admin"], "viewers": ["role/preview"], "publicCidrs": ["203.0.113.0/24"]},
    "artifacts": {"uploads": {"sources/readme": "Pulumi.yaml"}},
    "tags": {"Team": "paddle"},
    "budget": {"dollars": 100, "email": "owner@example.com"},
    "iam": {"path": "/teams/", "permissionsBoundary": "arn:aws:iam::123456789012:policy/Boundary"},
}


def record(build: Callable[[], Any], answers: dict[str, Any] | None = None) -> Recorder:
    """Run `build` in a mock engine until all outputs are resolved; return what it registered."""
    recorder = Recorder(answers=answers or {})
    monitor = Monitor(recorder)
    set_mocks(recorder, project="paddle-training", stack="dev", preview=False, monitor=monitor)

    # The SDK sends the Python stack of each new resource to the engine, which is a third of the time of a mock test.
    pulumi_resource._get_stack_trace = source_pb2.StackTrace

    # Without this decorator, nothing would wait for outputs, and a failing assert in an apply would pass.
    @pulumi.runtime.test
    def inside() -> Any:
        outputs = build()
        if isinstance(outputs, dict):
            recorder.outputs = {k: v for k, v in outputs.items() if not isinstance(v, pulumi.Output)}
        return pulumi.Output.all(**outputs) if isinstance(outputs, dict) else None

    inside()
    return recorder


def aws_stack(
    folder: Path = ROOT, *, answers: dict[str, Any] | None = None, name: str = "dev", **keys: Any
) -> Recorder:
    """Create a stack of target aws from `AWS` with changed settings; return what was registered.

    `answers` are the answers of the account, in addition to `INVOKES`.
    """
    from infra.target_aws import create_aws_stack

    inputs = read_stack_inputs(aws_settings(**keys), "paddle-training", name, folder)
    return record(lambda: create_aws_stack(inputs), answers)


def local_stack(folder: Path = ROOT, *, answers: dict[str, Any] | None = None, **keys: Any) -> Recorder:
    """Create a stack of target kubeconfig, without preflight checks; return what was registered."""
    inputs = read_stack_inputs(local_settings(**keys), "paddle-training", "dev", folder)
    return record(lambda: create_kubeconfig_stack(inputs), answers)


def running(version: str = "1.35", **groups: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of an account with a cluster and node groups: part → sizes, version.

    The mocks answer alike for all groups, so there can be only one.
    """
    answers: dict[str, Any] = {"aws:eks/getCluster:getCluster": {"id": "x", "version": version}}
    names = [f"paddle-training-dev-{part}-0a1b2c3" for part in groups]
    answers["aws:eks/getNodeGroups:getNodeGroups"] = {"id": "x", "names": names}
    for group in groups.values():
        low, desired, high = group["sizes"]
        answers["aws:eks/getNodeGroup:getNodeGroup"] = {
            "id": "x",
            "scalingConfigs": [{"minSize": low, "desiredSize": desired, "maxSize": high}],
            "version": group.get("version", "1.35"),
        }
    return answers


@contextmanager
def clone(where: Path) -> Iterator[Path]:
    """Yield a copy of the folders that the program reads, for tests that change them."""
    target = where / "clone"
    for name in ("charts", "launcher"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    yield target


@lru_cache
def default() -> Recorder:
    """Return the stack `dev` with an image; created once, so tests must not change it."""
    return aws_stack()


@lru_cache
def everything() -> Recorder:
    """Return a stack with all compatible options; created once, so tests must not change it."""
    return aws_stack(**EVERYTHING)
