"""Read a stack's configuration from `Pulumi.<stack>.yaml`, without an engine or a state backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from infra.chart_values import merge_values, read_yaml
from infra.settings_errors import PROJECT, Problem, SettingsError
from infra.settings_rules import secret_problems


def read_stack_config(folder: Path, stack: str, changes: Sequence[str] = ()) -> dict[str, str]:
    """Return `namespace:key` → text of a stack's file, with `changes` such as `nodes.desired=1` applied.

    Encrypted values of other namespaces, such as `aws`, are omitted.

    Raises:
        SettingsError: the file does not exist or is not YAML, a setting is encrypted, or a change has no `=`.
    """
    stacks = sorted(path.name.split(".")[1] for path in folder.glob("Pulumi.*.yaml"))
    if stack not in stacks:
        limit, why = f"one of {', '.join(stacks)}", f"there is no Pulumi.{stack}.yaml"
        fix = "copy Pulumi.dev.yaml, or use STACK=dev"
        raise SettingsError([Problem("STACK", stack, limit, why, fix)])
    config = read_yaml(folder / f"Pulumi.{stack}.yaml", "STACK").get("config") or {}
    found = {_full_key(key): value for key, value in config.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        if "" in (name, equals):
            why, fix = "a change has a key and a value", "write for example nodes.desired=1"
            raise SettingsError([Problem("SET", change, "KEY=VALUE", why, fix)])
        first, *below = name.split(".")
        value = yaml.safe_load(text)
        for key in reversed(below):
            value = {key: value}
        found = merge_values(found, {_full_key(first): value})
    if hidden := list(
        secret_problems((key for key, value in found.items() if _is_encrypted(value)), PROJECT)
    ):
        raise SettingsError(hidden)
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if not _is_encrypted(value)
    }


def _is_encrypted(value: object) -> bool:
    """Return whether a value of the stack's file contains a Pulumi secret: an object with the one key `secure`."""
    if isinstance(value, list):
        return any(map(_is_encrypted, value))
    return isinstance(value, dict) and (set(value) == {"secure"} or any(map(_is_encrypted, value.values())))


def _full_key(key: str) -> str:
    return key if ":" in key else f"{PROJECT}:{key}"
