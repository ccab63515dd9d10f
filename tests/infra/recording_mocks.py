"""Run parts of the Pulumi program with mocks instead of an engine, and record what they register."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pulumi
import yaml
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
_MOCKED = yaml.safe_load(Path(__file__).with_name("mocked_account.yaml").read_text(encoding="utf-8"))
AWS, LOCAL, EVERYTHING = (_MOCKED["settings"][name] for name in ("aws", "kubeconfig", "everything"))
Account = Mapping[str, Any]
"""Short name of a function, such as `ec2/getVpc` → its answer, or the text of its error."""


def _short(token: str) -> str:
    """Return the short name of a function: `aws:ec2/getVpc:getVpc` → `ec2/getVpc`."""
    return token.split(":")[1]


@dataclass
class Recorder(Mocks):
    """Mocks that record registrations in their order, and answer functions as `account` says."""

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
    account: Account = field(default_factory=lambda: _MOCKED["functions"])

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.resources.append(args)
        outputs = {
            "arn": f"arn:aws:mock:::{args.name}",
            "name": args.name,
            "bucket": args.name,
            "keyId": args.name,
        }
        return f"{args.name}-id", {**outputs, **args.inputs, **_MOCKED["outputs"].get(args.typ, {})}

    def call(self, args: MockCallArgs) -> dict[str, Any]:
        self.calls.append(args.token)
        name = _short(args.token)
        if name == "ec2/getSubnet":
            zone = _MOCKED["subnets"][args.args["id"]]
            return {**args.args, "availabilityZone": zone, "vpcId": "vpc-0a", "cidrBlock": "10.9.0.0/20"}
        if name in ("iam/getRole", "iam/getUser") and name not in self.account:
            principal, kind = args.args.get("name") or args.args["userName"], name[-4:].lower()
            return {"id": principal, "arn": f"arn:aws:iam::{ACCOUNT}:{kind}/{principal}"}
        answer = {"id": "x", **self.account[name]}
        if "zoneIds" in answer:
            zones = zip(answer["names"], answer["zoneIds"], strict=True)
            excluded = args.args.get("excludeZoneIds", ())
            answer["names"] = [name for name, zone in zones if zone not in excluded]
        return answer

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
        answer = self.mocks.account.get(_short(request.tok))
        if isinstance(answer, str):
            return provider_pb2.InvokeResponse(failures=[provider_pb2.CheckFailure(reason=answer)])
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


def aws_settings(**keys: Any) -> Settings:
    """Return the settings `AWS` with changes."""
    return load_settings(config(**{**AWS, **keys}))


def local_settings(**keys: Any) -> Settings:
    """Return the settings `LOCAL` with changes."""
    return load_settings(config(region=None, **{**LOCAL, **keys}))


def record(build: Callable[[], Any], account: Account | None = None) -> Recorder:
    """Run `build` in a mock engine until all outputs are resolved; return what it registered."""
    recorder = Recorder() if account is None else Recorder(account=account)
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


def mocked_account(changes: Account, running: Mapping[str, Any]) -> Account:
    """Return the account of mocked_account.yaml with changed answers.

    `running` is empty, or has the `version` of a cluster that exists, and the sizes and version of its node group by
    the group's part of the name. The mocks answer alike for all groups, so there can be only one.
    """
    account = dict(_MOCKED["functions"])
    if running:
        account["eks/getCluster"] = {"version": running.get("version", "1.35")}
        parts = [part for part in running if part != "version"]
        account["eks/getNodeGroups"] = {"names": [f"paddle-training-dev-{part}-0a1b2c3" for part in parts]}
        for part in parts:
            low, desired, high = running[part]["sizes"]
            sizes = {"minSize": low, "desiredSize": desired, "maxSize": high}
            version = running[part].get("version", "1.35")
            account["eks/getNodeGroup"] = {"scalingConfigs": [sizes], "version": version}
    for name, answer in changes.items():
        usual = account.get(name)
        account[name] = (
            {**usual, **answer} if isinstance(usual, dict) and isinstance(answer, dict) else answer
        )
    return account


def aws_stack(*, account: Account | None = None, name: str = "dev", **keys: Any) -> Recorder:
    """Create a stack of target aws from `AWS` with changed settings; return what was registered."""
    from infra.target_aws import create_aws_stack

    inputs = read_stack_inputs(aws_settings(**keys), "paddle-training", name, ROOT)
    return record(lambda: create_aws_stack(inputs), account)


def local_stack(**keys: Any) -> Recorder:
    """Create a stack of target kubeconfig, without preflight checks; return what was registered."""
    inputs = read_stack_inputs(local_settings(**keys), "paddle-training", "dev", ROOT)
    return record(lambda: create_kubeconfig_stack(inputs))


@lru_cache
def default() -> Recorder:
    """Return the stack `dev` with an image; created once, so tests must not change it."""
    return aws_stack()


@lru_cache
def everything() -> Recorder:
    """Return a stack with all compatible options; created once, so tests must not change it."""
    return aws_stack(**EVERYTHING)
