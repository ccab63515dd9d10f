"""A stack's settings and outputs, as the commands of this package read them.

Settings come from `Pulumi.<stack>.yaml` itself, so that `doctor` and `cost` work before there is a state
backend. Outputs and changes go through the `pulumi` command.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.config import Config

from infra.settings import PROJECT, Settings, load

# Answers in seconds or not at all: two tries, five seconds to connect, ten for the answer.
_CLIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})

Client = Callable[[str], Any]
"""Service name → boto3 client of the stack's region."""


class CommandError(Exception):
    """One message for the person; the command ends with exit code 1."""


@dataclass(frozen=True)
class Stack:
    """A stack by its file. `region`: `aws:region`, or empty."""

    name: str
    folder: Path
    region: str
    settings: Settings

    @property
    def prefix_tags(self) -> dict[str, str]:
        """The two tags that say whose a resource is."""
        return {"Project": PROJECT, "Stack": self.name}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def configuration(folder: Path, stack: str, changes: Sequence[str] = ()) -> dict[str, str]:
    """`namespace:key` → text of a stack's file, with changes such as `nodes.desired=1` laid over it.

    Secret values are left out: no setting of the program is one.

    Raises:
        CommandError: there is no such file, it is no YAML, or a change has no `=`.
    """
    path = folder / f"Pulumi.{stack}.yaml"
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        found = dict(loaded.get("config") or {})
    except FileNotFoundError:
        known = ", ".join(sorted(p.name.split(".")[1] for p in folder.glob("Pulumi.*.yaml"))) or "none"
        raise CommandError(
            f"there is no stack file {path.name} here; there are stacks {known}. "
            "Copy Pulumi.dev.yaml, or pass STACK=dev"
        ) from None
    except (OSError, yaml.YAMLError, ValueError, AttributeError) as error:
        raise CommandError(f"{path.name} cannot be read: {' '.join(str(error).split())}") from error
    found = {key if ":" in key else f"{PROJECT}:{key}": value for key, value in found.items()}
    for change in changes:
        key, equals, value = change.partition("=")
        if equals == "" or key == "":
            raise CommandError(f"{change!r} is no change; write KEY=VALUE, such as nodes.desired=1")
        if key == "aws:region":
            found[key] = value
            continue
        first, *rest = key.removeprefix(f"{PROJECT}:").split(".")
        loaded_value = yaml.safe_load(value)
        if rest:
            found[f"{PROJECT}:{first}"] = _set(found.get(f"{PROJECT}:{first}") or {}, rest, loaded_value)
        else:
            found[f"{PROJECT}:{first}"] = loaded_value
    return {k: _text(v) for k, v in found.items() if not (isinstance(v, dict) and set(v) == {"secure"})}


def _set(base: Any, path: list[str], value: object) -> dict[str, Any]:
    below = dict(base) if isinstance(base, dict) else {}
    below[path[0]] = value if len(path) == 1 else _set(below.get(path[0]), path[1:], value)
    return below


def read(folder: Path, stack: str, changes: Sequence[str] = ()) -> Stack:
    """A stack of target aws.

    Raises:
        CommandError: see `configuration`; or the stack is of another target.
        SettingsError: its settings are wrong.
    """
    config = configuration(folder, stack, changes)
    settings = load(config)
    if settings.target != "aws":
        raise CommandError(f"stack {stack} has target {settings.target}; this command is for target aws")
    return Stack(stack, folder, config.get("aws:region", ""), settings)


def clients(region: str) -> Client:
    """Clients of one region, with the person's own credentials; each is made once, and any thread may ask."""
    session: Any = boto3.session.Session(region_name=region if region != "" else None)
    made: dict[str, Any] = {}
    # boto3's clients may be shared by threads, its sessions may not.
    lock = threading.Lock()

    def client(service: str) -> Any:
        with lock:
            if service not in made:
                made[service] = session.client(service, config=_CLIENT)
            return made[service]

    return client


def run(argv: Sequence[str], folder: Path, *, capture: bool = False, **more: Any) -> str:
    """Runs a command with its output shown, or returned with `capture`.

    Raises:
        CommandError: it is not on PATH, or it failed.
    """
    if shutil.which(argv[0]) is None:
        raise CommandError(f"{argv[0]} is not on PATH")
    pipe = subprocess.PIPE if capture else None
    done = subprocess.run(list(argv), cwd=folder, check=False, text=True, stdout=pipe, stderr=pipe, **more)
    if done.returncode != 0:
        said = f": {done.stderr.strip()}" if capture and done.stderr else ""
        raise CommandError(f"`{' '.join(argv)}` ended with exit code {done.returncode}{said}")
    return done.stdout or ""


def outputs(folder: Path, stack: str) -> dict[str, Any]:
    """The stack's outputs, secrets included.

    Raises:
        CommandError: there is no such stack in the state backend.
    """
    argv = ["pulumi", "stack", "output", "--json", "--show-secrets", "--stack", stack]
    found: dict[str, Any] = json.loads(run(argv, folder, capture=True) or "{}")
    return found
