"""What the emulator refuses and fills in before anything is made, by the SDK's own classes."""

from __future__ import annotations

import re

import pytest

from tests.aws_emulator import checks, model, replacements, sdk
from tests.aws_emulator.cloud import HANDLERS
from tests.aws_emulator.wire import UNKNOWN, diff

NODES = "aws:eks/nodeGroup:NodeGroup"


def _nodes(**change: object) -> dict[str, object]:
    sizes = {"minSize": 1, "desiredSize": 1, "maxSize": 3}
    given = {"clusterName": "c", "nodeRoleArn": "r", "subnetIds": ["s"], "scalingConfig": sizes}
    return given | change


def _reasons(kind: str, inputs: dict[str, object]) -> str:
    return "\n".join(f"{path}: {reason}" for path, reason in checks.failures(sdk.shape(kind), inputs))


def test_right_inputs_are_accepted() -> None:
    assert _reasons(NODES, _nodes()) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
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
def test_an_input_that_the_sdk_does_not_allow_is_refused(change: dict[str, object], words: str) -> None:
    assert words in _reasons(NODES, _nodes(**change))


def test_a_value_that_is_not_known_yet_passes_every_type() -> None:
    assert _reasons(NODES, _nodes(subnetIds=UNKNOWN, scalingConfig=UNKNOWN)) == ""


def test_a_type_that_the_sdk_lacks_is_refused() -> None:
    with pytest.raises(sdk.UnknownTypeError, match="VpcThing"):
        sdk.shape("aws:ec2/vpcThing:VpcThing")


@pytest.mark.parametrize("kind", sorted(HANDLERS))
def test_every_emulated_type_and_its_filled_fields_are_the_sdk_s(kind: str) -> None:
    shape = sdk.shape(kind)
    unknown = {*HANDLERS[kind].filled, *HANDLERS[kind].volatile} - {*shape.inputs, *shape.state}
    assert not unknown, f"{kind} has no properties {unknown}"


@pytest.mark.parametrize("kind", sorted(replacements.TABLE))
def test_every_row_of_the_replacement_table_is_a_field_and_cites_its_document(kind: str) -> None:
    shape = sdk.shape(kind)
    for field, document in replacements.TABLE[kind].items():
        head = field.split(".")[0]
        assert head in shape.inputs, f"{kind} has no input {head}"
        assert document.startswith((replacements.CFN, replacements.TF)) and len(document) > 70


# Said of endpoints of other kinds only, where the field has no meaning.
_CONDITIONAL = {("aws:ec2/vpcEndpoint:VpcEndpoint", "privateDnsEnabled")}


@pytest.mark.parametrize("kind", sorted(replacements.TABLE))
def test_fields_that_the_sdk_says_force_a_new_resource_are_in_the_table(kind: str) -> None:
    said = re.compile(r"(?i)forces? (a )?new resource|forces replacement|change this forces")
    for field in sdk.shape(kind).inputs.values():
        if said.search(field.doc) and (kind, field.name) not in _CONDITIONAL:
            assert replacements.document(kind, field.name), f"{kind} {field.name}: {field.doc}"


def test_a_change_in_a_set_of_plain_values_is_no_change_when_only_the_order_differs() -> None:
    assert diff({"subnetIds": ["a", "b"]}, {"subnetIds": ["b", "a"]}) == {}


def test_a_policy_document_that_was_only_reformatted_is_no_change() -> None:
    assert diff({"policy": '{"a": [1,2]}'}, {"policy": '{ "a":[1, 2] }'}) == {}


def test_differences_are_named_by_their_deepest_path() -> None:
    old = {"scalingConfig": {"desiredSize": 1, "maxSize": 3}, "tags": {"a.b": "x"}}
    new = {"scalingConfig": {"desiredSize": 3, "maxSize": 3}, "tags": {}, "labels": {"k": "v"}}
    expected = {"scalingConfig.desiredSize": "update", 'tags["a.b"]': "delete", "labels": "add"}
    assert diff(old, new) == expected


def test_default_tags_are_merged_and_a_resource_s_own_tag_wins(model: model.Model) -> None:
    inputs, _ = model.check("aws:ec2/vpc:Vpc", "net", {}, {"tags": {"Name": "n", "Project": "own"}}, b"seed")
    assert inputs["tags"] == {"Project": "own", "Name": "n"}
    assert model.check("aws:ec2/vpc:Vpc", "net", {}, {}, b"seed")[0]["tags"] == {"Project": "emulated"}


def test_an_automatic_name_is_kept_from_run_to_run(model: model.Model) -> None:
    kind = "aws:iam/role:Role"
    first, _ = model.check(kind, "pods", {}, {"assumeRolePolicy": "{}"}, b"\x01\x02\x03\x04")
    assert re.fullmatch(r"pods-[0-9a-f]{7}", first["name"])
    assert (
        model.check(kind, "pods", first, {"assumeRolePolicy": "{}"}, b"\x09\x09\x09\x09")[0]["name"]
        == first["name"]
    )


def test_a_given_name_has_the_old_one_deleted_first_and_an_automatic_one_does_not(model: model.Model) -> None:
    kind, trust = "aws:iam/role:Role", {"assumeRolePolicy": "{}"}
    for given, first in (({"name": "fixed"}, True), ({}, False)):
        old, _ = model.check(kind, "pods", {}, trust | given, b"seed")
        new, _ = model.check(kind, "pods", old, trust | given | {"path": "/p/"}, b"other")
        found = model.diff(kind, old, new, [], None)
        assert (found.replaces, found.delete_first) == (["path"], first)


def test_a_preview_does_not_know_what_only_the_cloud_decides(model: model.Model) -> None:
    network = {"subnetIds": ["subnet-1"]}
    planned = model.preview("aws:eks/cluster:Cluster", {"name": "c", "roleArn": "r", "vpcConfig": network})
    unknown = {name for name, value in planned.items() if value == UNKNOWN}
    assert {"arn", "endpoint", "certificateAuthority", "version"} <= unknown
    assert planned["vpcConfig"]["clusterSecurityGroupId"] == UNKNOWN
    assert planned["name"] == "c"
