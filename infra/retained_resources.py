"""Find resources that an earlier destroy of this stack kept, by the stack's tags, so that `up` reuses them.

Only resources that are not in the stack's state are searched for. The engine imports them
(`AwsContext.retain`) and applies the present settings to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import stack_state
from infra.aws_lookup import read_if_exists
from infra.settings_errors import Problem, SettingsError, setting_problem

# The last part of each retained resource's name.
FILE_SYSTEM, ACCESS_POINT, BUCKET = "efs", "pods", "artifacts"
REGISTRY, KEY, LOGS = "launcher", "key", "logs"
# Log groups of the agent of cluster.podLogs: those that its Fluent Bit configuration writes to.
_POD_LOGS = ("application", "dataplane", "host")


@dataclass(frozen=True)
class _Kind:
    """A kind of retained resource.

    Attributes:
        type: Pulumi type.
        arn_part: the text before the resource's id in its ARN, such as `:file-system/`.
        read: provider function that returns the resource of an id and raises if it does not exist.
    """

    type: str
    arn_part: str
    read: Callable[[str], Any]


_KINDS = {
    FILE_SYSTEM: _Kind(
        "aws:efs/fileSystem:FileSystem",
        ":file-system/",
        lambda id_: aws.efs.get_file_system(file_system_id=id_),
    ),
    ACCESS_POINT: _Kind(
        "aws:efs/accessPoint:AccessPoint",
        ":access-point/",
        lambda id_: aws.efs.get_access_point(access_point_id=id_),
    ),
    BUCKET: _Kind("aws:s3/bucket:Bucket", ":s3:::", lambda id_: aws.s3.get_bucket(bucket=id_)),
    REGISTRY: _Kind(
        "aws:ecr/repository:Repository", ":repository/", lambda id_: aws.ecr.get_repository(name=id_)
    ),
    KEY: _Kind("aws:kms/key:Key", ":key/", lambda id_: _require_enabled(aws.kms.get_key(key_id=id_))),
}
# The file system's security group exists only while the stack is up; a destroy always removes it.
_GROUP_TYPE, _GROUP = "aws:ec2/securityGroup:SecurityGroup", "security group"
_LOGS_TYPE = "aws:cloudwatch/logGroup:LogGroup"


@dataclass(frozen=True)
class RetainedResources:
    """Retained resources to import, and the KMS keys that exist.

    Attributes:
        ids: last part of the resource's name (`efs`, `artifacts`) → id to import.
        data_key: ARN of the key that encrypts the existing file system, or an empty text without a file system.
        stack_key: ARN of the key that the stack created, or an empty text.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    data_key: str = ""
    stack_key: str = ""


def _require_enabled(key: aws.kms.GetKeyResult) -> aws.kms.GetKeyResult:
    if key.key_state != "Enabled":
        raise LookupError(f"{key.key_id} is {key.key_state}")
    return key


def log_groups(prefix: str, pod_logs: bool) -> dict[str, str]:
    """Return the stack's log groups: last part of the Pulumi resource's name → name of the log group in AWS."""
    pods = {f"{LOGS}-{name}": f"/aws/containerinsights/{prefix}/{name}" for name in _POD_LOGS}
    return {LOGS: f"/aws/eks/{prefix}/cluster", **(pods if pod_logs else {})}


