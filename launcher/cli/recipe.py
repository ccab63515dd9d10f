"""The values of a training that `run` makes: files of the person's, over them what was asked for. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from launcher import misspelt
from launcher.cli.problems import UsageError

Values = dict[str, Any]
JOB_NAME_LENGTH = 45


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> Values:
    """Values as helm merges them: objects by key, all else replaced."""
    both = dict(base)
    for key, value in own.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def nested(flat: Mapping[str, Any]) -> Values:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    whole: Values = {}
    for key, value in flat.items():
        branch = value
        for part in reversed(key.split(".")):
            branch = {part: branch}
        whole = merged(whole, branch)
    return whole


def apply(values: Mapping[str, Any], settings: Iterable[str], defaults: Mapping[str, Any]) -> Values:
    """`values` with each `key=value` of `--set` or `--grid`.

    A key whose first part is one of the chart's values (`defaults`) is that value, such as
    `training.batchSize=128`; any other one is an option of the program, `learning_rate=0.01`. Raises
    UsageError.
    """
    whole = dict(values)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UsageError(
                f"{setting!r} is no key=value. Write a value of the chart (training.batchSize=128), or an "
                "option of the program (learning_rate=0.01)."
            )
        first = key.split(".")[0]
        if first in defaults:
            whole = merged(whole, nested({key: _parsed(key, text, defaults)}))
        elif "." in key:
            meant = misspelt.meant(first, defaults)
            raise UsageError(
                f"{setting!r}: the chart has no value {first}, and an option of a program has no dot"
                f"{'; ' + meant if meant else '.'} The chart has: {', '.join(sorted(defaults))}."
            )
        else:
            training = dict(whole.get("training") or {})
            others = [a for a in training.get("extraArgs") or [] if _option(a) != _option(key)]
            whole["training"] = {**training, "extraArgs": [*others, f"--{key}={text}"]}
    return whole


def _option(argument: str) -> str:
    return argument.lstrip("-").partition("=")[0].replace("-", "_")


def _parsed(key: str, text: str, defaults: Mapping[str, Any]) -> Any:
    """A text stays one where the chart has a text; all else is read as YAML, lists as `[a, b]`."""
    default: Any = defaults
    for part in key.split("."):
        default = default.get(part) if isinstance(default, Mapping) else None
    if isinstance(default, str):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {key}={text}: that is no YAML ({error}).") from error


def storable(name: str) -> str:
    """A file's or folder's name as the storage takes it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-._")[:63]


def job_name(folder: str) -> str:
    """A program's folder as the name of a job. Raises UsageError when nothing of it can be one."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:JOB_NAME_LENGTH].strip("-")
    if not name or not name[0].isalpha():
        raise UsageError(f"{folder!r} gives no name for the job. Choose one with --set jobName=NAME.")
    return name


def combinations(grid: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations of `key=a,b,…`, each as (`key=a`, …); the last key changes fastest.

    Raises UsageError.
    """
    axes = []
    for axis in grid:
        key, equals, values = axis.partition("=")
        found = [value for value in values.split(",") if value]
        if not key or not equals or not found:
            raise UsageError(f"--grid {axis} names no values. Write for instance learning_rate=0.01,0.03.")
        axes.append([f"{key}={value}" for value in dict.fromkeys(found)])
    return list(itertools.product(*axes))
