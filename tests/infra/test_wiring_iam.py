"""Target aws with mocks: IAM roles, and the policies of the deployer and of previews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra import iam_policies
from infra.settings import IamSettings, SettingsError
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
    assert attached == {f"arn:aws:iam::aws:policy/{name}" for name in iam_policies.ATTACHED}
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
    for statement in _statements(DEPLOYER):
        assert len(statement["Action"]) == len(set(statement["Action"]))
    assert not [action for action in given if "*" in action]
    assert needed - set(_actions(BOUNDED)) == {iam_policies.UNBOUND}


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


def test_deployer_policy_limits_every_action_without_a_reason() -> None:
    free = [s for s in _statements(DEPLOYER) if s["Resource"] == "*" and "Condition" not in s]
    actions = {action for statement in free for action in statement["Action"]}
    unscoped = [rule for rule in iam_policies.RULES if len(rule.get("reason", "")) > 30]
    assert actions == {name for rule in unscoped for names in iam_policies.full_names(rule) for name in names}
    reads = ("Describe", "Get", "List", "Simulate")
    changes = {a for a in actions if not a.partition(":")[2].startswith(reads)}
    assert {action.partition(":")[0] for action in changes} == {"route53"}
    assert len(actions) < len(iam_policies.actions()) / 3


STACK, OTHER = {"KubernetesCluster": PREFIX}, {"KubernetesCluster": "paddle-training-other"}
ACCOUNT = "123456789012"
# Resources, and the actions on them that only the tag of the stack makes sufficient.
BY_TAG = {
    "ec2/vpc/vpc-1": "CreateSubnet CreateTags DeleteTags DeleteVpc ModifyVpcAttribute",
    "ec2/instance/i-1": "StopInstances TerminateInstances",
    "ec2/security-group/sg-1": "AuthorizeSecurityGroupIngress DeleteSecurityGroup",
    "ec2/route-table/rtb-1": "CreateRoute DeleteRoute ReplaceRoute",
    "ec2/elastic-ip/eipalloc-1": "ReleaseAddress",
    "ec2/launch-template/lt-1": "CreateLaunchTemplateVersion",
    "elasticfilesystem/file-system/fs-1": (
        "CreateMountTarget DeleteFileSystem PutFileSystemPolicy TagResource UpdateFileSystem"
    ),
    "kms/key/1": "CreateGrant DisableKeyRotation PutKeyPolicy ScheduleKeyDeletion UpdateKeyDescription",
}
CREATIONS = {
    "ec2/x/1": "AllocateAddress CreateLaunchTemplate CreateVpc RunInstances",
    "elasticfilesystem/x/1": "CreateFileSystem",
    "kms/x/1": "CreateKey",
    "eks/x/1": "CreateCluster",
}
# Action and resource; the name of the stack makes it sufficient.
BY_NAME = [
    ("eks:DeleteCluster", "arn:aws:eks:us-west-2:123456789012:cluster/{}"),
    ("eks:UpdateNodegroupConfig", "arn:aws:eks:us-west-2:123456789012:nodegroup/{}/nodes/1"),
    ("eks:AssociateAccessPolicy", "arn:aws:eks:us-west-2:123456789012:access-entry/{}/role/1/Admin/1"),
    ("ecr:PutImage", "arn:aws:ecr:us-west-2:123456789012:repository/{}-launcher-1"),
    ("ecr:DeleteRepository", "arn:aws:ecr:us-west-2:123456789012:repository/{}-launcher-1"),
    ("s3:DeleteBucket", "arn:aws:s3:::{}-artifacts-1"),
    ("s3:GetObject", "arn:aws:s3:::{}-artifacts-1/models/a"),
    ("s3:PutBucketPolicy", "arn:aws:s3:::{}-artifacts-1"),
    ("logs:DeleteLogGroup", "arn:aws:logs:us-west-2:123456789012:log-group:/aws/eks/{}/cluster:*"),
    ("budgets:ModifyBudget", "arn:aws:budgets::123456789012:budget/{}-budget"),
    ("kms:DeleteAlias", "arn:aws:kms:us-west-2:123456789012:alias/{}-1"),
]


def test_deployer_tags_what_it_creates() -> None:
    """The condition `CreateAction` has the actions that create tagged resources, and no others."""
    statements = _statements(DEPLOYER)
    for service, tag in (("ec2", "ec2:CreateTags"), ("elasticfilesystem", "elasticfilesystem:TagResource")):
        asked = [s for s in statements if "aws:RequestTag/KubernetesCluster" in str(s.get("Condition"))]
        [tags] = [s for s in asked if s["Action"] == [tag]]
        [creates] = [s for s in asked if s["Action"][0].startswith(f"{service}:") and tag not in s["Action"]]
        allowed = tags["Condition"]["StringEquals"][f"{service}:CreateAction"]
        assert [f"{service}:{name}" for name in allowed] == creates["Action"]


def _tags(kind: str, tags: dict[str, str]) -> dict[str, str]:
    return {f"aws:{kind}/{key}": value for key, value in tags.items()}


@pytest.mark.parametrize(("action", "arn"), BY_NAME)
def test_deployer_changes_only_resources_with_the_stacks_name(action: str, arn: str) -> None:
    granted = authorization.statements(DEPLOYER)
    assert authorization.is_allowed(granted, action, arn.format(PREFIX))
    for other in ("paddle-training-other", "production", f"x-{PREFIX}"):
        assert not authorization.is_allowed(granted, action, arn.format(other)), other


@pytest.mark.parametrize(
    ("kind", "resource", "name"),
    [
        (kind, resource, name)
        for kind, table in (("ResourceTag", BY_TAG), ("RequestTag", CREATIONS))
        for resource, names in table.items()
        for name in names.split()
    ],
)
def test_deployer_creates_and_changes_only_resources_with_the_stacks_tag(
    kind: str, resource: str, name: str
) -> None:
    service, _, rest = resource.partition("/")
    action, arn = f"{service}:{name}", f"arn:aws:{service}:us-west-2:{ACCOUNT}:{rest}"
    granted = authorization.statements(DEPLOYER)
    assert authorization.is_allowed(granted, action, arn, _tags(kind, STACK))
    for tags in (OTHER, {}):
        assert not authorization.is_allowed(granted, action, arn, _tags(kind, tags)), tags


@pytest.mark.parametrize(
    ("service", "create"), [("ec2", "CreateVpc"), ("elasticfilesystem", "CreateFileSystem")]
)
def test_deployer_gives_the_stacks_tag_only_to_new_resources(service: str, create: str) -> None:
    """Else every resource could get the stack's tag first, and be deleted then."""
    granted = authorization.statements(DEPLOYER)
    action = {"ec2": "ec2:CreateTags"}.get(service, f"{service}:TagResource")
    arn, asked = f"arn:aws:{service}:us-west-2:{ACCOUNT}:x/1", _tags("RequestTag", STACK)
    assert authorization.is_allowed(granted, action, arn, asked | {f"{service}:CreateAction": create})
    for context in (asked, asked | _tags("ResourceTag", OTHER), {f"{service}:CreateAction": create}):
        assert not authorization.is_allowed(granted, action, arn, context), context


