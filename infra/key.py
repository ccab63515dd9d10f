"""The KMS key of everything that is stored: secrets, file system, bucket, registry, disks."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import kept, policies
from infra.context import Context

# The longest that KMS waits: who destroys a stack by mistake has a month to call it back.
DELETION_WINDOW_DAYS = 30


class Key(pulumi.ComponentResource):
    """paddle:infra:Key.

    With `key_arn` it makes nothing, so that a destroy cannot touch a key that is not ours.
    """

    arn: pulumi.Output[str]

    def __init__(self, context: Context, key_arn: str) -> None:
        super().__init__("paddle:infra:Key", context.named("key"))
        if key_arn != "":
            self.arn = pulumi.Output.from_input(key_arn)
        else:
            # Kept with the data: a file system whose key is gone is lost.
            key = aws.kms.Key(
                context.named("key"),
                description=f"{context.prefix}: secrets, file system, bucket, registry and disks",
                enable_key_rotation=True,
                deletion_window_in_days=DELETION_WINDOW_DAYS,
                policy=policies.key_policy(context.partition, context.account, context.region),
                tags=context.tagged("key"),
                opts=context.keep(self, kept.KEY),
            )
            aws.kms.Alias(
                context.named("key"),
                name_prefix=f"alias/{context.prefix}-",
                target_key_id=key.id,
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.arn = key.arn
        self.register_outputs({"arn": self.arn})
