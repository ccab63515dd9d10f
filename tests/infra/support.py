"""Recording mocks: run the program's parts without an engine, and look at what was registered."""

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
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks, set_mocks
from pulumi.runtime.proto import provider_pb2

from infra import settings as settings_module
from infra import stack

# The SDK warns of its own deprecated classes while it is imported; no warning of ours is hidden by this.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    for _module in (
        "budgets",
        "cloudwatch",
        "ec2",
        "ecr",
        "efs",
        "eks",
        "iam",
        "kms",
        "route53",
        "s3",
        "ssm",
        "vpc",
    ):
        hasattr(importlib.import_module(f"pulumi_aws.{_module}"), "any")  # loads it: the SDK is lazy

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"
ACCOUNT = "123456789012"

# What AWS answers with, beside the inputs, by type.
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
INVOKES: dict[str, dict[str, Any]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": {
        "accountId": ACCOUNT,
        "arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/Admin/session",
        "id": ACCOUNT,
        "userId": "AIDA",
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
    "aws:ec2/getInstanceType:getInstanceType": {"id": "x", "defaultVcpus": 2, "memorySize": 8192},
    "aws:eks/getAddonVersion:getAddonVersion": {"id": "x", "version": "v1.2.3-eksbuild.1"},
    "aws:cloudwatch/getLogGroups:getLogGroups": {"id": "x", "arns": [], "logGroupNames": []},
    "aws:resourcegroupstaggingapi/getResources:getResources": {"id": "x", "resourceTagMappingLists": []},
    "pulumi:pulumi:readStackResourceOutputs": {"outputs": {}},
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
    """Remembers every registration, in order, and answers like an account that has everything."""

    resources: list[MockResourceArgs] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    # What each resource was told to wait for, by `type::name`, directly.
    waits: dict[str, set[str]] = field(default_factory=dict)
    # The ids that resources were imported by, by name, and which are kept when they are removed.
    imports: dict[str, str] = field(default_factory=dict)
    retained: set[str] = field(default_factory=set)
    # Answers of functions in place of INVOKES'; an exception is a refusal.
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
        if answer is None:
            raise KeyError(args.token)
        if "zoneIds" in answer:
            zones = zip(answer["names"], answer["zoneIds"], strict=True)
            left = [name for name, zone in zones if zone not in args.args.get("excludeZoneIds", ())]
            return {**answer, "names": left}
        return dict(answer)

    def of(self, token: str) -> list[MockResourceArgs]:
        """Registrations of one type, by its last part: `Vpc`, `eks/cluster:Cluster`."""
        return [args for args in self.resources if args.typ.endswith(f":{token}") or args.typ.endswith(token)]

    def before(self, args: MockResourceArgs) -> set[str]:
        """Names of all that must be there before a resource, and outlive it, by way of others too."""
        seen: set[str] = set()
        todo = [f"{args.typ}::{args.name}"]
        while todo:
            more = self.waits.get(todo.pop(), set()) - seen
            seen |= more
            todo += more
        return seen

    def one(self, token: str, name: str = "") -> MockResourceArgs:
        """The only registration of a type (whose name ends with `name`)."""
        found = [args for args in self.of(token) if args.name.endswith(name)]
        assert len(found) == 1, f"{len(found)} of {token} {name}: {[args.name for args in found]}"
        return found[0]


class Monitor(MockMonitor):
    """Remembers dependencies as well, of which the mocks are not told; and refuses as an engine does."""

    def Invoke(self, request: Any) -> Any:  # noqa: N802
        answer = self.mocks.answers.get(request.tok)
        if isinstance(answer, Exception):
            reason = provider_pb2.CheckFailure(reason=str(answer))
            return provider_pb2.InvokeResponse(failures=[reason])
        return super().Invoke(request)

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        names = ["::".join(urn.split("::")[2:]).rpartition("$")[2] for urn in request.dependencies]
        self.mocks.waits[f"{request.type}::{request.name}"] = set(names)
        if request.importId:
            self.mocks.imports[request.name] = request.importId
        if request.retainOnDelete:
            self.mocks.retained.add(f"{request.type}::{request.name}")
        return super().RegisterResource(request)


def config(**keys: Any) -> dict[str, str]:
    """A stack's configuration as the engine hands it over. `region` None leaves it out."""
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


EVERYTHING: dict[str, Any] = {
    "network": {"nat": "none"},
    "values": {"data": {"source": "s3://{bucket}/sources/x"}},
    "nodes": {"placementGroup": True, "singleZone": True, "sshKeyName": "mine"},
    "bastion": {"enabled": True},
    "dns": {"publicZoneId": "Z1", "externalName": "paddle.example.com"},
    "cluster": {"admins": ["role/Admin"], "viewers": ["role/preview"], "publicCidrs": ["203.0.113.0/24"]},
    "artifacts": {"uploads": {"sources/readme": "Pulumi.yaml"}},
    "tags": {"Team": "paddle"},
    "budget": {"dollars": 100, "email": "owner@example.com"},
    "iam": {"path": "/teams/", "permissionsBoundary": "arn:aws:iam::123456789012:policy/Boundary"},
}


def record(build: Callable[[], Any], answers: dict[str, Any] | None = None) -> Recorder:
    """Runs `build` in a mock engine to its end, failing outputs included; returns what it registered."""
    recorder = Recorder(answers=answers or {})
    monitor = Monitor(recorder)
    set_mocks(recorder, project="paddle-training", stack="dev", preview=False, monitor=monitor)

    # An undecorated test would not wait for outputs, and pass with a false assert in an apply.
    @pulumi.runtime.test
    def inside() -> Any:
        outputs = build()
        return pulumi.Output.all(**outputs) if isinstance(outputs, dict) else None

    inside()
    return recorder


def aws_stack(
    folder: Path = ROOT, *, answers: dict[str, Any] | None = None, name: str = "dev", **keys: Any
) -> Recorder:
    """The stack of target aws with these settings over AWS's, in an account that answers like this."""
    from infra import aws_stack as module

    chosen = settings_module.load(config(**{**AWS, **keys}))
    known = stack.plan(chosen, "paddle-training", name, folder)
    return record(lambda: module.build(known, REGION), answers)


def local_stack(folder: Path = ROOT, *, answers: dict[str, Any] | None = None, **keys: Any) -> Recorder:
    """The stack of target kubeconfig; no cluster is looked at."""
    chosen = settings_module.load(config(region=None, **{**LOCAL, **keys}))
    known = stack.plan(chosen, "paddle-training", "dev", folder)
    return record(lambda: stack.on_existing_cluster(known), answers)


@contextmanager
def clone(where: Path) -> Iterator[Path]:
    """A copy of what the program reads of the project, for tests that change it."""
    target = where / "clone"
    for name in ("charts", "launcher"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    yield target


@lru_cache
def default() -> Recorder:
    """Stack `dev` as it comes, with an image. Made once: tests only look."""
    return aws_stack()


@lru_cache
def everything() -> Recorder:
    """A stack with every component and option that fit together. Made once: tests only look."""
    return aws_stack(**EVERYTHING)
