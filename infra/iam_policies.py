"""Policy documents of IAM, KMS, S3 and ECR, as JSON text. Imports no pulumi."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.settings import DnsSettings, IamSettings

VERSION = "2012-10-17"
USE_KEY = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt")
FOR_DISKS = ("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")


def _document(statements: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": VERSION, "Statement": list(statements)}, sort_keys=True)


def _allow(actions: Sequence[str], resources: Sequence[str] | str, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": resources, **more}


def through(*services: str) -> dict[str, Any]:
    """Return a condition: the key is used by one of these services (`s3`) for the caller, in any region."""
    return {"StringLike": {"kms:ViaService": [f"{service}.*.amazonaws.com*" for service in services]}}


def trust(service: str) -> str:
    """Return the policy that lets one AWS service assume a role (and tag its session, for EKS pod identity)."""
    actions = (
        ["sts:AssumeRole", "sts:TagSession"] if service == "pods.eks.amazonaws.com" else ["sts:AssumeRole"]
    )
    return _document([{"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}])


def key_policy(partition: str, account: str, region: str) -> str:
    """Return the policy of the stack's own KMS key.

    The account's IAM policies decide who can use the key, and EC2 can use it for the disks of the nodes. The
    Auto Scaling group starts nodes with a service-linked role that does not exist in a new account, and KMS
    rejects a policy with an unknown role. So the policy allows any principal of this account that calls
    through EC2, as the policy of the AWS key `aws/ebs` does.
    """
    through_ec2 = {"kms:CallerAccount": account, "kms:ViaService": f"ec2.{region}.amazonaws.com"}
    return _document(
        [
            {
                "Sid": "AllowAccount",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:{partition}:iam::{account}:root"},
                "Action": "kms:*",
                "Resource": "*",
            },
            {
                "Sid": "AllowNodeDisks",
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": sorted([*USE_KEY, *(f"kms:{name}" for name in FOR_DISKS)]),
                "Resource": "*",
                "Condition": {"StringEquals": through_ec2},
            },
        ]
    )


def _deny(
    sid: str, action: str, resources: Sequence[str] | str, condition: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a statement for everybody, in the policy of a resource."""
    rule = {"Sid": sid, "Effect": "Deny", "Principal": "*", "Action": action}
    return {**rule, "Resource": resources, "Condition": condition}


WITHOUT_TLS = {"Bool": {"aws:SecureTransport": "false"}}


def bucket_policy(bucket_arn: str) -> str:
    """Return a bucket policy that denies all requests without TLS."""
    return _document([_deny("RequireTls", "s3:*", [bucket_arn, f"{bucket_arn}/*"], WITHOUT_TLS)])


def file_system_policy(file_system_arn: str, access_point_arn: str) -> str:
    """Return a file-system policy that requires TLS, IAM and the access point of every NFS client.

    Without a policy, EFS admits every client that reaches a mount target. With one, it admits only roles that a
    policy allows to mount (`efs_mount`); a client without IAM has no role.
    """
    other = {"StringNotEquals": {"elasticfilesystem:AccessPointArn": access_point_arn}}
    clients = "elasticfilesystem:Client*"
    return _document(
        [
            _deny("RequireTls", clients, file_system_arn, WITHOUT_TLS),
            _deny("RequireAccessPoint", clients, file_system_arn, other),
        ]
    )


# Prefixes of the bucket that pods use: they read sources, and read and write models.
SOURCES = "sources/"
MODELS = "models/"


def pods(bucket_arn: str, key_arn: str) -> str:
    """Return the policy of the pods' role: read sources, read and write models, and use the key for both."""
    return _document(
        [
            _allow(
                ["s3:ListBucket"],
                [bucket_arn],
                Condition={"StringLike": {"s3:prefix": [f"{SOURCES}*", f"{MODELS}*"]}},
            ),
            _allow(["s3:GetObject"], [f"{bucket_arn}/{SOURCES}*", f"{bucket_arn}/{MODELS}*"]),
            _allow(["s3:AbortMultipartUpload", "s3:PutObject"], [f"{bucket_arn}/{MODELS}*"]),
            # Only for objects of buckets: the key also encrypts the cluster's Secrets and the disks.
            _allow(["kms:Decrypt", "kms:GenerateDataKey"], [key_arn], Condition=through("s3")),
        ]
    )


def efs_driver(file_system_arn: str) -> str:
    """Return the policy of the role of the efs-csi driver's controller: it creates and mounts no volumes."""
    return _document(_efs_reads(file_system_arn))


def efs_mount(file_system_arn: str, access_point_arn: str) -> str:
    """Return the policy of a role that mounts the file system: the access point only, and not as root."""
    condition = {"StringEquals": {"elasticfilesystem:AccessPointArn": access_point_arn}}
    mounts = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    return _document([*_efs_reads(file_system_arn), _allow(mounts, [file_system_arn], Condition=condition)])


