"""The resources that a destroy keeps in addition to the file system: key, bucket, registry and log groups.

`make kept` prints the setting `storage.adopt`, with which the next `up` uses the kept resources again. An id in this
setting makes the engine import the resource and then apply the current settings to it (`AwsContext.retain`). If the
resource is in the stack's state already, the id has no effect. The log groups need no setting, because their names are
fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import iam_policies, naming
from infra.aws_context import AwsComponent, AwsContext, read_if_exists
from infra.settings import PROJECT, Problem, Settings, SettingsError

# Keys of storage.adopt.
FILE_SYSTEM, ACCESS_POINT, BUCKET = "fileSystem", "accessPoint", "bucket"
REGISTRY, KEY = "registry", "key"
# Last part of the Pulumi name of the control plane's log group, and of the groups of cluster.podLogs: those that the
# Fluent Bit configuration of its agent writes to.
LOGS, _POD_LOGS = "logs", ("application", "dataplane", "host")
# The maximum of KMS: a stack that was destroyed by mistake can be recovered for a month.
DELETION_WINDOW_DAYS = 30
# Parts of an interrupted upload cost money, and no listing shows them.
INCOMPLETE_UPLOAD_DAYS = 7

_FILE_SYSTEM_ARN, _GROUP_ARN = ":file-system/", ":security-group/"


class Key(AwsComponent):
    """paddle:infra:Key: the stack's own KMS key, or an existing one, for secrets, stored data and disks.

    With `kms.keyArn`, the component creates no key and only passes this ARN on, so a destroy cannot affect that key.
    """

    arn: pulumi.Output[str]

    def __init__(self, context: AwsContext) -> None:
        super().__init__("paddle:infra:Key", context, "key")
        existing, region = context.settings.kms.key_arn, context.settings.region
        if existing != "":
            self.arn = pulumi.Output.from_input(existing)
        else:
            # Retained with the data, which cannot be read without its key.
            key = aws.kms.Key(
                context.named("key"),
                description=f"{context.prefix}: secrets, file system, bucket, registry and disks",
                enable_key_rotation=True,
                deletion_window_in_days=DELETION_WINDOW_DAYS,
                policy=iam_policies.policy(
                    "key", partition=context.partition, account=context.account, region=region
                ),
                opts=context.retain(self, KEY),
            )
            aws.kms.Alias(
                context.named("key"),
                name_prefix=f"alias/{context.prefix}-",
                target_key_id=key.id,
                opts=self.child,
            )
            self.arn = key.arn
        self.register_outputs({"arn": self.arn})


class Registry(AwsComponent):
    """paddle:infra:Registry: the ECR repository of the launcher image; its tags are immutable."""

    def __init__(self, context: AwsContext, key_arn: pulumi.Input[str]) -> None:
        super().__init__("paddle:infra:Registry", context, "registry")
        repository = aws.ecr.Repository(
            context.named("launcher"),
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": key_arn}],
            force_delete=not context.settings.storage.protect,
            opts=context.retain(self, REGISTRY),
        )
        aws.ecr.LifecyclePolicy(
            context.named("launcher"),
            repository=repository.name,
            policy=iam_policies.policy("registry"),
            opts=context.retain(self),
        )
        self.url = repository.repository_url
        self.name = repository.name
        self.register_outputs({"url": self.url})


class Logs(AwsComponent):
    """paddle:infra:Logs: log groups of the control plane and, with `cluster.podLogs`, of the pods and nodes.

    The groups are created before the cluster, because EKS and the log agent would create them without a retention
    period and tags. They are deleted after the cluster, because a cluster that still writes logs creates a deleted
    group again.
    """

    def __init__(self, context: AwsContext) -> None:
        super().__init__("paddle:infra:Logs", context, "logs")
        settings = context.settings.cluster
        self.groups = {
            part: aws.cloudwatch.LogGroup(
                context.named(part),
                name=name,
                retention_in_days=settings.log_retention_days,
                opts=context.retain(self, part),
            )
            for part, name in log_groups(context.prefix, settings.pod_logs).items()
        }
        self.register_outputs({"name": self.groups[LOGS].name})


class Artifacts(AwsComponent):
    """paddle:infra:Artifacts: a private, encrypted, versioned bucket for sources and models that accepts only TLS."""

    def __init__(self, context: AwsContext, key_arn: pulumi.Input[str]) -> None:
        super().__init__("paddle:infra:Artifacts", context, "artifacts")
        settings, protect = context.settings.artifacts, context.settings.storage.protect
        retained = context.retain(self)
        name = context.named("artifacts")
        # Without protection, a destroy also deletes the bucket's objects.
        bucket = aws.s3.Bucket(name, force_destroy=not protect, opts=context.retain(self, BUCKET))
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
            policy=bucket.arn.apply(lambda arn: iam_policies.policy("bucket", bucket=arn)),
            opts=context.retain(self, depends_on=[block]),
        )
        for key, path in settings.uploads.items():
            file = context.inputs.folder / path
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


def _read_file_system(id_: str) -> aws.efs.GetFileSystemResult:
    return aws.efs.get_file_system(file_system_id=id_)


def _read_enabled_key(id_: str) -> aws.kms.GetKeyResult:
    key = aws.kms.get_key(key_id=id_)
    if key.key_state != "Enabled":
        raise LookupError(f"{key.key_id} is {key.key_state}")
    return key


_READ: Mapping[str, Callable[[str], Any]] = {
    FILE_SYSTEM: _read_file_system,
    ACCESS_POINT: lambda id_: aws.efs.get_access_point(access_point_id=id_),
    BUCKET: lambda id_: aws.s3.get_bucket(bucket=id_),
    REGISTRY: lambda id_: aws.ecr.get_repository(name=id_),
    KEY: _read_enabled_key,
}


def log_groups(prefix: str, pod_logs: bool) -> dict[str, str]:
    """Return the stack's log groups: last part of the Pulumi name, such as `logs` → name of the group in AWS.

    Without `pod_logs`, only the control plane has a log group.
    """
    pods = {f"{LOGS}-{name}": f"/aws/containerinsights/{prefix}/{name}" for name in _POD_LOGS}
    return {LOGS: f"/aws/eks/{prefix}/cluster", **(pods if pod_logs else {})}


def _adoption_problems(
    settings: Settings, tags: Mapping[str, str], found: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each id in `storage.adopt` that this stack cannot adopt.

    `found` maps a key of `storage.adopt`, such as `bucket`, to the resource that AWS has for the id under this key.
    `tags` are the tags that identify the stack.
    """
    adopt = settings.storage.adopt

    def problem(part: str, limit: str, why: str, fix: str) -> Problem:
        return settings.problem(f"storage.adopt.{part}", f"{limit}: {why}. Fix: {fix}")

    for part in adopt.keys() - found.keys():
        why = "AWS has no resource with this id, or its deletion is scheduled"
        fix = "set it to an id that `make kept` prints, or remove it to create a new resource"
        yield problem(part, "the id of a resource in this account and region", why, fix)
    files, point = found.get(FILE_SYSTEM), found.get(ACCESS_POINT)
    if point is not None and point.file_system_id != adopt.get(FILE_SYSTEM):
        why = f"it belongs to file system {point.file_system_id}"
        fix = f"set storage.adopt.{FILE_SYSTEM} to that file system, or remove the access point"
        yield problem(ACCESS_POINT, f"an access point of storage.adopt.{FILE_SYSTEM}", why, fix)
    if files is None:
        return
    owner = (files.tags or {}).get("Stack", tags["Stack"])
    if owner != tags["Stack"]:
        why, fix = f"it belongs to stack {owner}", "set it to an id that `make kept` prints"
        yield problem(FILE_SYSTEM, "a file system of this stack", why, fix)
    elif not files.encrypted:
        why = "EFS cannot encrypt an existing file system, so the update would replace it by an empty one"
        fix = "copy its data to a new file system (AWS DataSync), and remove it from storage.adopt"
        yield problem(FILE_SYSTEM, "an encrypted file system", why, fix)


