"""The bucket: data sources in, finished models out."""

from __future__ import annotations

from pathlib import Path

import pulumi
import pulumi_aws as aws

from infra import kept, naming, policies
from infra.context import Context
from infra.settings import Artifacts as ArtifactsSettings

# Parts of an upload that was broken off cost money and are seen by nobody.
BROKEN_UPLOAD_DAYS = 7


class Artifacts(pulumi.ComponentResource):
    """paddle:infra:Artifacts: private, encrypted, versioned; only TLS.

    `uploads` of the settings are read relative to `project_folder`.
    """

    def __init__(
        self,
        context: Context,
        *,
        key_arn: pulumi.Input[str],
        settings: ArtifactsSettings,
        project_folder: Path,
    ) -> None:
        super().__init__("paddle:infra:Artifacts", context.named("artifacts"))
        keep = context.keep(self)
        name = context.named("artifacts")
        # An unprotected bucket is emptied by its removal; a protected one is kept with all that guards it.
        bucket = aws.s3.Bucket(
            name,
            force_destroy=not context.protect,
            tags=context.tagged("artifacts"),
            opts=context.keep(self, kept.BUCKET),
        )
        block = aws.s3.BucketPublicAccessBlock(
            name,
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=keep,
        )
        aws.s3.BucketOwnershipControls(
            name, bucket=bucket.id, rule={"object_ownership": "BucketOwnerEnforced"}, opts=keep
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
            opts=keep,
        )
        versioning = aws.s3.BucketVersioning(
            name, bucket=bucket.id, versioning_configuration={"status": "Enabled"}, opts=keep
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
                    "abort_incomplete_multipart_upload": {"days_after_initiation": BROKEN_UPLOAD_DAYS},
                }
            ],
            opts=context.keep(self, depends_on=[versioning]),
        )
        # Two changes of one bucket's access at once are refused by S3.
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.id,
            policy=bucket.arn.apply(policies.bucket_policy),
            opts=context.keep(self, depends_on=[block]),
        )
        for key, path in settings.uploads.items():
            file = project_folder / path
            if not file.is_file():
                continue  # only in a preview: an update refuses it (infra/stack.py)
            aws.s3.BucketObjectv2(
                context.named(f"object-{key.replace('/', '-')}"),
                bucket=bucket.id,
                key=key,
                source=pulumi.FileAsset(path),
                source_hash=naming.file_digest(file),
                # An object takes ten tags, so that it carries the stack's own only.
                tags={**context.own_tags, "Name": context.named(f"object-{key.replace('/', '-')}")},
                opts=context.keep(self, depends_on=[encryption, versioning]),
            )
        self.arn = bucket.arn
        self.bucket = bucket.bucket
        self.register_outputs({"bucket": self.bucket})
