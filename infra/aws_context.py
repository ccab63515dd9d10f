"""What all AWS components share: names, tags, account and region (`AwsContext`), their base class, and IAM roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import iam_policies, naming, retained_resources
from infra.settings import IamSettings
from infra.stack_inputs import StackInputs

_OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"


@dataclass(frozen=True)
class AwsContext:
    """Account, region, names and tags of a stack.

    Attributes:
        prefix: prefix of every name; contains project and stack.
        tags: tags of every resource: the user's, and those in `stack_tags`.
        stack_tags: the tags that identify the stack.
        partition: AWS partition: aws, aws-cn or aws-us-gov.
        protect: `storage.protect`: whether destroy keeps file system, bucket, registry, their key and the logs.
        iam: path and permissions boundary of every IAM role.
        imports: ids of resources that an earlier destroy kept, by key of `storage.adopt` or name of the log group.
    """

    prefix: str
    tags: Mapping[str, str]
    stack_tags: Mapping[str, str]
    region: str
    account: str
    partition: str
    protect: bool
    iam: IamSettings
    imports: Mapping[str, str]

    def named(self, part: str) -> str:
        """Return the AWS name of a part of the stack: the prefix of the stack, then the part's name."""
        return f"{self.prefix}-{part}"

    def tagged(self, part: str) -> dict[str, str]:
        """Return the tags of the objects that AWS creates from a resource, such as a launch template's instances."""
        return {**self.tags, "Name": self.named(part)}

    def add_tags(self, args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        """Add the tags of the stack, and a `Name`, to a resource; None if its type has no tags.

        A resource's own tags override them. This is a transformation, not the provider's `default_tags`: those
        require a provider for each stack, and the resources of existing stacks would be replaced if their provider
        changed.
        """
        if not hasattr(type(args.resource), "tags"):
            return None
        # S3 objects accept only ten tags, so they get those of the stack without the user's.
        tags = self.stack_tags if args.type_ == _OBJECT else self.tags
        own: Any = args.props.get("tags") or {}
        tagged = {**tags, "Name": args.name, **own}
        return pulumi.ResourceTransformationResult({**args.props, "tags": tagged}, args.opts)

    def retain(self, parent: pulumi.Resource, part: str = "", **more: Any) -> pulumi.ResourceOptions:
        """Return pulumi options for a resource that holds user data (a bucket) or protects it (its key).

        With `protect`, `pulumi destroy` keeps the resource, and a later `up` imports it by the id in `imports[part]`.
        `more` are further options.
        """
        if part in self.imports:
            more["import_"] = self.imports[part]
        return pulumi.ResourceOptions(parent=parent, retain_on_delete=self.protect, **more)

    def principal_arn(self, name: str) -> str:
        """Return the ARN of `role/NAME` or `user/NAME` in this account; an ARN is returned unchanged."""
        return name if name.startswith("arn:") else f"arn:{self.partition}:iam::{self.account}:{name}"


def create_context(inputs: StackInputs, region: str) -> AwsContext:
    """Return the stack's context: read the account from AWS and check the resources that a destroy kept.

    Raises:
        SettingsError: the stack's name is too long, or `check_retained` found a problem.
    """
    project, stack, settings = inputs.project, inputs.stack, inputs.settings
    naming.check_prefix_length(project, stack)
    caller = aws.get_caller_identity()
    prefix, stack_tags = naming.prefix(project, stack), naming.stack_tags(project, stack)
    imports = retained_resources.check_retained(settings, prefix, stack_tags)
    return AwsContext(
        prefix=prefix,
        tags={**settings.tags, **stack_tags},
        stack_tags=stack_tags,
        region=region,
        account=caller.account_id,
        partition=caller.arn.split(":")[1],
        protect=settings.storage.protect,
        iam=settings.iam,
        imports=imports,
    )


# Component type → its types in earlier releases. A component's type is part of the URNs of its children: without
# its earlier type, the engine would replace them, the file system included.
FORMER_TYPES: Mapping[str, tuple[str, ...]] = {}


class AwsComponent(pulumi.ComponentResource):
    """Base class of the AWS components; adds the stack's tags to all child resources.

    Attributes:
        child: resource options of a child that needs no option but its parent.

    Args:
        token: Pulumi type of the component. If it changes, the old type must be added to FORMER_TYPES.
        part: name of the component without the stack's prefix.
    """

    def __init__(self, token: str, context: AwsContext, part: str) -> None:
        aliases = [pulumi.Alias(type_=former) for former in FORMER_TYPES.get(token, ())]
        options = pulumi.ResourceOptions(transformations=[context.add_tags], aliases=aliases)
        super().__init__(token, context.named(part), None, options)
        self.context = context
        self.child = pulumi.ResourceOptions(parent=self)


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