def _efs_reads(file_system_arn: str) -> list[dict[str, Any]]:
    """Return statements for reading the file system; efs-utils also uses them when DNS lacks a mount target."""
    reads = [f"elasticfilesystem:Describe{kind}" for kind in ("AccessPoints", "FileSystems", "MountTargets")]
    return [_allow(reads, [file_system_arn]), _allow(["ec2:DescribeAvailabilityZones"], "*")]


def use_key(key_arn: str) -> str:
    """Return a policy that lets the cluster's role encrypt Kubernetes Secrets with the key.

    It has no `kms:ViaService`: the control plane itself calls KMS, and only EKS can assume the role.
    """
    return _document([_allow(USE_KEY, [key_arn])])


def autoscaler(cluster: str) -> str:
    """Return the policy of the autoscaler's role: read all node groups, and scale the groups of this cluster."""
    owned = {"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}}
    reads = (
        "autoscaling:DescribeAutoScalingGroups autoscaling:DescribeAutoScalingInstances "
        "autoscaling:DescribeLaunchConfigurations autoscaling:DescribeScalingActivities "
        "autoscaling:DescribeTags ec2:DescribeImages ec2:DescribeInstanceTypes "
        "ec2:DescribeLaunchTemplateVersions ec2:GetInstanceTypesFromInstanceRequirements "
        "eks:DescribeNodegroup"
    )
    scales = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
    return _document([_allow(reads.split(), "*"), _allow(scales, "*", Condition=owned)])


def pod_logs(partition: str, prefix: str) -> str:
    """Return the policy of the log agent's role: write to the stack's log groups, which the program creates.

    The role may not create log groups, because a group that the agent created would have no retention period and
    no tags.
    """
    groups = f"arn:{partition}:logs:*:*:log-group:/aws/containerinsights/{prefix}/*"
    actions = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    return _document([_allow(actions, groups)])


def registry_lifecycle() -> str:
    """Return a lifecycle policy that removes only images without a tag, which `make push` never leaves.

    A rule by number or age would remove images in use: nodes pull the image of a stack or of an earlier run again
    when they start, however old it is.
    """
    selection = {
        "tagStatus": "untagged",
        "countType": "sinceImagePushed",
        "countUnit": "days",
        "countNumber": 7,
    }
    description = "remove images without a tag"
    rule = {
        "rulePriority": 1,
        "description": description,
        "selection": selection,
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]}, sort_keys=True)


# The rights of the user who deploys: IAM roles here, everything else in deployer_permissions.yaml.
# Services to which the program passes a role.
PASSED_TO = ("ec2.amazonaws.com", "eks.amazonaws.com", "pods.eks.amazonaws.com")
# Policies of AWS that the program attaches to its roles.
ATTACHED = (
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
)
# Actions that are allowed only on the stack's own roles or instance profiles; the reads are not among them.
# With a permissions boundary, IAM compares the boundary of the role for the actions of BOUNDED and ATTACH.
ROLES = "iam:DeleteRole iam:TagRole iam:UntagRole iam:UpdateAssumeRolePolicy iam:UpdateRole iam:UpdateRoleDescription"
BOUNDED = "iam:CreateRole iam:DeleteRolePolicy iam:PutRolePermissionsBoundary iam:PutRolePolicy"
ATTACH = "iam:AttachRolePolicy iam:DetachRolePolicy"
# Not allowed with a permissions boundary.
UNBOUND = "iam:DeleteRolePermissionsBoundary"
PROFILES = (
    "iam:AddRoleToInstanceProfile iam:CreateInstanceProfile iam:DeleteInstanceProfile "
    "iam:RemoveRoleFromInstanceProfile iam:TagInstanceProfile iam:UntagInstanceProfile"
)
SERVICE_LINKED = "iam:CreateServiceLinkedRole"

