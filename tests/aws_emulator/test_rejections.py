"""The rules of rejections.yaml, and some that need code: what AWS rejects and moto accepts, faults and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jmespath
import pytest
import yaml

from testkit.aws_emulator import inventory, invokes, pulumi_engine
from testkit.aws_emulator.account import Account, AwsError, required_actions
from testkit.aws_emulator.handler import HANDLERS
from testkit.aws_emulator.resource_model import TYPES, Model
from tests.aws_emulator.test_resource_model import CLUSTER, ROLE, SUBNET, TRUST, VPC, _make

KINDS = {kind.rpartition(":")[2]: kind for kind in {*TYPES, *HANDLERS}}
ROWS = yaml.safe_load(Path(__file__).with_name("rejections.yaml").read_text(encoding="utf-8"))["rules"]


def _steps(listed: list[Any]) -> Iterator[dict[str, Any]]:
    for step in listed:
        yield from _steps(step) if isinstance(step, list) else [step]


def _filled(value: Any, known: dict[str, Any]) -> Any:
    """Return a value of the table with the names that begin with `$` replaced by what they refer to."""
    if isinstance(value, dict):
        return {key: _filled(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    name, _, rest = value[1:].partition(".")
    return jmespath.search(rest, known[name]) if rest else known[name]["id"]


def _check_seen(step: dict[str, Any], found: dict[str, Any] | None) -> None:
    assert step["sees"] == (found and {text: jmespath.search(text, found) for text in step["sees"] or ()})


def _grant(account: Account, limits: dict[str, Any]) -> None:
    """Grant the rights of the rules; actions that change or pass IAM roles only for roles `own-*`, with `limits`."""
    changes = "CreateRole DeleteRole PassRole PutRolePolicy AttachRolePolicy UpdateAssumeRolePolicy"
    limited = {f"iam:{name}" for name in changes.split()}
    kinds = (ROLE, CLUSTER, KINDS["RolePolicy"], KINDS["RolePolicyAttachment"])
    others = {"Action": sorted(set().union(*map(required_actions, kinds)) - limited), "Resource": "*"}
    own = {"Action": sorted(limited), "Resource": "arn:aws:iam::123456789012:role/own-*", **limits}
    account.grant([json.dumps({"Statement": [others, own]})])


def _perform(model: Model, step: dict[str, Any], known: dict[str, Any]) -> None:
    inputs, rid = _filled(step.get("with", {}), known), _filled(step.get("id", ""), known)
    if "make" in step:
        made, outputs = _make(model, KINDS[step["make"]], **inputs)
        known[step.get("as", "")] = {"id": made, "outputs": outputs}
    elif "update" in step:
        record = model.account.get(KINDS[step["update"]], rid)
        assert record is not None
        model.update(record.type, record.urn, rid, record.inputs, record.inputs | inputs)
    elif "remove" in step:
        model.delete(KINDS[step["remove"]], "urn", rid, {})
    elif "change" in step:
        model.account.change(**step["change"])
    elif "grant" in step:
        _grant(model.account, step["grant"])
    elif "fail" in step:
        model.account.fail(KINDS[step["fail"]], **step["with"])
    elif "call" in step:
        service, method = step["call"].split(".")
        known[step.get("as", "")] = {"outputs": getattr(model.cloud.client(service), method)(**inputs)}
    elif "invoke" in step:
        _check_seen(step, invokes.invoke(model.cloud, step["invoke"], inputs))
    elif "read" in step:
        kind, record = KINDS[step["read"]], model.account.get(KINDS[step["read"]], rid)
        found = model.read(kind, "urn", rid, inputs if record is None or "with" in step else record.inputs)
        _check_seen(step, found and {**found[0], "outputs": found[1]})
    else:
        assert inventory.list_leftovers(model.account, pulumi_engine.REGION) == step["left"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rule"])
def test_emulator_follows_the_rule(model: Model, row: dict[str, Any]) -> None:
    known: dict[str, Any] = {}
    for step in _steps(row["steps"]):
        if "rejects" in step:
            with pytest.raises(AwsError, match=step["rejects"]):
                _perform(model, step, known)
        else:
            _perform(model, step, known)


def test_addon_schemas_are_closed_and_cite_source() -> None:
    for path in (Path(invokes.__file__).parent / "addons").glob("*.json"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        assert schema["additionalProperties"] is False, path.name
        assert len(schema["$comment"]) > 30, path.name


def test_cluster_in_zone_without_control_plane_rejects(account: Account) -> None:
    east = Model(account, "us-east-1", {})
    zones = east.cloud.client("ec2").describe_availability_zones()["AvailabilityZones"]
    unfit = next(zone["ZoneName"] for zone in zones if zone["ZoneId"] == "use1-az3")
    names = invokes.invoke(
        east.cloud, "aws:index/getAvailabilityZones:getAvailabilityZones", {"excludeZoneIds": ["use1-az3"]}
    )["names"]
    assert unfit not in names
    vpc, _ = _make(east, VPC, cidrBlock="10.0.0.0/16")
    places = (("10.0.0.0/24", names[0]), ("10.0.1.0/24", unfit))
    subnets = [
        _make(east, SUBNET, vpcId=vpc, cidrBlock=block, availabilityZone=zone)[0] for block, zone in places
    ]
    role = _make(east, ROLE, assumeRolePolicy=TRUST)[1]["arn"]
    with pytest.raises(AwsError, match=r"UnsupportedAvailabilityZoneException.*use1-az3"):
        _make(east, CLUSTER, name="c", roleArn=role, vpcConfig={"subnetIds": subnets})


def test_check_too_long_name_reports_limit(model: Model) -> None:
    _, failures = model.check(ROLE, "x" * 60, {}, {"assumeRolePolicy": TRUST}, b"seed")
    assert [path for path, why in failures if "64" in why] == ["name"]
