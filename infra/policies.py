"""IAM and bucket policy documents as JSON text.

Pure. `python -m infra.policies deployer` prints the deployer's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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


def registry_lifecycle(images: int) -> str:
    """Keeps the newest `images` images of a repository."""
    rule = {
        "rulePriority": 1,
        "description": f"keep the newest {images} images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": images},
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]}, sort_keys=True)


def deployer() -> str:
    """What a person needs to make, change and remove every resource type that the program uses, and no more.

    Generated from the table in `deployer_actions`; a test compares that table with what the program
    registers.
    """
    from infra.deployer_actions import ACTIONS, ALWAYS, PASSED_TO  # noqa: PLC0415 - a long table of its own

    services: dict[str, set[str]] = {}
    for action in (*ALWAYS, *(action for row in ACTIONS.values() for action in row)):
        services.setdefault(action.partition(":")[0], set()).add(action)
    statements = []
    for service, actions in sorted(services.items()):
        passing = actions & {"iam:PassRole"}
        statements.append(_allow(sorted(actions - passing), "*", Sid=service.replace("-", "").capitalize()))
        if passing:
            condition = {"StringEquals": {"iam:PassedToService": list(PASSED_TO)}}
            statements.append(_allow(["iam:PassRole"], "*", Sid="IamPassRole", Condition=condition))
    return _document(statements)


def main(arguments: Sequence[str]) -> int:
    """Prints the document that is asked for."""
    if list(arguments) != ["deployer"]:
        sys.stderr.write("usage: python -m infra.policies deployer\n")
        return 64
    sys.stdout.write(json.dumps(json.loads(deployer()), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