_TABLE = Path(__file__).with_name("deployer_permissions.yaml").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = yaml.load(_TABLE, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
"""The rules of deployer_permissions.yaml, whose texts contain placeholders such as `{prefix}`."""


def full_names(rule: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the actions of a rule for each service, as `service:Name`."""
    for service, names in rule["actions"].items():
        yield [f"{service}:{name}" for name in names.split()]


def actions() -> list[str]:
    """Return all actions of RULES as `service:Name`, sorted."""
    return sorted({name for rule in RULES for names in full_names(rule) for name in names})


# IAM does not count whitespace; a role accepts ten managed policies.
MANAGED_POLICY_CHARACTERS = 6144
# Created by `make state` for all stacks of an account.
STATE_ALIAS = "alias/paddle-training-state"
STATE_BUCKETS = "paddle-training-state-"
STATE_TAG = "make state"
DEFAULT_DNS = DnsSettings()


def deployer(
    prefix: str,
    iam: IamSettings,
    *,
    partition: str = "aws",
    account: str = "*",
    dns: DnsSettings = DEFAULT_DNS,
    key_arn: str = "",
) -> list[str]:
    """Return policy documents that let a user create, change and remove a stack; each fits the size limit of a policy.

    The user can change only what has the stack's tag or name prefix; the rules with a `reason` have the rest. The
    user can put any inline policy on the stack's roles; only a permissions boundary limits what the roles may do.
    The only DNS records that the user can change are those of the setting `dns`. `key_arn` is the setting
    `kms.keyArn`: EKS creates a grant for this key in the user's name.

    `account` `*` has the same effect as the account's id, because an IAM policy applies only in its own account.
    """
    own = f"arn:{partition}:iam::{account}"
    roles, profiles = f"{own}:role{iam.path}{prefix}-*", f"{own}:instance-profile{iam.path}{prefix}-*"
    policies = [f"arn:{partition}:iam::aws:policy/{name}" for name in ATTACHED]
    boundary = iam.permissions_boundary
    bounded = {"StringEquals": {"iam:PermissionsBoundary": boundary}} if boundary != "" else {}
    unbound = "" if bounded else UNBOUND
    limited = [
        _allow(f"{ROLES} {unbound}".split(), roles),
        _allow(BOUNDED.split(), roles, **({"Condition": bounded} if bounded else {})),
        _allow(ATTACH.split(), roles, Condition={"ArnEquals": {"iam:PolicyARN": policies}, **bounded}),
        _allow(PROFILES.split(), profiles),
        # Only the service itself can assume such a role, and AWS defines its rights.
        _allow([SERVICE_LINKED], f"{own}:role/aws-service-role/*"),
        _allow(["iam:PassRole"], roles, Condition={"StringEquals": {"iam:PassedToService": list(PASSED_TO)}}),
    ]
    names = {
        **{"partition": partition, "account": account, "prefix": prefix},
        **{"zone": dns.zone or "paddle.internal", "externalName": dns.external_name or "api.paddle.internal"},
        **{"stateAlias": STATE_ALIAS, "stateBuckets": STATE_BUCKETS, "stateTag": STATE_TAG},
    }
    grants = [_allow(["kms:CreateGrant"], key_arn)] if key_arn != "" else []
    return _packed([*_scoped(names), *limited, *grants])


def _scoped(names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the statements of `RULES`; `names` fill their placeholders."""
    text = json.dumps(RULES)
    for key, name in names.items():
        text = text.replace(f"{{{key}}}", name)
    for rule in json.loads(text):
        condition = {"Condition": rule["condition"]} if "condition" in rule else {}
        for actions in full_names(rule):
            yield _allow(actions, rule.get("resources", "*"), **condition)


def preview(partition: str) -> list[str]:
    """Return policy documents of the role that previews pull requests: read resources and Pulumi's state.

    The role can read objects only of the state's bucket and use only the state's key, because a preview runs the
    unreviewed program of the branch with this role.
    """
    kinds = ("Describe", "Get", "List")
    excluded = ["s3:GetObject", "s3:GetObjectTagging", "s3:ListBucketVersions"]
    excluded += ["ecr:GetAuthorizationToken", "ssm:GetParameter"]
    reads = [name for name in actions() if name.partition(":")[2].startswith(kinds)]
    by_alias = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": STATE_ALIAS}}
    return _packed(
        [
            *_by_service([name for name in reads if name not in excluded]),
            _allow(["ssm:GetParameter"], f"arn:{partition}:ssm:*:*:parameter/aws/service/*"),
            _allow(["s3:GetObject"], f"arn:{partition}:s3:::{STATE_BUCKETS}*"),
            _allow(["kms:Decrypt"], "*", Condition=by_alias),
        ]
    )


GITHUB = "token.actions.githubusercontent.com"


def preview_trust(partition: str, repository: str) -> str:
    """Return the trust policy of the preview's role: only GitHub's runs for pull requests of `ORG/REPO`."""
    expected = {f"{GITHUB}:aud": "sts.amazonaws.com", f"{GITHUB}:sub": f"repo:{repository}:pull_request"}
    rule = {
        "Effect": "Allow",
        "Principal": {"Federated": f"arn:{partition}:iam::ACCOUNT:oidc-provider/{GITHUB}"},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {"StringEquals": expected},
    }
    return _document([rule])


def _by_service(actions: Sequence[str]) -> list[dict[str, Any]]:
    grouped = itertools.groupby(sorted(actions), lambda action: action.partition(":")[0])
    return [_allow(list(group), "*") for _, group in grouped]


def _packed(statements: Iterable[dict[str, Any]]) -> list[str]:
    documents: list[list[dict[str, Any]]] = [[]]
    for statement in statements:
        if len(_document([*documents[-1], statement]).replace(" ", "")) > MANAGED_POLICY_CHARACTERS:
            documents.append([])
        documents[-1].append(statement)
    return [_document(document) for document in documents]
