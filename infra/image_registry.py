"""The ECR repository of the launcher image."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra import iam_policies, retained_resources
from infra.aws_context import AwsComponent, AwsContext


class Registry(AwsComponent):
    """paddle:infra:Registry: the ECR repository of the launcher image; its tags are immutable."""

    def __init__(self, context: AwsContext, key_arn: pulumi.Input[str]) -> None:
        super().__init__("paddle:infra:Registry", context, "registry")
        repository = aws.ecr.Repository(
            context.named("launcher"),
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": key_arn}],
            force_delete=not context.protect,
            opts=context.retain(self, retained_resources.REGISTRY),
        )
        aws.ecr.LifecyclePolicy(
            context.named("launcher"),
            repository=repository.name,
            policy=iam_policies.registry_lifecycle(),
            opts=context.retain(self),
        )
        self.url = repository.repository_url
        self.name = repository.name
        self.register_outputs({"url": self.url})
