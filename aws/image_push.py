"""`make push`: build the launcher image for the architecture of the nodes and push it to ECR."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws.stack_access import CommandError, call_if_exists, run_command
from infra import naming

BUILDERS = ("buildah", "docker")
RUNTIMES = ("fleet", "collective")
# Local name of the launcher image, for the `FROM` line of a custom Dockerfile.
LAUNCHER = "localhost/paddle-training:launcher"
# Address of an ECR repository; the groups are its account and name.
ECR = r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^@:]+)"


def find_builder() -> str:
    """Return the name of the first image builder on PATH (one of BUILDERS).

    Raises:
        CommandError: no builder is on PATH.
    """
    for name in BUILDERS:
        if shutil.which(name):
            return name
    raise CommandError(
        f"neither {' nor '.join(BUILDERS)} is on PATH. Fix: install one of them to build the image"
    )


@dataclass(frozen=True)
class ImageBuild:
    """What decides the content of an image, in addition to the launcher.

    Attributes:
        arch: amd64 or arm64.
        base: the base image of the launcher image.
        runtime: the runtime of the launcher image, one of RUNTIMES.
        custom: a folder with your own Dockerfile, which begins with `FROM localhost/paddle-training:launcher`; None:
            the launcher image is used as it is.
    """

    arch: str
    base: str
    runtime: str = "fleet"
    custom: Path | None = None

    def tag(self, context: Path) -> str:
        """Return a tag that identifies the content of the image. `context` is the launcher folder."""
        digest = naming.folder_digest(context)[: naming.SHORT_DIGEST]
        runtime = "" if self.runtime == "fleet" else f"-{self.runtime}"
        custom = "" if self.custom is None else f"-{naming.folder_digest(self.custom)[: naming.SHORT_DIGEST]}"
        return f"{digest}-{self.arch}-{hashlib.sha256(self.base.encode()).hexdigest()[:6]}{runtime}{custom}"

    def run(self, tool: str, context: Path, reference: str) -> None:
        """Build the image with the builder `tool`, and tag it with `reference`. `context` is the launcher folder.

        With `custom`, build the launcher image first, and your own image on top of it.
        """
        self._build(tool, context, LAUNCHER if self.custom else reference, self.base)
        if self.custom is not None:
            self._build(tool, self.custom, reference, LAUNCHER)

    def _build(self, tool: str, folder: Path, reference: str, base: str) -> None:
        form = [] if tool == "docker" else ["--format", "docker"]
        about = ["--platform", f"linux/{self.arch}", "--build-arg", f"BASE={base}"]
        if folder != self.custom:
            about += ["--build-arg", f"RUNTIME={self.runtime}"]
        # Without attestations the pushed digest is that of the image itself, not of an index. A variable, because a
        # docker without buildx rejects the flag --provenance, and makes no attestations.
        environ = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        run_command([tool, "build", *form, *about, "--tag", reference, str(folder)], environ=environ)


def upload_image(tool: str, reference: str, token: str) -> None:
    """Push the image `reference` with the builder `tool`.

    `token` is the login for the registry: `user:password` in base64, as ECR returns it.
    """
    registry = reference.partition("/")[0]
    if tool == "buildah":
        with tempfile.TemporaryDirectory(prefix="paddle-training-login.") as folder:
            known = Path(folder) / "auth.json"
            known.write_text(json.dumps({"auths": {registry: {"auth": token}}}), encoding="utf-8")
            run_command(["buildah", "push", "--authfile", str(known), reference])
        return
    # `docker login` must use docker's own configuration folder: it also holds the context with the daemon's
    # address (Docker Desktop, colima).
    user, _, password = base64.b64decode(token).decode().partition(":")
    run_command(["docker", "login", "--username", user, "--password-stdin", registry], given=password)
    try:
        run_command(["docker", "push", reference])
    finally:
        run_command(["docker", "logout", registry])


def digest_in_registry(ecr: Any, repository: str, wanted: str) -> str | None:
    """Return the digest of the image with the tag `wanted`, or None if the repository has no such image."""
    found = call_if_exists(ecr.describe_images, repositoryName=repository, imageIds=[{"imageTag": wanted}])
    return found and str(found["imageDetails"][0]["imageDigest"])


def push_image(url: str, context: Path, build: ImageBuild, ecr: Any) -> str:
    """Build and push the image unless the registry has it; return the image reference with its digest.

    `url` is the stack's output `registry`, `context` the folder `launcher/`, and `ecr` a boto3 client for ECR.

    Raises:
        CommandError: `url` is not an ECR repository, the runtime has no image, the folder `custom` has no Dockerfile,
            no builder is on PATH, or a step failed.
    """
    custom = build.custom
    if build.runtime not in RUNTIMES:
        raise CommandError(
            f"RUNTIME={build.runtime}: this command builds images only for {', '.join(RUNTIMES)}. Fix: set RUNTIME to "
            "one of these; for runtime v1 push your own image with the tools of your registry, and set "
            "paddle-training:image"
        )
    if custom is not None and not (custom / "Dockerfile").is_file():
        raise CommandError(
            f"FROM={custom} has no Dockerfile. Fix: add one there whose first line is FROM {LAUNCHER}"
        )
    found = re.fullmatch(ECR, url)
    if found is None:
        raise CommandError(
            f"the stack's output registry is {url!r}, which is not an ECR repository. Fix: run pulumi up"
        )
    wanted = build.tag(context)
    digest = digest_in_registry(ecr, found[2], wanted)
    if digest is None:
        tool, reference = find_builder(), f"{url}:{wanted}"
        build.run(tool, context, reference)
        # The ECR password is valid for 12 hours. Request it after the build, which may take long.
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        upload_image(tool, reference, token)
        digest = digest_in_registry(ecr, found[2], wanted)
    if digest is None:
        raise CommandError(
            f"{url}:{wanted} was pushed, but ECR does not list it yet. Fix: run make push again"
        )
    return f"{url}@{digest}"
