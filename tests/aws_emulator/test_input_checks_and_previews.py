"""Checks of inputs against the SDK's classes, defaults, differences and previews."""

from __future__ import annotations

import re
from typing import Any

import pytest

from testkit.aws_emulator import input_checks, resource_model, sdk_schema
from testkit.aws_emulator.handler import HANDLERS
from testkit.aws_emulator.property_values import UNKNOWN, diff_values

NODES = "aws:eks/nodeGroup:NodeGroup"
REPLACED = sorted(kind for kind, row in resource_model.TYPES.items() if "replaced" in row)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"subnetIds": UNKNOWN, "scalingConfig": UNKNOWN}, ""),  # it has every type
        ({"clusterName": None}, "missing required property"),
        ({"subnetIds": "subnet-1"}, "must be list, not str"),
        ({"instanceType": "m6i.large"}, "unknown property 'instanceType'"),
        ({"scalingConfig": {"minSize": 1, "maxSize": 3}}, "'scalingConfig.desiredSize'"),
        ({"scalingConfig": {"minSize": "1", "desiredSize": 1, "maxSize": 3}}, "must be int, not str"),
        ({"forceUpdateVersion": 1}, "must be bool, not int"),
        (
            {"taints": [{"key": "a", "effect": "NO_EXECUTE", "colour": "red"}]},
            "unknown property 'taints[0].colour'",
        ),
    ],
)
def test_check_inputs_rejects_exactly_what_the_sdk_does_not_have(
    change: dict[str, object], words: str
) -> None:
    sizes = {"minSize": 1, "desiredSize": 1, "maxSize": 3}
    given = {"clusterName": "c", "nodeRoleArn": "r", "subnetIds": ["s"], "scalingConfig": sizes}
    found = input_checks.find_failures(sdk_schema.read_shape(NODES), given | change)
    reasons = "\n".join(f"{path}: {reason}" for path, reason in found)
    assert words in reasons
    assert bool(reasons) == bool(words)


def test_shape_type_missing_in_sdk_raises() -> None:
    with pytest.raises(sdk_schema.UnknownTypeError, match="VpcThing"):
        sdk_schema.read_shape("aws:ec2/vpcThing:VpcThing")


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_handlers_types_and_volatile_outputs_exist_in_sdk(kind: str) -> None:
    assert set(HANDLERS[kind].volatile) <= sdk_schema.read_shape(kind).state.keys()


@pytest.mark.parametrize("kind", REPLACED)
def test_replacement_table_fields_exist_and_cite_a_document(kind: str) -> None:
    row = resource_model.TYPES[kind]
    assert {field.split(".")[0] for field in row["replaced"]} <= sdk_schema.read_shape(kind).inputs.keys()
    assert re.match(r"(CFN AWS::\w+::\w+|TF \w+)", row["document"]), row


# Documented only for other kinds of endpoints, where the field has no effect.
_CONDITIONAL = {("aws:ec2/vpcEndpoint:VpcEndpoint", "privateDnsEnabled")}


@pytest.mark.parametrize("kind", REPLACED)
def test_replacement_table_contains_fields_that_sdk_documents(kind: str) -> None:
    said = re.compile(r"(?i)forces? (a )?new resource|forces replacement|change this forces")
    for field in sdk_schema.read_shape(kind).inputs.values():
        if said.search(field.doc) and (kind, field.name) not in _CONDITIONAL:
            assert resource_model.is_replaced(kind, field.name), f"{kind} {field.name}: {field.doc}"


SIZES = {"desiredSize": 1, "maxSize": 3}


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"subnetIds": ["a", "b"]}, {"subnetIds": ["b", "a"]}, {}),
        ({"policy": '{"a": [1,2]}'}, {"policy": '{ "a":[1, 2] }'}, {}),
        (
            {"scalingConfig": SIZES},
            {"scalingConfig": SIZES | {"desiredSize": 3}},
            {"scalingConfig.desiredSize": "update"},
        ),
        ({"tags": {"a.b": "x"}}, {"tags": {}}, {'tags["a.b"]': "delete"}),
        ({}, {"labels": {"k": "v"}}, {"labels": "add"}),
    ],
)
def test_diff_reports_the_deepest_paths_that_differ_in_meaning(old: Any, new: Any, changes: Any) -> None:
    assert diff_values(old, new) == changes


@pytest.mark.slow
def test_check_default_tags_are_merged_below_resource_tags(model: resource_model.Model) -> None:
    inputs, _ = model.check("aws:ec2/vpc:Vpc", "net", {}, {"tags": {"Name": "n", "Project": "own"}}, b"seed")
    assert inputs["tags"] == {"Project": "own", "Name": "n"}
    assert model.check("aws:ec2/vpc:Vpc", "net", {}, {}, b"seed")[0]["tags"] == {"Project": "emulated"}


def test_check_automatic_name_stays_between_runs(model: resource_model.Model) -> None:
    kind = "aws:iam/role:Role"
    first, _ = model.check(kind, "pods", {}, {"assumeRolePolicy": "{}"}, b"\x01\x02\x03\x04")
    assert re.fullmatch(r"pods-[0-9a-f]{7}", first["name"])
    assert (
        model.check(kind, "pods", first, {"assumeRolePolicy": "{}"}, b"\x09\x09\x09\x09")[0]["name"]
        == first["name"]
    )


def test_diff_replacement_with_fixed_name_deletes_first(
    model: resource_model.Model,
) -> None:
    kind, trust = "aws:iam/role:Role", {"assumeRolePolicy": "{}"}
    for given, first in (({"name": "fixed"}, True), ({}, False)):
        old, _ = model.check(kind, "pods", {}, trust | given, b"seed")
        new, _ = model.check(kind, "pods", old, trust | given | {"path": "/p/"}, b"other")
        found = model.diff(kind, old, new, [], None)
        assert (found.replaces, found.delete_first) == (["path"], first)


def test_preview_outputs_set_by_cloud_are_unknown(model: resource_model.Model) -> None:
    network = {"subnetIds": ["subnet-1"]}
    planned = model.preview("aws:eks/cluster:Cluster", {"name": "c", "roleArn": "r", "vpcConfig": network})
    unknown = {name for name, value in planned.items() if value == UNKNOWN}
    assert {"arn", "endpoint", "certificateAuthority", "version"} <= unknown
    assert planned["vpcConfig"]["clusterSecurityGroupId"] == UNKNOWN
    assert planned["name"] == "c"
