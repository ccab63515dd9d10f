"""Resources that an earlier destroy kept: check the ids of `storage.adopt`, with which the next `up` imports them.

`make kept` prints these settings. The engine imports a resource that is not in the stack's state and then applies the
present settings to it (`AwsContext.retain`); for one that is in the state already, the id has no effect. The log
groups need no setting, because their names are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pulumi_aws as aws

from infra.aws_lookup import read_if_exists
from infra.settings import Settings
from infra.settings_errors import Problem, SettingsError, setting_problem

# Keys of storage.adopt.
FILE_SYSTEM, ACCESS_POINT, BUCKET = "fileSystem", "accessPoint", "bucket"
REGISTRY, KEY = "registry", "key"
# Last part of the Pulumi name of the control plane's log group, and of the groups of cluster.podLogs: those that the
# Fluent Bit configuration of its agent writes to.
LOGS, _POD_LOGS = "logs", ("application", "dataplane", "host")

_FILE_SYSTEM_ARN, _GROUP_ARN = ":file-system/", ":security-group/"


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
    """Return the stack's log groups: last part of the Pulumi resource's name → name of the log group in AWS."""
    pods = {f"{LOGS}-{name}": f"/aws/containerinsights/{prefix}/{name}" for name in _POD_LOGS}
    return {LOGS: f"/aws/eks/{prefix}/cluster", **(pods if pod_logs else {})}


def _adoption_problems(
    settings: Settings, tags: Mapping[str, str], found: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield the problems of `storage.adopt`; `found` maps its keys to the resources that exist."""
    adopt = settings.storage.adopt

    def problem(part: str, limit: str, why: str, fix: str) -> Problem:
        return setting_problem(f"storage.adopt.{part}", adopt.get(part), limit, why, fix)

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
    """Yield a problem if no existing file system has the key of the settings: `kms.keyArn`, or one of `keys`.

    EFS and ECR cannot change the key of a file system or registry: with another key, Pulumi would replace them with
    empty ones.
    """
    wanted = {settings.kms.key_arn} if settings.kms.key_arn != "" else keys
    existing = sorted({found.kms_key_id for found in files})
    if existing and not wanted & set(existing):
        why = "the stack's file system has this key; with another key, the update would replace it by an empty one"
        fix = f"set storage.adopt.{KEY} to this key if `make kept` lists it, else set kms.keyArn to it"
        yield setting_problem("kms.keyArn", settings.kms.key_arn, " or ".join(existing), why, fix)


def _not_adopted(prefix: str, ids: list[str]) -> Problem:
    limit = f"one of {', '.join(ids)}" if len(ids) > 1 else ids[0]
    why = f"an earlier destroy of {prefix} kept it, and this update would create an empty file system"
    fix = "run the commands that `make kept` prints; or delete it in EFS, or remove its tag Stack, to get a new one"
    return setting_problem(f"storage.adopt.{FILE_SYSTEM}", None, limit, why, fix)


def check_retained(settings: Settings, prefix: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Check the retained resources and return those to import: key of `storage.adopt`, or log group → id.

    Raises:
        SettingsError: an id of `storage.adopt` cannot be imported; `kms.keyArn` is not the key of the existing file
            system; or the stack has neither nodes nor mount targets, but a file system that is not in `storage.adopt`.
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
