"""Target aws with mocks: IAM roles, and the policies of the deployer and of previews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra import deployer_permissions, iam_policies
from infra.settings import IamSettings
from infra.settings_errors import SettingsError
from testkit.aws_emulator import authorization
from testkit.aws_emulator.account import Account, AwsError, required_actions

from .recording_mocks import EVERYTHING, Recorder, aws_stack, default, everything

PREFIX = "paddle-training-dev"
DEPLOYER = iam_policies.deployer(PREFIX, IamSettings())
BOUNDARY = EVERYTHING["iam"]["permissionsBoundary"]
BOUNDED = iam_policies.deployer(PREFIX, IamSettings(path="/teams/", permissions_boundary=BOUNDARY))


def test_roles_have_path_and_boundary() -> None:
    roles = everything().of("aws:iam/role:Role")
    assert {role.inputs["path"] for role in roles} == {"/teams/"}
    assert {role.inputs["permissionsBoundary"] for role in roles} == {
        EVERYTHING["iam"]["permissionsBoundary"]
    }
    assert not [r for r in default().of("aws:iam/role:Role") if "permissionsBoundary" in r.inputs]


def test_roles_are_used() -> None:
    made = everything()
    texts = str([args.inputs for args in made.resources if args.typ != "aws:iam/role:Role"])
    for role in made.of("aws:iam/role:Role"):
        by_arn, by_profile = f"arn:aws:mock:::{role.name}", made.of("InstanceProfile")
        assert by_arn in texts or role.name in [p.inputs["role"] for p in by_profile], role.name


def test_roles_have_no_full_access_policy() -> None:
    attached = {a.inputs["policyArn"] for a in everything().of("RolePolicyAttachment")}
    assert attached == {f"arn:aws:iam::aws:policy/{name}" for name in deployer_permissions.ATTACHED}
    assert not [arn for arn in attached if "FullAccess" in arn or "Administrator" in arn]


def _types(recorder: Recorder) -> set[str]:
    return {args.typ for args in recorder.resources if args.typ.startswith("aws:")}


def _statements(documents: list[str]) -> list[dict[str, Any]]:
    return [statement for text in documents for statement in json.loads(text)["Statement"]]


def _actions(documents: list[str]) -> list[str]:
    return [action for statement in _statements(documents) for action in statement["Action"]]


def test_deployer_policy_has_exactly_the_needed_actions() -> None:
    used = _types(everything()) | _types(default())
    needed = set().union(
        *(required_actions(row) for row in (*used, "role that loses its boundary", "every preview", "tools"))
    )
    given = _actions(DEPLOYER)
    assert set(given) == needed
    assert len(given) == len(set(given))
    assert not [action for action in given if "*" in action]
    assert needed - set(_actions(BOUNDED)) == {deployer_permissions.UNBOUND}


def test_deployer_without_one_action_is_denied(tmp_path: Path) -> None:
    account, kind = Account.create(tmp_path, moto=""), "aws:efs/mountTarget:MountTarget"
    account.grant(DEPLOYER)
    account.enter(kind, "delete", "")
    account.grant(text.replace("ec2:DeleteNetworkInterface", "ec2:Other") for text in DEPLOYER)
    with pytest.raises(AwsError, match="not authorized to perform: ec2:DeleteNetworkInterface"):
        account.enter(kind, "delete", "")


@pytest.mark.parametrize("documents", [DEPLOYER, BOUNDED, iam_policies.preview("aws")])
def test_policy_documents_fit_managed_policies(documents: list[str]) -> None:
    assert [len("".join(text.split())) for text in documents if len("".join(text.split())) > 6144] == []
    assert len(documents) <= 10


def test_preview_policy_is_read_only() -> None:
    statements = _statements(iam_policies.preview("aws"))
    verbs = ("Describe", "Get", "List", "Decrypt")
    assert [a for s in statements for a in s["Action"] if not a.partition(":")[2].startswith(verbs)] == []
    limited = {
        s["Action"][0]: (s["Resource"], s.get("Condition")) for s in statements if len(s["Action"]) == 1
    }
    alias = {"kms:ResourceAliases": "alias/paddle-training-state"}
    assert limited["kms:Decrypt"] == ("*", {"ForAnyValue:StringEquals": alias})
    assert limited["s3:GetObject"] == ("arn:aws:s3:::paddle-training-state-*", None)


def test_deployer_policy_passes_roles_only_to_used_services() -> None:
    passing = [s for s in _statements(DEPLOYER) if "iam:PassRole" in s["Action"]]
    assert [s["Action"] for s in passing] == [["iam:PassRole"]]
    services = {json.loads(r.inputs["assumeRolePolicy"])["Statement"][0]["Principal"]["Service"]
                for r in everything().of("aws:iam/role:Role")}  # fmt: skip
    assert set(passing[0]["Condition"]["StringEquals"]["iam:PassedToService"]) == services


OWN, FOREIGN = (
    f"arn:aws:iam::123456789012:role/teams/{PREFIX}-nodes-1",
    "arn:aws:iam::123456789012:role/Admin",
)
CHANGES = (
    *("AttachRolePolicy", "CreateRole", "DeleteRole", "DeleteRolePolicy", "DetachRolePolicy", "PassRole"),
    *("PutRolePermissionsBoundary", "PutRolePolicy", "UpdateAssumeRolePolicy"),
)


@pytest.mark.parametrize("action", CHANGES)
def test_deployer_policy_changes_and_passes_only_own_roles(action: str) -> None:
    request = {
        "iam:PermissionsBoundary": BOUNDARY,
        "iam:PolicyARN": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy",
        "iam:PassedToService": "eks.amazonaws.com",
    }
    granted = authorization.statements(BOUNDED)
    assert authorization.is_allowed(granted, f"iam:{action}", OWN, request)
    assert not authorization.is_allowed(granted, f"iam:{action}", FOREIGN, request)


@pytest.mark.parametrize("action", f"{deployer_permissions.BOUNDED} {deployer_permissions.ATTACH}".split())
def test_deployer_policy_with_boundary_requires_it(action: str) -> None:
    policy = {"iam:PolicyARN": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"}
    granted = authorization.statements(BOUNDED)
    assert not authorization.is_allowed(granted, action, OWN, policy)
    assert not authorization.is_allowed(granted, action, OWN, policy | {"iam:PermissionsBoundary": "other"})


def test_deployer_policy_attaches_no_administrator_policy() -> None:
    request = {"iam:PolicyARN": "arn:aws:iam::aws:policy/AdministratorAccess"}
    own = OWN.replace("/teams", "")
    assert not authorization.is_allowed(
        authorization.statements(DEPLOYER), "iam:AttachRolePolicy", own, request
    )


def test_trust_policy_allows_tagged_sessions_only_for_pods() -> None:
    assert "sts:TagSession" in iam_policies.trust("pods.eks.amazonaws.com")
    assert "sts:TagSession" not in iam_policies.trust("ec2.amazonaws.com")


def test_caller_that_is_no_administrator_is_rejected_before_any_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    sso = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/Deployer"
    caller = {"aws:iam/getSessionContext:getSessionContext": {"id": "x", "issuerArn": sso}}
    with pytest.raises(SettingsError, match=rf"does not list {sso}, so .*\n.*'cluster.admins\[1\]' {sso}"):
        aws_stack(answers=caller)
    aws_stack(answers=caller, compute="off")
    # The role of pull requests previews the stack, and may not deploy it.
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    aws_stack(answers=caller)
    assert [text for text in said if f"does not list {sso}" in text]
    said.clear()
    caller["aws:iam/getSessionContext:getSessionContext"]["issuerArn"] = (
        "arn:aws:iam::123456789012:role/preview"
    )
    aws_stack(answers=caller, cluster={"admins": ["role/Admin"], "viewers": ["role/preview"]})
    assert not [text for text in said if "does not list" in text]


def test_root_user_cannot_be_an_administrator() -> None:
    root = "arn:aws:iam::123456789012:root"
    caller = {"aws:iam/getSessionContext:getSessionContext": {"id": "x", "issuerArn": root}}
    with pytest.raises(SettingsError, match=r"EKS accepts only roles and users\n.*sign in as a role"):
        aws_stack(answers=caller)


@pytest.mark.parametrize("key", ["admins", "viewers"])
def test_principal_that_iam_lacks_is_rejected_before_any_resource(key: str) -> None:
    absent = Exception("reading IAM User (ghost): couldn't find resource")
    cluster = {"admins": ["role/Admin"]}
    cluster[key] = [*cluster.get(key, []), "user/ghost"]
    with pytest.raises(SettingsError, match=r"user/ghost does not exist in IAM"):
        aws_stack(answers={"aws:iam/getUser:getUser": absent}, cluster=cluster)
    other_account = ["arn:aws:iam::999999999999:user/ghost"]
    aws_stack(answers={"aws:iam/getUser:getUser": absent}, cluster={"admins": ["role/Admin", *other_account]})


def test_principal_without_its_path_is_rejected_with_the_full_arn() -> None:
    full = "arn:aws:iam::123456789012:role/teams/Admin"
    answers = {"aws:iam/getRole:getRole": {"id": "x", "arn": full}}
    with pytest.raises(
        SettingsError, match=rf"EKS accepts only the full ARN\n.*'cluster.admins\[0\]' {full}"
    ):
        aws_stack(answers=answers)


def test_iam_that_cannot_be_read_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    aws_stack(answers={"aws:iam/getRole:getRole": Exception("AccessDenied: iam:GetRole")})
    assert [text for text in said if "were not compared with IAM" in text and "AccessDenied" in text]


@pytest.mark.parametrize(("networks", "warned"), [([], True), (["203.0.113.0/24"], False)])
def test_api_server_without_public_access_is_a_warning(
    networks: list[str], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    aws_stack(cluster={"admins": ["role/Admin"], "publicCidrs": networks})
    assert bool([text for text in said if "cluster.publicCidrs is empty" in text]) is warned