def _key_problems(settings: Settings, keys: set[str], files: list[Any]) -> Iterator[Problem]:
    """Yield a problem if there are file systems, but none of them is encrypted with the key of the settings.

    The key of the settings is `kms.keyArn`. If `kms.keyArn` is empty, each of `keys` is accepted: these are the ARNs of
    the stack's own keys. `files` are the stack's file systems in AWS.

    EFS and ECR cannot change the key of a file system or registry: with another key, Pulumi would replace them with
    empty ones.
    """
    wanted = {settings.kms.key_arn} if settings.kms.key_arn != "" else keys
    existing = sorted({found.kms_key_id for found in files})
    if existing and not wanted & set(existing):
        why = "the stack's file system has this key; with another key, the update would replace it by an empty one"
        fix = f"set storage.adopt.{KEY} to this key if `make kept` lists it, else set kms.keyArn to it"
        yield settings.problem("kms.keyArn", f"{' or '.join(existing)}: {why}. Fix: {fix}")


def _not_adopted(prefix: str, ids: list[str]) -> Problem:
    limit = f"one of {', '.join(ids)}" if len(ids) > 1 else ids[0]
    why = f"an earlier destroy of {prefix} kept it, and this update would create an empty file system"
    fix = "run the commands that `make kept` prints; or delete it in EFS, or remove its tag Stack, to get a new one"
    key = f"{PROJECT}:storage.adopt.{FILE_SYSTEM}"
    return Problem(key, None, f"{limit}: {why}. Fix: {fix}")


