"""The KMS key that encrypts secrets, file system, bucket, registry and disks."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import iam_policies, retained_resources
from infra.aws_context import AwsComponent, AwsContext

# The maximum of KMS: a stack that was destroyed by mistake can be recovered for a month.
DELETION_WINDOW_DAYS = 30


class Key(AwsComponent):
    """paddle:infra:Key: the stack's own key, or an existing one.

    With `key_arn` (`kms.keyArn`), the component creates no key and only passes this ARN on, so a destroy cannot
    affect that key.
    """

    arn: pulumi.Output[str]

    def __init__(self, context: AwsContext, key_arn: str) -> None:
        super().__init__("paddle:infra:Key", context, "key")
        if key_arn != "":
            self.arn = pulumi.Output.from_input(key_arn)
        else:
            # Retained with the data, which cannot be read without its key.
            key = aws.kms.Key(
                context.named("key"),
                description=f"{context.prefix}: secrets, file system, bucket, registry and disks",
                enable_key_rotation=True,
                deletion_window_in_days=DELETION_WINDOW_DAYS,
                policy=iam_policies.key_policy(context.partition, context.account, context.region),
                opts=context.retain(self, retained_resources.KEY),
            )
            aws.kms.Alias(
                context.named("key"),
                name_prefix=f"alias/{context.prefix}-",
                target_key_id=key.id,
                opts=self.child,
            )
            self.arn = key.arn
        self.register_outputs({"arn": self.arn})
