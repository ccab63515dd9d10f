"""Build the chart values of a stack from its settings and outputs. Imports no pulumi.

Later sources override earlier ones, as with `helm -f`: the stack's own values (image, storage, processor of
the nodes), `valuesFiles` in their order, the setting `values`. A null restores the chart's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra import constants
from infra.instance_types import is_arm
from infra.settings import Settings
from infra.settings_errors import Problem, SettingsError

CHART = "charts/paddle-training"
BUCKET_PLACEHOLDER = "{bucket}"

# libyaml's loader takes a tenth of the time of the one in Python, where each read of the chart's values took 0.1 s.
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

NO_LIMIT = (("training", "deadlineSeconds"), ("workDir", "sizeLimit"))
"""Values for which null means "no limit". A stack cannot set them to null: the Release of pulumi-kubernetes omits
nulls, also with `allow_null_values` (tried in `values` and in `value_yaml_files`)."""


@dataclass(frozen=True)
class StackOutputs:
    """Outputs of the stack's resources that become chart values; an empty text if there is no resource."""

    image: str
    file_system_id: str = ""
    access_point_id: str = ""
    file_system_host: str = ""
    bucket: str = ""


def merge_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` merged into it, mapping by mapping, as helm merges values.

    A list replaces the other list, and a null removes the key.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge_values(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def read_yaml(path: Path, key: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    `key` is the setting that refers to the file, for the message.

    Raises:
        SettingsError: the file does not exist, is not YAML, or contains no mapping.
    """

    def invalid(reason: str) -> SettingsError:
        limit, fix = "a YAML file with a mapping", "correct the path or the file"
        return SettingsError([Problem(key, str(path), limit, reason, fix)])

    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)  # noqa: S506 - a safe loader
    except OSError as error:
        raise invalid(f"the file cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise invalid(f"the file is not YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise invalid(f"the file contains a {type(loaded).__name__} instead of a mapping")
    return loaded


def _is_null(values: Mapping[str, Any], section: str, key: str, *, before: bool) -> bool:
    """Return whether a value is null in `values`, or `before` if they do not contain it."""
    given = values.get(section, {})
    if not isinstance(given, Mapping):
        return False
    return given[key] is None if key in given else before


def user_values(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """Return the user's chart values: `valuesFiles` in their order, then `values`.

    Raises:
        SettingsError: a file does not exist or contains no mapping, or a value of NO_LIMIT is null in the last
            source that contains it.
    """
    files = [
        read_yaml(project_folder / name, "paddle-training:valuesFiles") for name in settings.values_files
    ]
    merged: dict[str, Any] = {}
    nulls: set[tuple[str, str]] = set()
    for values in (*files, settings.values):
        merged = merge_values(merged, values)
        nulls = {path for path in NO_LIMIT if _is_null(values, *path, before=path in nulls)}
    why = "Pulumi omits a null, so the chart's default would apply"
    fix = "set it to a very large value, or remove it to get the default"
    problems = [
        Problem(f"{section}.{key}", "null", "a value other than null", why, fix)
        for section, key in NO_LIMIT
        if (section, key) in nulls
    ]
    if problems:
        raise SettingsError(problems)
    return merged


def effective_values(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """Return `user_values` with the chart's defaults filled in, for checks before `pulumi up`.

    Raises:
        SettingsError: like `user_values`.
    """
    chart = read_yaml(project_folder / CHART / "values.yaml", CHART)
    return merge_values(chart, user_values(settings, project_folder))


def storage_values(settings: Settings, outputs: StackOutputs) -> dict[str, Any]:
    """Return the chart value `storage` of this stack."""
    storage = settings.storage
    if storage.type == "efs-csi":
        return {
            "type": "efs-csi",
            "efsCsi": {"fileSystemId": outputs.file_system_id, "accessPointId": outputs.access_point_id},
        }
    if storage.type == "nfs":
        server = storage.server if storage.server != "" else outputs.file_system_host
        return {"type": "nfs", "nfs": {"server": server, "path": storage.path if storage.path != "" else "/"}}
    if storage.type == "hostPath":
        return {"type": "hostPath", "hostPath": {"path": storage.path}}
    return {"type": "existingClaim", "existingClaim": {"name": storage.claim}}


def _fill_in_bucket(value: Any, bucket: str) -> Any:
    if isinstance(value, str):
        return value.replace(BUCKET_PLACEHOLDER, bucket) if bucket != "" else value
    if isinstance(value, Mapping):
        return {key: _fill_in_bucket(item, bucket) for key, item in value.items()}
    return [_fill_in_bucket(item, bucket) for item in value] if isinstance(value, list) else value


def release_values(settings: Settings, outputs: StackOutputs, user: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the Helm release; `user` are the values from `user_values`."""
    base: dict[str, Any] = {"image": outputs.image, "storage": storage_values(settings, outputs)}
    if settings.target == "aws" and is_arm(settings.nodes.instance_types[0]):
        base["scheduling"] = {"architecture": "arm64"}
    filled: dict[str, Any] = _fill_in_bucket(merge_values(base, user), outputs.bucket)
    if settings.storage.type == "efs-csi":
        # The file-system policy admits only clients with IAM (infra/iam_policies.py); a user's list would replace it.
        efs = filled["storage"].get("efsCsi") if isinstance(filled["storage"], dict) else None
        if isinstance(efs, dict) and isinstance(efs.setdefault("mountOptions", []), list):
            efs["mountOptions"] = list(dict.fromkeys([*efs["mountOptions"], "iam"]))
    if settings.target == "aws" and settings.nodes.has_gpus:
        # The data pods (and the pod of `helm test`) request no GPU, but run on the GPU nodes: these have CPUs and
        # memory to spare while their training pods wait for the data, and the system node is too small. So the
        # toleration is added to the user's, which would replace it as any list does.
        toleration = {"key": constants.GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
        scheduling = filled.setdefault("scheduling", {})
        if isinstance(scheduling, dict) and isinstance(scheduling.setdefault("tolerations", []), list):
            scheduling["tolerations"].append(toleration)  # else the chart's schema rejects the value
    return filled
