"""One stack of target aws: its settings, its outputs, and AWS clients for its region.

The settings are read from `Pulumi.<stack>.yaml` directly, so that `doctor` and `cost` work before a state
backend exists. Outputs and changes go through the `pulumi` command.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from infra import naming
from infra.settings import PROJECT, Settings, load_settings, read_stack_config

FOLDER = Path(__file__).resolve().parent.parent
"""The project folder, with `Pulumi.yaml` and the stack files."""
# Commands must answer or fail within seconds: two attempts, 5 s to connect, 10 s for the response.
_CLIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
# The error code of each service for a resource that does not exist.
_ABSENT = (
    *("InvalidKeyPair.NotFound", "InvalidVpcID.NotFound", "NotFoundException", "NoSuchHostedZone", "404"),
    *("NoSuchEntity", "NoSuchResourceException", "ImageNotFoundException", "RepositoryNotFoundException"),
)

Client = Callable[[str], Any]
"""Function: service name (`ec2`) → boto3 client for the stack's region."""


class CommandError(Exception):
    """An error with one message for the user; the command exits with code 1."""


@dataclass(frozen=True)
class AwsStack:
    """The name and the validated settings of a stack."""

    name: str
    settings: Settings

    @property
    def region(self) -> str:
        """Return the setting `aws:region`."""
        return self.settings.region

    @property
    def tags(self) -> dict[str, str]:
        """Return the two tags that identify the resources of this stack."""
        return {"Project": PROJECT, "Stack": self.name}

    @property
    def prefix(self) -> str:
        """Return the prefix of the names of the stack's resources."""
        return naming.prefix(PROJECT, self.name)

    def setting(self, path: str, value: str) -> str:
        """Return the text of the `pulumi config set` command that sets `path` to `value`, for messages."""
        return f"pulumi config set --path '{path}' {value} --stack {self.name}"

    def pulumi(self, *arguments: str, capture: bool = False) -> str:
        """Run a pulumi command for this stack without prompts. For `capture` and errors see `run_command`."""
        return run_command(["pulumi", *arguments, "--non-interactive", "--stack", self.name], capture=capture)

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs, secrets included.

        Raises:
            CommandError: pulumi is not on PATH or fails, for example because the state backend has no such stack.
        """
        text = self.pulumi("stack", "output", "--json", "--show-secrets", capture=True)
        found: dict[str, Any] = json.loads(text or "{}")
        return found


def read_stack(stack: str, changes: Sequence[str] = ()) -> AwsStack:
    """Read and validate the settings of a stack of target aws. `changes` (`KEY=VALUE`) override settings of its file.

    Raises:
        CommandError: the stack's target is not aws.
        SettingsError: the stack does not exist, or its settings are invalid.
    """
    settings = load_settings(read_stack_config(FOLDER, stack, changes))
    if settings.target != "aws":
        raise CommandError(
            f"stack {stack} has target {settings.target}, and this command needs target aws. Fix: give the "
            "name of an AWS stack (make: STACK=dev)"
        )
    return AwsStack(stack, settings)


def make_clients(region: str) -> Client:
    """Return a function that several threads may call: service name (`ec2`) → boto3 client.

    Each client is created at the first call for its service.
    """
    session: Any = boto3.session.Session(region_name=region)
    # Threads may share boto3 clients, but not sessions.
    lock = threading.Lock()

    @functools.cache
    def client(service: str) -> Any:
        with lock:
            return session.client(service, config=_CLIENT)

    return client


def call_if_exists(call: Callable[..., Any], *args: object, **request: object) -> Any:
    """Return the response of the boto3 method `call`, or None if AWS answers that the resource does not exist."""
    try:
        return call(*args, **request)
    except ClientError as error:
        if error.response["Error"]["Code"] not in _ABSENT:
            raise
        return None


def run_command(
    argv: Sequence[str],
    *,
    given: str | None = None,
    capture: bool = False,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run a command in the project folder. Its output goes to the terminal.

    With `capture`, the output is returned instead. `given` is the text for the command's standard input; None: the
    command inherits standard input. `environ` are variables to add to this process's own.

    Raises:
        CommandError: the command is not on PATH, or exited with an error.
    """
    if shutil.which(argv[0]) is None:
        raise CommandError(f"{argv[0]} is not on PATH. Fix: install it")
    done = subprocess.run(
        list(argv),
        cwd=FOLDER,
        env={**os.environ, **(environ or {})},
        check=False,
        text=True,
        input=given,
        capture_output=capture,
    )
    if done.returncode != 0:
        output = f": {done.stderr.strip()}" if done.stderr else ""
        raise CommandError(
            f"`{' '.join(argv)}` exited with code {done.returncode}{output}\n"
            "Fix: correct the cause in its output, then try again"
        )
    return done.stdout or ""
