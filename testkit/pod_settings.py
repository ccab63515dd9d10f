"""The environment and the settings document of a pod in tests, by the names of the fields of its settings."""

from __future__ import annotations

import atexit
import copy
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.cli.releases import merge_values, read_defaults
from launcher.io.files import write_atomically
from launcher.settings import (
    PodSettings,
    Setting,
    TrainSettings,
    seed_variables,
    settings_document,
    settings_of,
)

RELEASE = "paddle-training"
JOB = "quick-start"
_BASE = {"jobName": JOB, "training": {"config": "mine/trainer_config.py"}}


@functools.cache
def _folder() -> Path:
    """Make a folder for the documents, which exists until this process exits."""
    folder = Path(tempfile.mkdtemp(prefix="settings-"))
    folder.chmod(0o777)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _base() -> tuple[dict[str, Any], dict[str, str]]:
    values = merge_values(read_defaults(), _BASE)
    document = settings_document(values, RELEASE, "d1")
    own = {
        "JOB_NAMESPACE": "paddle",
        "JOB_COMPLETION_INDEX": "0",
        "PADDLE_LAUNCHER_K8S_JOB": f"{JOB}-0a1b2c3d",
    }
    return document, seed_variables(values) | own


def pod_environ(kind: type[PodSettings] = TrainSettings, /, **given: Any) -> dict[str, str]:
    """Write the settings document of a pod, and return the pod's environment.

    `given` has fields of `kind` and their values in the document (`passes=3`), and further variables (`PATH="/bin"`).
    """
    base, seeds = _base()
    document, environ = copy.deepcopy(base), dict(seeds)
    fields = _fields(kind)
    for name, value in given.items():
        one = fields.get(name)
        old = name.removeprefix("PADDLE_LAUNCHER_").lower()
        assert name.islower() or old not in fields or fields[old].variable == name, f"use {old}=…"
        if one is None or (one.variable and not one.key):
            environ[one.variable if one else name] = str(value)
        else:
            place(document, one.key, value)
    if "trainers" in given and not {"gradient_num", "CONF_PADDLE_GRADIENT_NUM"} & given.keys():
        environ["CONF_PADDLE_GRADIENT_NUM"] = str(given["trainers"])
    ports = [environ[f"CONF_PADDLE_{name}"] for name in ("PORT", "PORTS_NUM", "PORTS_NUM_SPARSE")]
    if "peer_port" not in given and all(map(str.isdecimal, ports)):
        document["peerPort"] = sum(map(int, ports))
    content = json.dumps(document)
    file = _folder() / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.json"
    if not file.exists():  # it may be of another user
        write_atomically(file, content)
    return environ | {"PADDLE_LAUNCHER_SETTINGS": str(file)}


def place(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value with the path `key`, such as `training.passes`."""
    *folders, last = key.split(".")
    for name in folders:
        values = values.setdefault(name, {})
    values[last] = value


def chart_values(**given: Any) -> dict[str, Any]:
    """Return values of the chart for fields of TrainSettings (`passes=3`), or for the variables of such fields."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        field, parsed = _lower(name, value)
        one = _fields(TrainSettings)[field]
        place(values, one.key or one.value, parsed)
    return values


def _lower(name: str, value: Any) -> tuple[str, Any]:
    if name.islower():
        return name, value
    by_variable = {one.variable: field for field, one in _fields(TrainSettings).items() if one.variable}
    field = by_variable.get(name, name.lower().replace("init_model_path", "init_model"))
    types = {one.name: one.type for one in dataclasses.fields(TrainSettings)}
    return field, value if types[field] in ("str", "Path") or not isinstance(value, str) else json.loads(
        value
    )


@functools.cache
def _fields(kind: type[PodSettings]) -> Mapping[str, Setting]:
    return settings_of(kind)
