"""The image registry."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import kept, policies
from infra.context import Context

# Enough to go back by; an image is some 0.9 GB.
KEPT_IMAGES = 20


class Registry(pulumi.ComponentResource):
    """paddle:infra:Registry: one repository; a tag, once pushed, never means another image."""

    def __init__(self, context: Context, key_arn: pulumi.Input[str]) -> None:
        super().__init__("paddle:infra:Registry", context.named("registry"))
        repository = aws.ecr.Repository(
            context.named("launcher"),
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": key_arn}],
            force_delete=not context.protect,
            tags=context.tagged("launcher"),
            opts=context.keep(self, kept.REGISTRY),
        )
        aws.ecr.LifecyclePolicy(
            context.named("launcher"),
            repository=repository.name,
            policy=policies.registry_lifecycle(KEPT_IMAGES),
            opts=context.keep(self),
        )
        self.url = repository.repository_url
        self.name = repository.name
        self.register_outputs({"url": self.url})
