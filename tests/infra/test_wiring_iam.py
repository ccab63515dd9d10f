"""Target aws with mocks: IAM roles, and the policies of the deployer and of previews."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import iam_policies
from infra.settings import IamSettings
from testkit.aws_emulator import authorization
from testkit.aws_emulator.account import Account, AwsError, required_actions

from .recording_mocks import EVERYTHING, Recorder, default, everything

PREFIX = "paddle-training-dev"
DEPLOYER = iam_policies.deployer(PREFIX, IamSettings())
BOUNDARY = EVERYTHING["iam"]["permissionsBoundary"]
BOUNDED = iam_policies.deployer(PREFIX, IamSettings(path="/teams/", permissions_boundary=BOUNDARY))


def test_roles_are_used() -> None:
    made = everything()
    texts = str([args.inputs for args in made.resources if args.typ != "aws:iam/role:Role"])
    for role in made.of("aws:iam/role:Role"):
        by_arn, by_profile = f"arn:aws:mock:::{role.name}", made.of("InstanceProfile")
        assert by_arn in texts or role.name in [p.inputs["role"] for p in by_profile], role.name


def test_roles_have_no_full_access_policy() -> None:
    attached = {a.inputs["policyArn"] for a in everything().of("RolePolicyAttachment")}
    [attaches] = [s for s in authorization.statements(DEPLOYER) if "iam:AttachRolePolicy" in s["Action"]]
    assert attached == set(attaches["Condition"]["ArnEquals"]["iam:PolicyARN"])
    assert not [arn for arn in attached if "FullAccess" in arn or "Administrator" in arn]


def _types(recorder: Recorder) -> set[str]:
    return {args.typ for args in recorder.resources if args.typ.startswith("aws:")}


def test_deployer_policy_has_exactly_the_needed_actions() -> None:
    used = _types(everything()) | _types(default())
    needed = set().union(
        *(required_actions(row) for row in (*used, "role that loses its boundary", "every preview", "tools"))
    )
    given = authorization.actions(DEPLOYER)
    assert set(given) == needed
    for statement in authorization.statements(DEPLOYER):
        assert len(statement["Action"]) == len(set(statement["Action"]))
    assert not [action for action in given if "*" in action]
    assert needed - set(authorization.actions(BOUNDED)) == {"iam:DeleteRolePermissionsBoundary"}


def test_deployer_without_one_action_is_denied(tmp_path: Path) -> None:
    account, kind = Account.create(tmp_path, moto=""), "aws:efs/mountTarget:MountTarget"
    account.grant(DEPLOYER)
    account.enter(kind, "delete")
    account.grant(text.replace("ec2:DeleteNetworkInterface", "ec2:Other") for text in DEPLOYER)
    with pytest.raises(AwsError, match="not authorized to perform: ec2:DeleteNetworkInterface"):
        account.enter(kind, "delete")


@pytest.mark.parametrize("documents", [DEPLOYER, BOUNDED, iam_policies.preview("aws")])
def test_policy_documents_fit_managed_policies(documents: list[str]) -> None:
    assert [len("".join(text.split())) for text in documents if len("".join(text.split())) > 6144] == []
    assert len(documents) <= 10


def test_preview_policy_is_read_only() -> None:
    documents = iam_policies.preview("aws")
    verbs = ("Describe", "Get", "List", "Decrypt")
    assert [a for a in authorization.actions(documents) if not a.partition(":")[2].startswith(verbs)] == []
    limited = {
        s["Action"][0]: (s["Resource"], s.get("Condition"))
        for s in authorization.statements(documents)
        if len(s["Action"]) == 1
    }
    alias = {"kms:ResourceAliases": "alias/paddle-training-state"}
    assert limited["kms:Decrypt"] == ("*", {"ForAnyValue:StringEquals": alias})
    assert limited["s3:GetObject"] == ("arn:aws:s3:::paddle-training-state-*", None)


def test_deployer_policy_passes_roles_only_to_used_services() -> None:
    passing = [s for s in authorization.statements(DEPLOYER) if "iam:PassRole" in s["Action"]]
    assert [s["Action"] for s in passing] == [["iam:PassRole"]]
    services = {json.loads(r.inputs["assumeRolePolicy"])["Statement"][0]["Principal"]["Service"]
                for r in everything().of("aws:iam/role:Role")}  # fmt: skip
    assert set(passing[0]["Condition"]["StringEquals"]["iam:PassedToService"]) == services


def test_deployer_policy_limits_every_action_without_a_reason() -> None:
    free = [s for s in authorization.statements(DEPLOYER) if s["Resource"] == "*" and "Condition" not in s]
    actions = {action for statement in free for action in statement["Action"]}
    unscoped = [rule for rule in iam_policies.RULES if len(rule.get("reason", "")) > 30]
    assert actions == {name for rule in unscoped for names in iam_policies.full_names(rule) for name in names}
    reads = ("Describe", "Get", "List", "Simulate")
    changes = {a for a in actions if not a.partition(":")[2].startswith(reads)}
    assert {action.partition(":")[0] for action in changes} == {"route53"}
    assert len(actions) < len(iam_policies.actions()) / 3


def test_deployer_tags_what_it_creates() -> None:
    """The condition `CreateAction` has the actions that create tagged resources, and no others."""
    statements = authorization.statements(DEPLOYER)
    for service, tag in (("ec2", "ec2:CreateTags"), ("elasticfilesystem", "elasticfilesystem:TagResource")):
        asked = [s for s in statements if "aws:RequestTag/KubernetesCluster" in str(s.get("Condition"))]
        [tags] = [s for s in asked if s["Action"] == [tag]]
        [creates] = [s for s in asked if s["Action"][0].startswith(f"{service}:") and tag not in s["Action"]]
        allowed = tags["Condition"]["StringEquals"][f"{service}:CreateAction"]
        assert [f"{service}:{name}" for name in allowed] == creates["Action"]


GRANTED = {
    "deployer": DEPLOYER,
    "deployer with a boundary": BOUNDED,
    "deployer with key 1": iam_policies.deployer(
        PREFIX, IamSettings(), key_arn="arn:aws:kms:us-west-2:123456789012:key/1"
    ),
    "preview": iam_policies.preview("aws"),
}
REQUESTS = yaml.safe_load(Path(__file__).with_name("iam_requests.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row["rule"])
def test_policies_allow_only_what_the_rule_says(row: dict[str, Any]) -> None:
    granted = authorization.statements(GRANTED[row.get("who", "deployer")])
    for verdict, stacks in (
        ("allowed", [PREFIX]),
        ("denied", ["paddle-training-other", "production", f"x-{PREFIX}"]),
    ):
        for (actions, default_arn), request in itertools.product(row["requests"].items(), row[verdict]):
            context = dict(request)
            arn = context.pop("resource", default_arn)
            for action, stack in itertools.product(actions.split(), stacks):
                found = authorization.is_allowed(granted, action, arn.format(stack), context)
                assert found is (verdict == "allowed"), (action, arn.format(stack), context)


WITH_BOUNDARY = [rule for rule in iam_policies.RULES if rule.get("boundary") == "required"]


@pytest.mark.parametrize(
    "action", [name for rule in WITH_BOUNDARY for names in iam_policies.full_names(rule) for name in names]
)
def test_deployer_policy_with_boundary_requires_it(action: str) -> None:
    granted, role = (
        authorization.statements(BOUNDED),
        f"arn:aws:iam::123456789012:role/teams/{PREFIX}-nodes-1",
    )
    policy = {"iam:PolicyARN": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"}
    for boundary in ({}, {"iam:PermissionsBoundary": "other"}):
        assert not authorization.is_allowed(granted, action, role, policy | boundary)


def test_preview_role_trusts_only_pull_requests_of_the_repository() -> None:
    (rule,) = json.loads(
        iam_policies.policy("trust of previews", partition="aws", repository="paddle/training")
    )["Statement"]
    assert rule["Action"] == "sts:AssumeRoleWithWebIdentity"
    github = "token.actions.githubusercontent.com"
    assert rule["Principal"]["Federated"].endswith(f":oidc-provider/{github}")
    expected = {f"{github}:aud": "sts.amazonaws.com", f"{github}:sub": "repo:paddle/training:pull_request"}
    assert rule["Condition"] == {"StringEquals": expected}