@pytest.mark.parametrize("action", ["Decrypt", "Encrypt", "GenerateDataKey"])
def test_deployer_uses_keys_only_through_services(action: str) -> None:
    granted, key = authorization.statements(DEPLOYER), f"arn:aws:kms:us-west-2:{ACCOUNT}:key/1"
    through = {"kms:ViaService": "s3.us-west-2.amazonaws.com"}
    assert authorization.is_allowed(granted, f"kms:{action}", key, through)
    other = {"kms:ViaService": "ssm.us-west-2.amazonaws.com"}
    for context in ({}, other, _tags("ResourceTag", STACK)):
        assert not authorization.is_allowed(granted, f"kms:{action}", key, context), context


def test_deployer_creates_grants_of_other_keys_only_by_services_and_of_the_key_in_the_settings() -> None:
    """EKS creates a grant without kms:GrantIsForAWSResource."""
    key, other = (f"arn:aws:kms:us-west-2:{ACCOUNT}:key/{number}" for number in (1, 2))
    granted = authorization.statements(iam_policies.deployer(PREFIX, IamSettings(), key_arn=key))
    by_service = {"kms:GrantIsForAWSResource": "true"}
    assert authorization.is_allowed(granted, "kms:CreateGrant", other, by_service)
    assert authorization.is_allowed(granted, "kms:CreateGrant", key)
    assert not authorization.is_allowed(granted, "kms:CreateGrant", other)


def test_deployer_changes_only_the_stacks_dns_records() -> None:
    granted, action = authorization.statements(DEPLOYER), "route53:ChangeResourceRecordSets"
    zone, key = "arn:aws:route53:::hostedzone/Z1", "route53:ChangeResourceRecordSets"
    for name, kind, allowed in (("efs.paddle.internal", "CNAME", True), ("www.example.com", "CNAME", False),
                                ("api.paddle.internal", "A", False)):  # fmt: skip
        context = {f"{key}NormalizedRecordNames": name, f"{key}RecordTypes": kind}
        assert authorization.is_allowed(granted, action, zone, context) is allowed, name


@pytest.mark.parametrize("documents", [DEPLOYER, iam_policies.preview("aws")])
def test_only_public_parameters_are_read(documents: list[str]) -> None:
    granted, action = authorization.statements(documents), "ssm:GetParameter"
    public = "arn:aws:ssm:us-west-2::parameter/aws/service/eks/optimized-ami/1.35/x"
    assert authorization.is_allowed(granted, action, public)
    for name in ("database/password", "aws/reference/secretsmanager/x"):
        assert not authorization.is_allowed(
            granted, action, f"arn:aws:ssm:us-west-2:{ACCOUNT}:parameter/{name}"
        )


def test_preview_role_trusts_only_pull_requests_of_the_repository() -> None:
    (rule,) = json.loads(iam_policies.preview_trust("aws", "paddle/training"))["Statement"]
    assert rule["Action"] == "sts:AssumeRoleWithWebIdentity"
    github = "token.actions.githubusercontent.com"
    assert rule["Principal"]["Federated"].endswith(f":oidc-provider/{github}")
    expected = {f"{github}:aud": "sts.amazonaws.com", f"{github}:sub": "repo:paddle/training:pull_request"}
    assert rule["Condition"] == {"StringEquals": expected}


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


@pytest.mark.parametrize("action", f"{iam_policies.BOUNDED} {iam_policies.ATTACH}".split())
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
    with pytest.raises(SettingsError, match=r"EKS accepts only roles and users.\n.*sign in as a role"):
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
        SettingsError, match=rf"EKS accepts only the full ARN.\n.*'cluster.admins\[0\]' {full}"
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
