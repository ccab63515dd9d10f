"""Settings and outputs → values of the chart. Pure: nothing here knows resources.

Precedence, weakest first, as with `helm -f`: what the stack knows (image, storage, service account), then
`valuesFiles` in their order, then the stack's own `values`. A null takes a key back to the chart's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.problems import Problem, SettingsError
from infra.settings import Settings

CHART = "charts/paddle-training"
BUCKET_PLACEHOLDER = "{bucket}"


@dataclass(frozen=True)
class Facts:
    """What only the stack's resources know. Empty where a stack has no such resource."""

    image: str
    file_system_id: str = ""
    access_point_id: str = ""
    file_system_host: str = ""
    bucket: str = ""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping as helm does.

    Lists are replaced, a null removes the key.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def read_file(path: Path, key: str) -> dict[str, Any]:
    """One YAML file of values.

    Raises:
        SettingsError: it is absent, no YAML, or no mapping.
    """

    def refuse(reason: str) -> SettingsError:
        limit, mend = "a YAML file with a mapping of values", "correct the path or the file"
        return SettingsError([Problem(key, str(path), limit, reason, mend)])

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(f"it cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise refuse(f"it is no YAML: {' '.join(str(error).split())}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise refuse(f"it holds a {type(loaded).__name__}")
    return loaded


def own_values(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """What the person set: `valuesFiles` in order, then `values`.

    Raises:
        SettingsError: a file is absent or no mapping.
    """
    merged: dict[str, Any] = {}
    for name in settings.values_files:
        merged = merge(merged, read_file(project_folder / name, "paddle-training:valuesFiles"))
    return merge(merged, settings.values)


def effective(settings: Settings, project_folder: Path) -> dict[str, Any]:
    """What the chart will see of the person's values, with its defaults filled in.

    For checks before any resource.
    """
    chart = read_file(project_folder / CHART / "values.yaml", CHART)
    return merge(chart, own_values(settings, project_folder))


def storage_values(settings: Settings, facts: Facts) -> dict[str, Any]:
    """The chart's `storage` for this stack."""
    storage = settings.storage
    if storage.type == "efs-csi":
        return {
            "type": "efs-csi",
            "efsCsi": {"fileSystemId": facts.file_system_id, "accessPointId": facts.access_point_id},
        }
    if storage.type == "nfs":
        server = storage.server if storage.server != "" else facts.file_system_host
        return {"type": "nfs", "nfs": {"server": server, "path": storage.path if storage.path != "" else "/"}}
    if storage.type == "hostPath":
        return {"type": "hostPath", "hostPath": {"path": storage.path}}
    return {"type": "existingClaim", "existingClaim": {"name": storage.claim}}


def _fill(value: Any, bucket: str) -> Any:
    if isinstance(value, str):
        return value.replace(BUCKET_PLACEHOLDER, bucket) if bucket != "" else value
    if isinstance(value, Mapping):
        return {key: _fill(item, bucket) for key, item in value.items()}
    return [_fill(item, bucket) for item in value] if isinstance(value, list) else value


def build(settings: Settings, facts: Facts, own: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the release.

    Args:
        settings: the stack's.
        facts: what its resources know.
        own: the person's values, from `own_values`.
    """
    known: dict[str, Any] = {"image": facts.image, "storage": storage_values(settings, facts)}
    filled: dict[str, Any] = _fill(merge(known, own), facts.bucket)
    return filled