def check_retained(settings: Settings, prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Check the resources that an earlier destroy kept, and return the ids of the resources to import.

    Args:
        settings: the settings of the stack.
        prefix: the prefix of the stack's names.
        tags: the tags that identify the stack.

    Returns:
        Key → id. It contains all ids of `storage.adopt` under their keys, such as `bucket`. It also contains each log
        group of the stack that exists in AWS, under its key in `log_groups`; the id is the name of the group.

    Raises:
        SettingsError: this stack cannot adopt an id in `storage.adopt`; the existing file system is encrypted with a
            key that differs from the key of the settings (see `_key_problems`); or a destroy kept a file system, and
            `storage.adopt` lists no file system.
    """
    adopt = settings.storage.adopt
    read = {part: read_if_exists(_READ[part], id_) for part, id_ in adopt.items()}
    found = {part: resource for part, resource in read.items() if resource is not None}
    problems = list(_adoption_problems(settings, tags, found))
    # Resources stay listed by their tags for a while after they were deleted.
    filters = [{"key": key, "values": [tags[key]]} for key in ("Project", "Stack")]
    mappings = aws.resourcegroupstaggingapi.get_resources(tag_filters=filters).resource_tag_mapping_lists
    arns = [mapping.resource_arn for mapping in mappings if mapping.tags.get("Name") == f"{prefix}-efs"]
    keys = {found[KEY].arn} if KEY in found else set()
    files = [found[FILE_SYSTEM]] if FILE_SYSTEM in found else []
    if FILE_SYSTEM not in adopt:
        keys |= {mapping.resource_arn for mapping in mappings if mapping.tags.get("Name") == f"{prefix}-key"}
        ids = sorted(arn.partition(_FILE_SYSTEM_ARN)[2] for arn in arns if _FILE_SYSTEM_ARN in arn)
        existing = {id_: read_if_exists(_read_file_system, id_) for id_ in ids}
        files = [resource for resource in existing.values() if resource is not None]
        # The file system's security group exists only while the stack is up; a destroy always removes it.
        is_up = any(
            read_if_exists(lambda id_: aws.ec2.get_security_group(id=id_), arn.partition(_GROUP_ARN)[2])
            for arn in arns
            if _GROUP_ARN in arn
        )
        if files and not is_up:
            problems.append(_not_adopted(prefix, [id_ for id_ in ids if existing[id_] is not None]))
    problems = problems or list(_key_problems(settings, keys, files))
    if problems:
        raise SettingsError(problems)
    groups = {
        part: group
        for part, group in log_groups(prefix, settings.cluster.pod_logs).items()
        if group in aws.cloudwatch.get_log_groups(log_group_name_prefix=group).log_group_names
    }
    return {**adopt, **groups}
