"""Wiring of target aws, by mocks: roles, and the policy of the person who deploys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra import policies
from tests.aws_emulator.account import Account, AwsError, permissions

from .support import EVERYTHING, Recorder, default, everything


def test_every_role_has_the_path_and_the_boundary_that_were_asked_for() -> None:
    roles = everything().of("aws:iam/role:Role")
    assert {role.inputs["path"] for role in roles} == {"/teams/"}
    assert {role.inputs["permissionsBoundary"] for role in roles} == {
        EVERYTHING["iam"]["permissionsBoundary"]
    }
    assert not [r for r in default().of("aws:iam/role:Role") if "permissionsBoundary" in r.inputs]


def test_every_role_is_used() -> None:
    made = everything()
    texts = str([args.inputs for args in made.resources if args.typ != "aws:iam/role:Role"])
    for role in made.of("aws:iam/role:Role"):
        by_arn, by_profile = f"arn:aws:mock:::{role.name}", made.of("InstanceProfile")
        assert by_arn in texts or role.name in [p.inputs["role"] for p in by_profile], role.name


def test_no_policy_of_aws_with_full_access_is_attached() -> None:
    attached = [a.inputs["policyArn"] for a in everything().of("RolePolicyAttachment")]
    assert attached
    assert not [arn for arn in attached if "FullAccess" in arn or "Administrator" in arn]


def _types(recorder: Recorder) -> set[str]:
    return {args.typ for args in recorder.resources if args.typ.startswith("aws:")}


def _statements(documents: list[str]) -> list[dict[str, Any]]:
    return [statement for text in documents for statement in json.loads(text)["Statement"]]


def _actions(documents: list[str]) -> list[str]:
    return [action for statement in _statements(documents) for action in statement["Action"]]


def test_the_deployers_policy_is_what_the_resource_types_in_use_and_the_tools_need_and_no_more() -> None:
    used = _types(everything()) | _types(default())
    needed = set().union(*(permissions(row) for row in (*used, "every preview", "tools")))
    given = _actions(policies.deployer())
    assert set(given) == needed
    assert len(given) == len(set(given))
    assert not [action for action in given if "*" in action]


def test_an_account_refuses_a_deployer_who_lacks_one_action_of_a_mount_target(tmp_path: Path) -> None:
    account, kind = Account.create(tmp_path, moto=""), "aws:efs/mountTarget:MountTarget"
    account.grant(policies.deployer())
    account.enter(kind, "delete", "")
    account.grant(text.replace("ec2:DeleteNetworkInterface", "ec2:Other") for text in policies.deployer())
    with pytest.raises(AwsError, match="not authorized to perform: ec2:DeleteNetworkInterface"):
        account.enter(kind, "delete", "")


@pytest.mark.parametrize("documents", [policies.deployer(), policies.preview("aws")])
def test_each_document_fits_a_managed_policy_and_a_role_takes_all_of_them(documents: list[str]) -> None:
    assert [len("".join(text.split())) for text in documents if len("".join(text.split())) > 6144] == []
    assert len(documents) <= 10


def test_the_preview_role_changes_nothing_and_decrypts_with_the_states_key_only() -> None:
    statements = _statements(policies.preview("aws"))
    verbs = ("Describe", "Get", "List", "Decrypt")
    assert [a for s in statements for a in s["Action"] if not a.partition(":")[2].startswith(verbs)] == []
    limited = {
        s["Action"][0]: (s["Resource"], s.get("Condition")) for s in statements if len(s["Action"]) == 1
    }
    alias = {"kms:ResourceAliases": "alias/paddle-training-state"}
    assert limited["kms:Decrypt"] == ("*", {"ForAnyValue:StringEquals": alias})
    assert limited["s3:GetObject"] == ("arn:aws:s3:::paddle-training-state-*", None)


def test_the_deployer_hands_roles_to_the_services_in_use_only() -> None:
    passing = [s for s in _statements(policies.deployer()) if "iam:PassRole" in s["Action"]]
    assert [s["Action"] for s in passing] == [["iam:PassRole"]]
    services = {json.loads(r.inputs["assumeRolePolicy"])["Statement"][0]["Principal"]["Service"]
                for r in everything().of("aws:iam/role:Role")}  # fmt: skip
    assert set(passing[0]["Condition"]["StringEquals"]["iam:PassedToService"]) == services
