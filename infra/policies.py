"""IAM and bucket policy documents as JSON text. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infra import deployer_actions

VERSION = "2012-10-17"


def _document(statements: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": VERSION, "Statement": list(statements)}, sort_keys=True)


def _allow(actions: Sequence[str], resources: Sequence[str] | str, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": resources, **more}


def trust(service: str) -> str:
    """Who may assume a role: one AWS service. Pod identity tags its sessions, so it needs that too."""
    actions = (
        ["sts:AssumeRole", "sts:TagSession"] if service == "pods.eks.amazonaws.com" else ["sts:AssumeRole"]
    )
    return _document([{"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}])


def key_policy(partition: str, account: str, region: str) -> str:
    """The stack's own KMS key: the account's IAM decides, and EC2 may use it for the node group's disks.

    The node group's Auto Scaling group starts nodes by a service-linked role that an empty account does not
    have yet, so a policy that names it would be refused. The form below, the one of AWS's own `aws/ebs` key,
    admits any principal of this account as long as it comes through EC2.
    """
    through_ec2 = {"kms:CallerAccount": account, "kms:ViaService": f"ec2.{region}.amazonaws.com"}
    return _document(
        [
            {
                "Sid": "AccountDecides",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:{partition}:iam::{account}:root"},
                "Action": "kms:*",
                "Resource": "*",
            },
            {
                "Sid": "DisksOfNodes",
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": sorted(
                    [
                        "kms:CreateGrant",
                        "kms:Decrypt",
                        "kms:DescribeKey",
                        "kms:Encrypt",
                        "kms:GenerateDataKeyWithoutPlaintext",
                        "kms:ReEncryptFrom",
                        "kms:ReEncryptTo",
                    ]
                ),
                "Resource": "*",
                "Condition": {"StringEquals": through_ec2},
            },
        ]
    )


def bucket_policy(bucket_arn: str) -> str:
    """Refuses every request to the bucket that is not encrypted on its way."""
    return _document(
        [
            {
                "Sid": "OnlyTls",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [bucket_arn, f"{bucket_arn}/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ]
    )


# Where pods may read and write in the bucket.
SOURCES = "sources/"
MODELS = "models/"


def pods(bucket_arn: str, key_arn: str) -> str:
    """The pods' role: read sources, write models, nothing else; and the key for both."""
    return _document(
        [
            _allow(
                ["s3:ListBucket"],
                [bucket_arn],
                Condition={"StringLike": {"s3:prefix": [f"{SOURCES}*", f"{MODELS}*"]}},
            ),
            _allow(["s3:GetObject"], [f"{bucket_arn}/{SOURCES}*", f"{bucket_arn}/{MODELS}*"]),
            _allow(["s3:AbortMultipartUpload", "s3:PutObject"], [f"{bucket_arn}/{MODELS}*"]),
            _allow(["kms:Decrypt", "kms:GenerateDataKey"], [key_arn]),
        ]
    )


def efs_driver(file_system_arn: str) -> str:
    """The efs-csi driver's role: it mounts volumes that are there, and makes none."""
    return _document(
        [
            _allow(
                [
                    "elasticfilesystem:DescribeAccessPoints",
                    "elasticfilesystem:DescribeFileSystems",
                    "elasticfilesystem:DescribeMountTargets",
                ],
                [file_system_arn],
            ),
            _allow(["ec2:DescribeAvailabilityZones"], "*"),
        ]
    )


def use_key(key_arn: str) -> str:
    """The cluster's role: the key for its secrets."""
    return _document(
        [_allow(["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt"], [key_arn])]
    )


def autoscaler(cluster: str) -> str:
    """The autoscaler's role: looks at all groups, changes those that EKS made for this cluster."""
    owned = {"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}}
    seen = (
        "autoscaling:DescribeAutoScalingGroups autoscaling:DescribeAutoScalingInstances "
        "autoscaling:DescribeLaunchConfigurations autoscaling:DescribeScalingActivities "
        "autoscaling:DescribeTags ec2:DescribeImages ec2:DescribeInstanceTypes "
        "ec2:DescribeLaunchTemplateVersions ec2:GetInstanceTypesFromInstanceRequirements "
        "eks:DescribeNodegroup"
    )
    changed = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
    return _document([_allow(seen.split(), "*"), _allow(changed, "*", Condition=owned)])


def pod_logs() -> str:
    """The log agent's role."""
    names = (
        "CreateLogGroup CreateLogStream DescribeLogGroups DescribeLogStreams PutLogEvents PutRetentionPolicy"
    )
    return _document([_allow([*(f"logs:{name}" for name in names.split()), "ec2:DescribeTags"], "*")])


def registry_lifecycle(images: int) -> str:
    """Keeps the newest `images` images of a repository."""
    rule = {
        "rulePriority": 1,
        "description": f"keep the newest {images} images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": images},
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]}, sort_keys=True)


# IAM counts no whitespace; a role takes ten managed policies.
MANAGED_POLICY_CHARACTERS = 6144
# What `make state` makes, for all stacks of an account.
STATE_ALIAS = "alias/paddle-training-state"
STATE_BUCKETS = "paddle-training-state-"


def deployer() -> list[str]:
    """Documents that each fit a managed policy: what it takes to make, change and remove a stack."""
    names = [action for action in deployer_actions.actions() if action != "iam:PassRole"]
    to_our_services = {"StringEquals": {"iam:PassedToService": list(deployer_actions.PASSED_TO)}}
    return _packed([*_by_service(names), _allow(["iam:PassRole"], "*", Condition=to_our_services)])


def preview(partition: str) -> list[str]:
    """Documents for the role of the pull requests: it reads resources, Pulumi's state and the state's key.

    No object of any other bucket, and no other key: a branch's own program runs with this role.
    """
    kinds = ("Describe", "Get", "List")
    refused = {"s3:GetObject", "s3:GetObjectTagging", "s3:ListBucketVersions", "ecr:GetAuthorizationToken"}
    reads = [name for name in deployer_actions.actions() if name.partition(":")[2].startswith(kinds)]
    by_alias = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": STATE_ALIAS}}
    return _packed(
        [
            *_by_service([name for name in reads if name not in refused]),
            _allow(["s3:GetObject"], f"arn:{partition}:s3:::{STATE_BUCKETS}*"),
            _allow(["kms:Decrypt"], "*", Condition=by_alias),
        ]
    )


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
