"""A stack's configuration from `Pulumi.<stack>.yaml`, before there is an engine or a state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from infra.chart_values import merge, read_file
from infra.problems import Problem, SettingsError
from infra.settings import PROJECT


def _full(key: str) -> str:
    return key if ":" in key else f"{PROJECT}:{key}"


def read(folder: Path, stack: str, changes: Sequence[str] = ()) -> dict[str, str]:
    """`namespace:key` → text of a stack's file, with changes such as `nodes.desired=1` laid over it.

    Secret values are left out: no setting of the program is one.

    Raises:
        SettingsError: there is no such file, it is no YAML, or a change has no `=`.
    """
    known = sorted(path.name.split(".")[1] for path in folder.glob("Pulumi.*.yaml"))
    if stack not in known:
        mend = "copy Pulumi.dev.yaml, or pass STACK=dev"
        limit, why = f"one of {', '.join(known)}", f"there is no Pulumi.{stack}.yaml"
        raise SettingsError([Problem("STACK", stack, limit, why, mend)])
    config = read_file(folder / f"Pulumi.{stack}.yaml", "STACK").get("config") or {}
    found = {_full(key): value for key, value in config.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        if "" in (name, equals):
            why = "a change has a key and a value"
            raise SettingsError([Problem("SET", change, "KEY=VALUE", why, "write nodes.desired=1")])
        first, *below = name.split(".")
        value = yaml.safe_load(text)
        for key in reversed(below):
            value = {key: value}
        found = merge(found, {_full(first): value})
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if not (isinstance(value, dict) and set(value) == {"secure"})
    }
