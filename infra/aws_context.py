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
    """Return `read(id_)`, or None if it raises because the resource does not exist; raise all other errors."""
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
        account: id of the account.
        partition: AWS partition: aws, aws-cn or aws-us-gov.
        imports: ids of resources that an earlier destroy kept, by key of `storage.adopt` or name of the log group.
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
        """Return the tags of every resource: the user's, and those that identify the stack."""
        return {**self.settings.tags, **self.stack_tags}

    def named(self, part: str) -> str:
        """Return the AWS name of a part of the stack: the prefix of the stack, then the part's name."""
        return f"{self.prefix}-{part}"

    def tagged(self, part: str) -> dict[str, str]:
        """Return the tags for objects that AWS itself creates, such as the instances of a launch template.

        Pulumi does not manage these objects, so `add_tags` does not reach them. `part` is the name of the object
        without the prefix of the stack; the tag `Name` has both.
        """
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

        With `storage.protect`, `pulumi destroy` keeps the resource, and a later `up` imports it by the id in
        `imports[part]`. `more` are further options.
        """
        if part in self.imports:
            more["import_"] = self.imports[part]
        return pulumi.ResourceOptions(parent=parent, retain_on_delete=self.settings.storage.protect, **more)

    def principal_arn(self, name: str) -> str:
        """Return the ARN of `role/NAME` or `user/NAME` in this account; an ARN is returned unchanged."""
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
        part: name of the component without the stack's prefix.
    """

    def __init__(self, token: str, context: AwsContext, part: str) -> None:
        aliases = [pulumi.Alias(type_=former) for former in FORMER_TYPES.get(token, ())]
        options = pulumi.ResourceOptions(transformations=[context.add_tags], aliases=aliases)
        super().__init__(token, context.named(part), None, options)
        self.context = context
        self.child = pulumi.ResourceOptions(parent=self)

    def create_role(self, part: str, trust: str) -> aws.iam.Role:
        """Create a role; `trust` is its trust policy, a document of infra/policies.yaml."""
        iam = self.context.settings.iam
        return aws.iam.Role(
            self.context.named(part),
            assume_role_policy=iam_policies.policy(trust),
            path=iam.path,
            permissions_boundary=iam.permissions_boundary or None,
            opts=self.child,
        )

    def attach_aws_policy(self, part: str, role: aws.iam.Role, policy: str) -> aws.iam.RolePolicyAttachment:
        """Attach a policy that AWS manages to a role."""
        return aws.iam.RolePolicyAttachment(
            self.context.named(part),
            role=role.name,
            policy_arn=f"arn:{self.context.partition}:iam::aws:policy/{policy}",
            opts=self.child,
        )

    def add_inline_policy(
        self, part: str, role: aws.iam.Role, policy: pulumi.Input[str]
    ) -> aws.iam.RolePolicy:
        """Add an inline policy to a role."""
        return aws.iam.RolePolicy(self.context.named(part), role=role.name, policy=policy, opts=self.child)

    def add_pod_identity(
        self, cluster: pulumi.Input[str], part: str, account: tuple[str, str], policy: pulumi.Input[str]
    ) -> aws.eks.PodIdentityAssociation:
        """Give pods of one Kubernetes service account AWS credentials (EKS pod identity) of a new role.

        Args:
            cluster: name of the cluster.
            part: name of role and association without the stack's prefix.
            account: namespace and name of the service account.
            policy: document of the role, as JSON.
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
