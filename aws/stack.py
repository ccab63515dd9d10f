"""A stack's settings and outputs, as the commands of this package read them.

Settings come from `Pulumi.<stack>.yaml` itself, so that `doctor` and `cost` work before there is a state
backend. Outputs and changes go through the `pulumi` command.
"""

from __future__ import annotations

import json
import os
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
_OTHER_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

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
        name, equals, text = change.partition("=")
        if equals == "" or name == "":
            raise CommandError(f"{change!r} is no change; write KEY=VALUE, such as nodes.desired=1")
        first, *rest = name.split(".")
        key = first if ":" in first else f"{PROJECT}:{first}"
        found[key] = _laid_over(found.get(key), rest, yaml.safe_load(text))
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in found.items()
        if not (isinstance(value, dict) and set(value) == {"secure"})
    }


def _laid_over(base: Any, path: list[str], value: object) -> Any:
    if not path:
        return value
    below = base if isinstance(base, dict) else {}
    return {**below, path[0]: _laid_over(below.get(path[0]), path[1:], value)}


def read(folder: Path, stack: str, changes: Sequence[str] = ()) -> Stack:
    """A stack of target aws.

    From then on this process, and every command that it runs, asks AWS with the stack's `aws:profile`, as the
    provider does: keys in the environment would win over a profile, so they are taken out.

    Raises:
        CommandError: see `configuration`; or the stack is of another target.
        SettingsError: its settings are wrong.
    """
    config = configuration(folder, stack, changes)
    settings = load(config)
    if settings.target != "aws":
        raise CommandError(f"stack {stack} has target {settings.target}; this command is for target aws")
    if config.get("aws:profile"):
        os.environ["AWS_PROFILE"] = config["aws:profile"]
        for name in _OTHER_CREDENTIALS:
            os.environ.pop(name, None)
    return Stack(stack, folder, config.get("aws:region", ""), settings)


def partition(region: str) -> str:
    """The part of AWS that a region belongs to, as ARNs name it."""
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rpartition("-")[0].rpartition("-")[0], "aws")


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