def _ids_by_tag(prefix: str, tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Return resources that have the stack's tags: last part of the name → ids, also of recently deleted ones."""
    filters = [{"key": key, "values": [tags[key]]} for key in ("Project", "Stack")]
    found: dict[str, list[str]] = {}
    for mapping in aws.resourcegroupstaggingapi.get_resources(tag_filters=filters).resource_tag_mapping_lists:
        name = mapping.tags.get("Name")
        for part, kind in _KINDS.items():
            _, matches, id_ = mapping.resource_arn.partition(kind.arn_part)
            if matches and name == f"{prefix}-{part}":
                found.setdefault(part, []).append(id_)
        _, matches, id_ = mapping.resource_arn.partition(":security-group/")
        if matches and name == f"{prefix}-{FILE_SYSTEM}":
            found.setdefault(_GROUP, []).append(id_)
    return found


def _check_not_running(prefix: str, groups: Sequence[str]) -> None:
    for group in groups:
        if read_if_exists(lambda id_: aws.ec2.get_security_group(id=id_), group) is not None:
            limit = "a stack whose resources are in the current Pulumi state, or destroyed"
            why = f"its security group {group} exists in AWS and is not in this state, so another state has the stack"
            fix = (
                "pulumi login to the backend with that state; if that state is lost, delete the stack's "
                "resources except those that hold data"
            )
            raise SettingsError([Problem("the stack's name", prefix, limit, why, fix)])


def find_retained_resources(
    project: str, stack: str, prefix: str, tags: Mapping[str, str], *, pod_logs: bool
) -> RetainedResources:
    """Return the retained resources that are in the account but not in the stack's state.

    Args:
        project: name of the Pulumi project.
        stack: name of the stack.
        prefix: prefix of the stack's names.
        tags: tags that identify the stack.
        pod_logs: `cluster.podLogs`: whether the stack has log groups of pods.

    Raises:
        SettingsError: several resources of one kind have the stack's tags, or the stack is up in another state.
    """
    state = stack_state.read_outputs(project, stack)

    def in_state(type_: str, part: str) -> Mapping[str, Any] | None:
        return state.get(f"{type_}::{prefix}-{part}")

    present = {part: in_state(kind.type, part) for part, kind in _KINDS.items()}
    missing = [part for part, outputs in present.items() if outputs is None]
    tagged = _ids_by_tag(prefix, tags) if missing else {}
    ids: dict[str, str] = {}
    data_key = (present[FILE_SYSTEM] or {}).get("kmsKeyId", "")
    stack_key = (present[KEY] or {}).get("arn", "")
    for part in missing:
        # Resources stay listed by their tags for a while after they were deleted.
        existing = {
            id_: found
            for id_ in tagged.get(part, [])
            if (found := read_if_exists(_KINDS[part].read, id_)) is not None
        }
        if len(existing) > 1:
            why = f"{', '.join(sorted(existing))} all have the tags of this stack's {prefix}-{part}"
            fix = "remove the tags Project and Stack from all but the one to use"
            raise SettingsError([Problem("tags", prefix, "one resource of each kind", why, fix)])
        for id_, found in existing.items():
            ids[part] = id_
            data_key = found.kms_key_id if part == FILE_SYSTEM else data_key
            stack_key = found.arn if part == KEY else stack_key
    if ids and in_state(_GROUP_TYPE, FILE_SYSTEM) is None:
        _check_not_running(prefix, tagged.get(_GROUP, []))
    if {ACCESS_POINT, FILE_SYSTEM} <= ids.keys():
        point = _KINDS[ACCESS_POINT].read(ids[ACCESS_POINT])
        if point.file_system_id != ids[FILE_SYSTEM]:
            del ids[ACCESS_POINT]
    for part, group in log_groups(prefix, pod_logs).items():
        if in_state(_LOGS_TYPE, part) is None:
            groups = aws.cloudwatch.get_log_groups(log_group_name_prefix=group).log_group_names
            ids |= {part: group} if group in groups else {}
    if ids:
        listed = ", ".join(sorted(ids.values()))
        pulumi.log.info(f"{prefix}: reusing resources that an earlier destroy kept: {listed}")
    return RetainedResources(ids, data_key, stack_key)


def check_key(retained: RetainedResources, key_arn: str) -> None:
    """Check that the key of the settings is the key that encrypts the existing file system.

    EFS and ECR cannot change the key of a file system or registry: with another key, Pulumi would replace them with
    empty ones.

    Args:
        retained: the retained resources.
        key_arn: `kms.keyArn`; an empty text for the key that the stack creates.

    Raises:
        SettingsError: the settings have another key.
    """
    wanted = key_arn if key_arn != "" else retained.stack_key
    if retained.data_key in ("", wanted):
        return
    limit = retained.data_key
    why = "it encrypts the stack's file system, which would be replaced by an empty one"
    fix = "set kms.keyArn to that key, or create another stack and copy the data"
    raise SettingsError([setting_problem("kms.keyArn", key_arn, limit, why, fix)])
