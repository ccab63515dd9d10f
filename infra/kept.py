"""What an earlier destroy of this stack left in the account: found by the stack's tags, and used again.

Found is only what is not in the stack's state. The engine imports it (`Context.keep`), and changes what the
settings want otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from infra import state
from infra.problems import Problem, SettingsError, wrong

FILES, POINT, BUCKET, REGISTRY, KEY, LOGS = "efs", "pods", "artifacts", "launcher", "key", "logs"
# By the resource's name: its type, what its ARN has before its id, and a look at it (what was deleted is
# listed by its tags for a while).
_PARTS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    FILES: (
        "aws:efs/fileSystem:FileSystem",
        ":file-system/",
        lambda id_: aws.efs.get_file_system(file_system_id=id_),
    ),
    POINT: (
        "aws:efs/accessPoint:AccessPoint",
        ":access-point/",
        lambda id_: aws.efs.get_access_point(access_point_id=id_),
    ),
    BUCKET: ("aws:s3/bucket:Bucket", ":s3:::", lambda id_: aws.s3.get_bucket(bucket=id_)),
    REGISTRY: ("aws:ecr/repository:Repository", ":repository/", lambda id_: aws.ecr.get_repository(name=id_)),
    KEY: ("aws:kms/key:Key", ":key/", lambda id_: _enabled(aws.kms.get_key(key_id=id_))),
}
# The provider's words, since its errors have no types.
_GONE = re.compile(r"not.?found|no ?such|couldn't find|empty result|does not exist|is Pending", re.IGNORECASE)
# A stack has it while it stands, and never keeps it.
_GROUP_TYPE, _GROUP = "aws:ec2/securityGroup:SecurityGroup", "security group"
_LOGS_TYPE = "aws:cloudwatch/logGroup:LogGroup"


@dataclass(frozen=True)
class Kept:
    """Ids to import, by the names of their resources, and the key that the data is encrypted with."""

    ids: Mapping[str, str] = field(default_factory=dict)
    encrypted_with: str = ""
    own_key: str = ""


def _enabled(key: aws.kms.GetKeyResult) -> aws.kms.GetKeyResult:
    if key.key_state != "Enabled":
        raise LookupError(f"{key.key_id} is {key.key_state}")
    return key


def _seen(look: Callable[[str], Any], id_: str) -> Any:
    """What AWS knows of it, or None when it is gone. Any other refusal is raised: it may well be there."""
    try:
        return look(id_)
    except Exception as error:
        if _GONE.search(str(error)):
            return None
        raise


def _tagged(prefix: str, tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Ids by resource name, of all that carries the stack's tags."""
    filters = [{"key": key, "values": [tags[key]]} for key in ("Project", "Stack")]
    found: dict[str, list[str]] = {}
    for mapping in aws.resourcegroupstaggingapi.get_resources(tag_filters=filters).resource_tag_mapping_lists:
        for part, (_, before, _look_at) in _PARTS.items():
            _, is_one, id_ = mapping.resource_arn.partition(before)
            if is_one and mapping.tags.get("Name") == f"{prefix}-{part}":
                found.setdefault(part, []).append(id_)
        _, is_group, id_ = mapping.resource_arn.partition(":security-group/")
        if is_group and mapping.tags.get("Name") == f"{prefix}-{FILES}":
            found.setdefault(_GROUP, []).append(id_)
    return found


def _refuse_living(prefix: str, groups: Sequence[str]) -> None:
    for group in groups:
        if _seen(lambda id_: aws.ec2.get_security_group(id=id_), group) is not None:
            why = f"its security group {group} is there, and in another state than this one"
            mend = "pulumi login to where its state is; if that is lost, delete what stands and keep the data"
            raise SettingsError([Problem("the stack's name", prefix, "a stack with one state", why, mend)])


def find(project: str, stack: str, prefix: str, tags: Mapping[str, str]) -> Kept:
    """Looks into the stack's state, and for what that does not have into the account.

    Raises:
        SettingsError: several file systems, or buckets, could be meant; or they are a living stack's.
    """
    known = state.outputs(project, stack)

    def held(kind: str, part: str) -> Mapping[str, Any] | None:
        return known.get(f"{kind}::{prefix}-{part}")

    present = {part: held(kind, part) for part, (kind, _, _) in _PARTS.items()}
    absent = [part for part, outputs in present.items() if outputs is None]
    tagged = _tagged(prefix, tags) if absent else {}
    ids: dict[str, str] = {}
    encrypted, own_key = (present[FILES] or {}).get("kmsKeyId", ""), (present[KEY] or {}).get("arn", "")
    for part in absent:
        alive = {
            id_: about for id_ in tagged.get(part, []) if (about := _seen(_PARTS[part][2], id_)) is not None
        }
        if len(alive) > 1:
            said = "Project and Stack from all but the one to go on with"
            listed = ", ".join(sorted(alive))
            why = f"{listed} are all tagged as this stack's {prefix}-{part}"
            raise SettingsError([Problem("tags", prefix, "one of each kind", why, f"remove the tags {said}")])
        for id_, about in alive.items():
            ids[part] = id_
            encrypted = about.kms_key_id if part == FILES else encrypted
            own_key = about.arn if part == KEY else own_key
    if ids and held(_GROUP_TYPE, FILES) is None:
        _refuse_living(prefix, tagged.get(_GROUP, []))
    if POINT in ids and FILES in ids and _PARTS[POINT][2](ids[POINT]).file_system_id != ids[FILES]:
        del ids[POINT]
    group = f"/aws/eks/{prefix}/cluster"
    if held(_LOGS_TYPE, LOGS) is None:
        groups = aws.cloudwatch.get_log_groups(log_group_name_prefix=group).log_group_names
        ids |= {LOGS: group} if group in groups else {}
    if ids:
        pulumi.log.info(f"of an earlier {prefix}, used again: {', '.join(sorted(ids.values()))}")
    return Kept(ids, encrypted, own_key)


def refuse_another_key(kept: Kept, key_arn: str) -> None:
    """No file system or registry changes its key: with another one they would be replaced, and empty.

    Raises:
        SettingsError: `key_arn` (empty: the stack's own) is not the one that the data is encrypted with.
    """
    wanted = key_arn if key_arn != "" else kept.own_key
    if kept.encrypted_with in ("", wanted):
        return
    said = (
        f"{kept.encrypted_with}: the stack's file system is encrypted with it, and would be replaced by an "
    )
    mend = "empty one. Set kms.keyArn to it, or make another stack and copy the data"
    raise SettingsError([wrong("kms.keyArn", key_arn, said + mend)])
