"""What all AWS components share: names, tags, account and region (`AwsContext`), and their base class."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pulumi
import pulumi_aws as aws

from infra import iam_policies, naming
from infra.chart_values import StackInputs
from infra.settings import Settings

_OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"
Found = TypeVar("Found")
# Texts of the provider's errors for a resource that does not exist; these errors have no types.
_NOT_FOUND = re.compile(
    r"not.?found|no ?such|no matching .* found|couldn't find|empty result|does not exist|is Pending",
    re.IGNORECASE,
)


def read_if_exists(read: Callable[[str], Found], id_: str) -> Found | None:
    """Return `read(id_)`, or None if `read` raises because the resource does not exist. Raise all other errors."""
    try:
        return read(id_)
    except Exception as error:
        if _NOT_FOUND.search(str(error)):
            return None
        raise


@dataclass(frozen=True)
class AwsContext:
    """A stack and its account: settings, names, tags and imports.

    Attributes:
        inputs: what is known about the stack before its first resource.
        account: id of the AWS account.
        partition: AWS partition: aws, aws-cn or aws-us-gov.
        imports: ids of existing resources that the stack uses, mostly because an earlier destroy kept them. The keys
            are those of `storage.adopt`, and for log groups those of `kept_data.log_groups`.
    """

    inputs: StackInputs
    account: str
    partition: str
    imports: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        """Return the settings of the stack."""
        return self.inputs.settings

    @property
    def prefix(self) -> str:
        """Return the prefix of every name; it contains project and stack."""
        return self.inputs.prefix

    @property
    def stack_tags(self) -> dict[str, str]:
        """Return the tags that identify the stack."""
        return naming.stack_tags(self.inputs.project, self.inputs.stack)

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags of every resource except S3 objects: the user's, and those that identify the stack."""
        return {**self.settings.tags, **self.stack_tags}

    def named(self, part: str) -> str:
        """Return the AWS name of a part of the stack: the prefix of the stack, then the part's name."""
        return f"{self.prefix}-{part}"

    def tagged(self, part: str) -> dict[str, str]:
        """Return the tags for objects that AWS itself creates, such as the instances of a launch template.

        Pulumi does not manage these objects, so `add_tags` does not reach them. `part` is the name of the object
        without the prefix of the stack. The tag `Name` contains prefix and `part`.
        """
        return {**self.tags, "Name": self.named(part)}

    def add_tags(self, args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        """Return a resource's arguments with the stack's tags and a `Name` added; None if its type has no tags.

        Tags that the resource sets itself override the added tags. Pulumi calls this method as a transformation of each
        resource. The alternative, `default_tags`, would require an AWS provider for each stack, and a change of the
        provider would replace the resources of existing stacks.
        """
        if not hasattr(type(args.resource), "tags"):
            return None
        # S3 objects accept only ten tags, so they get those of the stack without the user's.
        tags = self.stack_tags if args.type_ == _OBJECT else self.tags
        own: Any = args.props.get("tags") or {}
        tagged = {**tags, "Name": args.name, **own}
        return pulumi.ResourceTransformationResult({**args.props, "tags": tagged}, args.opts)

    def retain(self, parent: pulumi.Resource, part: str = "", **more: Any) -> pulumi.ResourceOptions:
        """Return the Pulumi options of a resource that a destroy may keep, such as a bucket, its key or a log group.

        With `storage.protect`, `pulumi destroy` keeps the resource in AWS. If `imports` has an id under the key `part`,
        Pulumi imports the resource with this id instead of creating a new one. `more` are further options.
        """
        if part in self.imports:
            more["import_"] = self.imports[part]
        return pulumi.ResourceOptions(parent=parent, retain_on_delete=self.settings.storage.protect, **more)

    def principal_arn(self, name: str) -> str:
        """Return the ARN of `role/NAME` or `user/NAME` in this account. An ARN is returned unchanged."""
        return name if name.startswith("arn:") else f"arn:{self.partition}:iam::{self.account}:{name}"


# Component type → its types in earlier releases. A component's type is part of the URNs of its children: without
# its earlier type, the engine would replace them, the file system included.
FORMER_TYPES: Mapping[str, tuple[str, ...]] = {}


class AwsComponent(pulumi.ComponentResource):
    """Base class of the AWS components; adds the stack's tags to all child resources.

    Attributes:
        child: resource options of a child that needs no option but its parent.

    Args:
        token: Pulumi type of the component. If it changes, the old type must be added to FORMER_TYPES.
        part: name of the component without the stack's prefix. The argument `part` of each method is likewise the name
            of the created resource without this prefix.
    """

    def __init__(self, token: str, context: AwsContext, part: str) -> None:
        aliases = [pulumi.Alias(type_=former) for former in FORMER_TYPES.get(token, ())]
        options = pulumi.ResourceOptions(transformations=[context.add_tags], aliases=aliases)
        super().__init__(token, context.named(part), None, options)
        self.context = context
        self.child = pulumi.ResourceOptions(parent=self)

    def create_role(self, part: str, trust: str) -> aws.iam.Role:
        """Create a role. `trust` is the name of its trust policy in infra/policies.yaml."""
        iam = self.context.settings.iam
        return aws.iam.Role(
            self.context.named(part),
            assume_role_policy=iam_policies.policy(trust),
            path=iam.path,
            permissions_boundary=iam.permissions_boundary or None,
            opts=self.child,
        )

    def attach_aws_policy(self, part: str, role: aws.iam.Role, policy: str) -> aws.iam.RolePolicyAttachment:
        """Attach the AWS managed policy with the name `policy` to a role."""
        return aws.iam.RolePolicyAttachment(
            self.context.named(part),
            role=role.name,
            policy_arn=f"arn:{self.context.partition}:iam::aws:policy/{policy}",
            opts=self.child,
        )

    def add_inline_policy(
        self, part: str, role: aws.iam.Role, policy: pulumi.Input[str]
    ) -> aws.iam.RolePolicy:
        """Add the JSON document `policy` to a role as an inline policy."""
        return aws.iam.RolePolicy(self.context.named(part), role=role.name, policy=policy, opts=self.child)

    def add_pod_identity(
        self, cluster: pulumi.Input[str], part: str, account: tuple[str, str], policy: pulumi.Input[str]
    ) -> aws.eks.PodIdentityAssociation:
        """Create a role and let the pods of one Kubernetes service account use it (EKS pod identity).

        Args:
            cluster: name of the cluster.
            part: name of the role and of the association, without the stack's prefix.
            account: namespace and name of the service account.
            policy: the role's inline policy, a JSON document.
        """
        role = self.create_role(part, "trust of pods")
        allowed = self.add_inline_policy(part, role, policy)
        return aws.eks.PodIdentityAssociation(
            self.context.named(part),
            cluster_name=cluster,
            namespace=account[0],
            service_account=account[1],
            role_arn=role.arn,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[allowed]),
        )
