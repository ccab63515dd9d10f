"""The S3 bucket for data sources and finished models."""

from __future__ import annotations

from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra import iam_policies, naming, retained_resources
from infra.aws_context import AwsComponent, AwsContext
from infra.settings import ArtifactsSettings

# Parts of an interrupted upload cost money, and no listing shows them.
INCOMPLETE_UPLOAD_DAYS = 7


class Artifacts(AwsComponent):
    """paddle:infra:Artifacts: a private, encrypted, versioned bucket that accepts only TLS.

    The paths in `settings.uploads` are relative to `project_folder`.
    """

    def __init__(
        self,
        context: AwsContext,
        *,
        key_arn: pulumi.Input[str],
        settings: ArtifactsSettings,
        project_folder: Path,
    ) -> None:
        super().__init__("paddle:infra:Artifacts", context, "artifacts")
        retained = context.retain(self)
        name = context.named("artifacts")
        # Without protection, a destroy also deletes the bucket's objects.
        bucket = aws.s3.Bucket(
            name, force_destroy=not context.protect, opts=context.retain(self, retained_resources.BUCKET)
        )
        block = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=retained,
        )
        aws.s3.BucketOwnershipControls(
            name, bucket=bucket.id, rule={"object_ownership": "BucketOwnerEnforced"}, opts=retained
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            name,
            bucket=bucket.id,
            rules=[
                {
                    "bucket_key_enabled": True,
                    "apply_server_side_encryption_by_default": {
                        "sse_algorithm": "aws:kms",
                        "kms_master_key_id": key_arn,
                    },
                }
            ],
            opts=retained,
        )
        versioning = aws.s3.BucketVersioning(
            name, bucket=bucket.id, versioning_configuration={"status": "Enabled"}, opts=retained
        )
        aws.s3.BucketLifecycleConfiguration(
            name,
            bucket=bucket.id,
            rules=[
                {
                    "id": "leftovers",
                    "status": "Enabled",
                    "filter": {"prefix": ""},
                    "noncurrent_version_expiration": {"noncurrent_days": settings.keep_versions_days},
                    "abort_incomplete_multipart_upload": {"days_after_initiation": INCOMPLETE_UPLOAD_DAYS},
                }
            ],
            opts=context.retain(self, depends_on=[versioning]),
        )
        # S3 rejects two changes of a bucket's access at the same time.
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.id,
            policy=bucket.arn.apply(iam_policies.bucket_policy),
            opts=context.retain(self, depends_on=[block]),
        )
        for key, path in settings.uploads.items():
            file = project_folder / path
            if not file.is_file():
                continue  # only in a preview: an update rejects it (infra/target_aws.py)
            aws.s3.BucketObjectv2(
                context.named(f"object-{key.replace('/', '-')}"),
                bucket=bucket.id,
                key=key,
                source=pulumi.FileAsset(path),
                source_hash=naming.file_digest(file),
                opts=context.retain(self, depends_on=[encryption, versioning]),
            )
        self.arn = bucket.arn
        self.bucket = bucket.bucket
        self.register_outputs({"bucket": self.bucket})
