"""What every AWS component shares: names, the one tag set, the account, and how roles are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import policies
from infra.kept import Kept


@dataclass(frozen=True)
class Context:
    """The stack's place in AWS.

    Attributes:
        prefix: what every name begins with; carries project and stack.
        tags: the one tag set; own_tags: the part that is not the person's.
        region, account, partition: where everything is.
        protect: whether destroy keeps file system, bucket, registry, their key and the logs.
        kept: what an earlier destroy kept, to be used again.
        permissions_boundary: ARN of every role's boundary, or empty.
        iam_path: path of every role.
    """

    prefix: str
    tags: Mapping[str, str]
    own_tags: Mapping[str, str]
    region: str
    account: str
    partition: str
    protect: bool
    permissions_boundary: str
    iam_path: str
    kept: Kept

    def named(self, part: str) -> str:
        """The name of a part of the stack."""
        return f"{self.prefix}-{part}"

    def tagged(self, part: str) -> dict[str, str]:
        """The tag set of a resource, with its name as AWS consoles show it."""
        return {**self.tags, "Name": self.named(part)}

    def keep(self, parent: pulumi.Resource, part: str = "", **more: Any) -> pulumi.ResourceOptions:
        """Options of a resource that holds a person's data, and of all that guards it.

        A protected one outlives its stack, and is found again by its `part` and imported.
        """
        if part in self.kept.ids:
            more["import_"] = self.kept.ids[part]
        return pulumi.ResourceOptions(parent=parent, retain_on_delete=self.protect, **more)

    def principal(self, name: str) -> str:
        """`role/NAME` or `user/NAME` as an ARN of this account; an ARN stays as it is."""
        return name if name.startswith("arn:") else f"arn:{self.partition}:iam::{self.account}:{name}"


def role(context: Context, part: str, service: str, parent: pulumi.Resource) -> aws.iam.Role:
    """A role that one AWS service assumes, with the stack's path and boundary."""
    boundary = context.permissions_boundary
    return aws.iam.Role(
        context.named(part),
        assume_role_policy=policies.trust(service),
        path=context.iam_path,
        permissions_boundary=boundary if boundary != "" else None,
        tags=context.tagged(part),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def attach(
    context: Context, part: str, to: aws.iam.Role, policy: str, parent: pulumi.Resource
) -> aws.iam.RolePolicyAttachment:
    """Gives a role one of AWS's own policies."""
    return aws.iam.RolePolicyAttachment(
        context.named(part),
        role=to.name,
        policy_arn=f"arn:{context.partition}:iam::aws:policy/{policy}",
        opts=pulumi.ResourceOptions(parent=parent),
    )


def allow(
    context: Context, part: str, to: aws.iam.Role, policy: pulumi.Input[str], parent: pulumi.Resource
) -> aws.iam.RolePolicy:
    """Gives a role a policy of its own."""
    return aws.iam.RolePolicy(
        context.named(part), role=to.name, policy=policy, opts=pulumi.ResourceOptions(parent=parent)
    )
