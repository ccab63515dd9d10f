"""`make push`: the launcher image into an AWS stack's registry, its digest into the stack's settings."""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions

from infra.naming import folder_digest
from local import say
from local.errors import LocalError
from local.paths import CLONE
from local.run import run

PUBLIC_BASE = "python:3.11-slim-bookworm"
_CONTEXT = CLONE / "launcher"
_ECR = re.compile(
    r"^(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<name>.+)$"
)


@dataclass(frozen=True)
class Builder:
    """How a builder on PATH is spoken to; `config` is a folder for the registry's login, dropped after."""

    program: str

    def _words(self, config: Path) -> list[str]:
        return ["docker", "--config", str(config)] if self.program == "docker" else [self.program]

    def _login_file(self, config: Path) -> list[str]:
        return [] if self.program == "docker" else ["--authfile", str(config / "auth.json")]

    def login(self, config: Path, host: str) -> list[str]:
        words = [*self._words(config), "login", *self._login_file(config)]
        return [*words, "--username", "AWS", "--password-stdin", host]

    def build(self, config: Path, base: str, image: str) -> list[str]:
        verb = "bud" if self.program == "buildah" else "build"
        options = ["--platform", "linux/amd64", "--build-arg", f"BASE={base}", "--tag", image]
        return [*self._words(config), verb, *options, str(_CONTEXT)]

    def push(self, config: Path, image: str) -> list[str]:
        return [*self._words(config), "push", *self._login_file(config), image]


def builder() -> Builder:
    """The first image builder on PATH.

    Raises:
        LocalError: there is none.
    """
    for program in ("docker", "podman", "buildah"):
        if shutil.which(program):
            return Builder(program)
    raise LocalError(
        "No docker, podman or buildah is on PATH, with which the image would be built and pushed."
    )


def region(registry: str) -> tuple[str, str]:
    """Region and repository name of an ECR address.

    Raises:
        LocalError: it is none.
    """
    found = _ECR.match(registry)
    if found is None:
        raise LocalError(
            f"The stack's output registry is {registry!r}, which is no ECR repository's address."
        )
    return found["region"], found["name"]


def pushed_digest(ecr: Any, repository: str, tag: str) -> str | None:
    """Digest of the image with that tag, None when there is none."""
    try:
        found = ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
    except ecr.exceptions.ImageNotFoundException:
        return None
    return str(found["imageDetails"][0]["imageDigest"])


def push(stack: str, base: str = PUBLIC_BASE, ecr: Any = None) -> str:
    """Build, push and set the image of `stack`; returns it with its digest. A pushed tag is not built again.

    Raises:
        LocalError: no builder, no such output (the stack is not up), or one of the steps failed.
    """
    registry = run(
        ["pulumi", "stack", "output", "registry", "--stack", stack],
        why=f"asking stack {stack} for its registry (run `pulumi up --stack {stack}` first)",
        cwd=CLONE,
    ).strip()
    where, repository = region(registry)
    tag = folder_digest(_CONTEXT)[:12]
    client = ecr or boto3.client("ecr", region_name=where)
    try:
        digest = pushed_digest(client, repository, tag)
        if digest is None:
            _build_and_push(client, registry, f"{registry}:{tag}", base)
            digest = pushed_digest(client, repository, tag)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as problem:
        raise LocalError(f"ECR in {where} refused: {problem}") from None
    if digest is None:
        raise LocalError(f"{registry}:{tag} was pushed, but ECR does not list it; try again.")
    image = f"{registry}@{digest}"
    run(
        ["pulumi", "config", "set", "paddle-training:image", image, "--stack", stack],
        why=f"setting the image of stack {stack}",
        cwd=CLONE,
    )
    return image


def _build_and_push(ecr: Any, registry: str, image: str, base: str) -> None:
    tool = builder()
    answer = ecr.get_authorization_token()["authorizationData"][0]
    password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")[2]
    with tempfile.TemporaryDirectory(prefix="paddle-training-login.") as folder:
        config = Path(folder)  # the login is kept nowhere else
        with say.step(f"launcher image from {base}"):
            # Without attestations it is one manifest, and its digest is the image's.
            plain = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
            run(tool.build(config, base, image), why="building the launcher image", env=plain, seconds=3600)
        with say.step(f"push of {image}"):
            run(tool.login(config, registry.partition("/")[0]), why="logging in to ECR", given=password)
            run(tool.push(config, image), why="pushing the launcher image", seconds=3600)
