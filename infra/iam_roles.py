"""Create IAM roles with the stack's path and permissions boundary, and give them policies."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import iam_policies
from infra.aws_context import AwsContext


def create_role(context: AwsContext, part: str, service: str, parent: pulumi.Resource) -> aws.iam.Role:
    """Create a role that one AWS service assumes."""
    boundary = context.iam.permissions_boundary
    return aws.iam.Role(
        context.named(part),
        assume_role_policy=iam_policies.trust(service),
        path=context.iam.path,
        permissions_boundary=boundary if boundary != "" else None,
        opts=pulumi.ResourceOptions(parent=parent),
    )


def attach_aws_policy(
    context: AwsContext, part: str, to: aws.iam.Role, policy: str, parent: pulumi.Resource
) -> aws.iam.RolePolicyAttachment:
    """Attach a policy that AWS manages to a role."""
    return aws.iam.RolePolicyAttachment(
        context.named(part),
        role=to.name,
        policy_arn=f"arn:{context.partition}:iam::aws:policy/{policy}",
        opts=pulumi.ResourceOptions(parent=parent),
    )


def add_inline_policy(
    context: AwsContext, part: str, to: aws.iam.Role, policy: pulumi.Input[str], parent: pulumi.Resource
) -> aws.iam.RolePolicy:
    """Add an inline policy to a role."""
    return aws.iam.RolePolicy(
        context.named(part), role=to.name, policy=policy, opts=pulumi.ResourceOptions(parent=parent)
    )
