"""The rights of the user who deploys: IAM roles here, everything else in deployer_permissions.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

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

_TABLE = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
RULES: list[dict[str, Any]] = yaml.load(_TABLE, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
"""The rules of deployer_permissions.yaml, whose texts contain placeholders such as `{prefix}`."""


def full_names(rule: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the actions of a rule for each service, as `service:Name`."""
    for service, names in rule["actions"].items():
        yield [f"{service}:{name}" for name in names.split()]


UNSCOPED = {
    rule["reason"]: [name for names in full_names(rule) for name in names]
    for rule in RULES
    if "reason" in rule
}
"""Actions that are allowed on all resources, by reason."""


def actions() -> list[str]:
    """Return all actions of RULES as `service:Name`, sorted."""
    return sorted({name for rule in RULES for names in full_names(rule) for name in names})
