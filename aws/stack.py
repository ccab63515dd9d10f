"""A stack of target aws, as the commands of this package know it.

Settings come from `Pulumi.<stack>.yaml` itself, so that `doctor` and `cost` work before there is a state
backend. Outputs and changes go through the `pulumi` command.
"""

from __future__ import annotations

import functools
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
from botocore.config import Config
from botocore.exceptions import ClientError

from infra import stack_file
from infra.settings import PROJECT, Settings, load

FOLDER = Path(__file__).resolve().parent.parent
"""The project's folder, where stacks and program are."""
# Answers in seconds or not at all: two tries, five seconds to connect, ten for the answer.
_CLIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
# What is not there: the codes of each service's refusal.
_ABSENT = (
    *("InvalidKeyPair.NotFound", "InvalidVpcID.NotFound", "NotFoundException", "NoSuchHostedZone", "404"),
    *("NoSuchEntity", "NoSuchResourceException", "ImageNotFoundException", "RepositoryNotFoundException"),
)
_OTHER_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

Client = Callable[[str], Any]
"""Service name → boto3 client of the stack's region."""


class CommandError(Exception):
    """One message for the person; the command ends with exit code 1."""


@dataclass(frozen=True)
class Stack:
    """A stack by its file. `region`: `aws:region`."""

    name: str
    region: str
    settings: Settings

    @property
    def tags(self) -> dict[str, str]:
        """The two tags that say whose a resource is."""
        return {"Project": PROJECT, "Stack": self.name}

    def setting(self, path: str, value: str) -> str:
        """The command by which a person changes a setting."""
        return f"pulumi config set --path '{path}' {value} --stack {self.name}"

    def pulumi(self, *arguments: str, capture: bool = False) -> str:
        """`run` of a pulumi command for this stack, which asks no question."""
        return run(["pulumi", *arguments, "--non-interactive", "--stack", self.name], capture=capture)

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs, secrets included.

        Raises:
            CommandError: there is no such stack in the state backend.
        """
        told = self.pulumi("stack", "output", "--json", "--show-secrets", capture=True)
        found: dict[str, Any] = json.loads(told or "{}")
        return found


def read(stack: str, changes: Sequence[str] = ()) -> Stack:
    """A stack of target aws.

    From then on this process, and every command that it runs, asks AWS with the stack's `aws:profile`, as the
    provider does: keys in the environment would win over a profile, so they are taken out.

    Raises:
        CommandError: the stack is of another target.
        SettingsError: there is no such stack, or its settings are wrong.
    """
    config = stack_file.read(FOLDER, stack, changes)
    settings = load(config)
    if settings.target != "aws":
        raise CommandError(f"stack {stack} has target {settings.target}; this command is for target aws")
    if config.get("aws:profile"):
        os.environ["AWS_PROFILE"] = config["aws:profile"]
        for name in _OTHER_CREDENTIALS:
            os.environ.pop(name, None)
    return Stack(stack, config["aws:region"], settings)


def clients(region: str) -> Client:
    """Clients of one region, with the person's own credentials; each is made once, and any thread may ask."""
    session: Any = boto3.session.Session(region_name=region)
    # boto3's clients may be shared by threads, its sessions may not.
    lock = threading.Lock()

    @functools.cache
    def client(service: str) -> Any:
        with lock:
            return session.client(service, config=_CLIENT)

    return client


def seen(look: Callable[..., Any], *given: object, **asked: object) -> Any:
    """What AWS answers, or None when it says that there is no such thing."""
    try:
        return look(*given, **asked)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _ABSENT:
            raise
        return None


def run(argv: Sequence[str], *, given: str | None = None, capture: bool = False) -> str:
    """Runs a command in the project's folder, with its output shown, or returned with `capture`.

    `given`: its standard input; None: the person's.

    Raises:
        CommandError: it is not on PATH, or it failed.
    """
    if shutil.which(argv[0]) is None:
        raise CommandError(f"{argv[0]} is not on PATH")
    done = subprocess.run(list(argv), cwd=FOLDER, check=False, text=True, input=given, capture_output=capture)
    if done.returncode != 0:
        said = f": {done.stderr.strip()}" if done.stderr else ""
        raise CommandError(f"`{' '.join(argv)}` ended with exit code {done.returncode}{said}")
    return done.stdout or ""
