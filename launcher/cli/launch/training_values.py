"""Compute the chart values of a training from values files and options. Pure functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from launcher.cli.cluster.releases import merge_values
from launcher.cli.errors import UsageError
from launcher.io import spelling

Values = dict[str, Any]
JOB_NAME_LENGTH = 45
_TYPES = {list: "a list", bool: "true or false", int: "an integer", str: "a text"}


def nest_keys(flat: Mapping[str, Any]) -> Values:
    """Return values with dotted keys as nested objects: {"a.b": 1} becomes {"a": {"b": 1}}."""
    values: Values = {}
    for key, value in flat.items():
        branch = value
        for part in reversed(key.split(".")):
            branch = {part: branch}
        values = merge_values(values, branch)
    return values


def apply_settings(values: Mapping[str, Any], settings: Iterable[str], defaults: Mapping[str, Any]) -> Values:
    """Return `values` with each `key=value` of `--set` or `--grid`.

    A key whose first part is a value of the chart (`defaults`) sets that value: `training.batchSize=128`. Any
    other key is an option of the program: `learning_rate=0.01`.

    Raises UsageError if a setting is no `key=value`, or its key is unknown.
    """
    changed = dict(values)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {setting}: this is not KEY=VALUE",
                "set a value of the chart (training.batchSize=128) or an option of the program "
                "(learning_rate=0.01)",
            )
        first = key.split(".")[0]
        if first in defaults:
            changed = merge_values(changed, nest_keys({key: _parse(key, text, defaults)}))
        elif "." in key:
            hint = spelling.suggest(first, defaults)
            raise UsageError(
                f"--set {setting}: the chart has no value {first}, and options of a program contain no dot"
                f"{'; ' + hint if hint else ''}",
                f"choose a value of the chart: {', '.join(sorted(defaults))}",
            )
        else:
            training = dict(changed.get("training") or {})
            others = [a for a in training.get("extraArgs") or [] if _option_name(a) != _option_name(key)]
            changed["training"] = {**training, "extraArgs": [*others, f"--{key}={text}"]}
    return changed


def _option_name(argument: str) -> str:
    return argument.lstrip("-").partition("=")[0].replace("-", "_")


def _parse(key: str, text: str, defaults: Mapping[str, Any]) -> Any:
    """Return the text itself if the chart's value is a text; else its value as YAML (`[a, b]`: a list)."""
    default: Any = defaults
    for part in key.split("."):
        default = default.get(part) if isinstance(default, Mapping) else None
    if isinstance(default, str):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {key}={text}: the value is not YAML: {error}", "quote it as YAML") from error


def check_types(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise UsageError if `training`, `data` or a value below them has another type than its default.

    This machine uses these values before helm checks all values against the chart's schema.
    """
    for part in ("training", "data"):
        found = values[part]
        if not isinstance(found, Mapping):
            raise _type_error(part, found, "an object, such as {KEY: VALUE}")
        for key, default in defaults[part].items():
            value, wanted = found.get(key), _TYPES.get(type(default))
            is_removed = value is None and isinstance(default, int | str)  # null removes helm's default
            if wanted and type(value) is not type(default) and not is_removed:
                raise _type_error(f"{part}.{key}", value, wanted)


def _type_error(key: str, value: Any, wanted: str) -> UsageError:
    shown = "null" if value is None else repr(value)
    return UsageError(
        f"{key} is {shown}, but must be {wanted}", "correct it where you set it (--set, --grid, -f)"
    )


def make_storage_name(name: str) -> str:
    """Return a file's or folder's name with the characters that are valid on the storage."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-._")[:63]


def make_job_name(folder: str) -> str:
    """Return a jobName for a program's folder. Raises UsageError if its name has no usable characters."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:JOB_NAME_LENGTH].strip("-")
    if not name or not name[0].isalpha():
        raise UsageError(
            f"no jobName can be made of the folder name {folder!r}: it has no letter to begin with",
            "choose one with --set jobName=NAME",
        )
    return name


def expand_grid(grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all combinations of `key=a,b,…`, each as (`key=a`, …); the last key changes fastest.

    Raises UsageError if an entry of the grid has no key or no values.
    """
    axes = []
    for axis in grid:
        key, equals, values = axis.partition("=")
        found = [value for value in values.split(",") if value]
        if not key or not equals or not found:
            raise UsageError(
                f"--grid {axis}: this is not KEY=A,B,…", "write for example --grid learning_rate=0.01,0.03"
            )
        axes.append([f"{key}={value}" for value in dict.fromkeys(found)])
    return list(itertools.product(*axes))
