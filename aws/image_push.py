"""`make push`: build the launcher image for the architecture of the nodes and push it to ECR."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from aws.stack_access import CommandError, call_if_exists, run_command
from infra import naming, node_capacity

BUILDERS = ("buildah", "docker")
LAUNCHER = "localhost/paddle-training:launcher"
"""Local name of the launcher image, for the `FROM` line of a custom Dockerfile."""
ECR = r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^@:]+)"
"""Address of an ECR repository; the groups are its account and name."""


def find_builder() -> str:
    """Return the name of the first image builder on PATH (one of BUILDERS).

    Raises:
        CommandError: there is none.
    """
    for name in BUILDERS:
        if shutil.which(name):
            return name
    raise CommandError(
        f"neither {' nor '.join(BUILDERS)} is on PATH. Fix: install one of them to build the image"
    )


def image_tag(context: Path, arch: str, base: str, custom: Path | None = None) -> str:
    """Return a tag that identifies one image by launcher, architecture, base image and custom Dockerfile."""
    digest = naming.folder_digest(context)[: naming.SHORT_DIGEST]
    suffix = "" if custom is None else f"-{naming.folder_digest(custom)[: naming.SHORT_DIGEST]}"
    return f"{digest}-{arch}-{hashlib.sha256(base.encode()).hexdigest()[:6]}{suffix}"


def build_image(tool: str, context: Path, reference: str, arch: str, base: str) -> None:
    """Build the Dockerfile of a folder for one architecture, with the build argument BASE=`base`."""
    # Without attestations the pushed digest is that of the image itself, not of an index.
    form = ["--provenance=false"] if tool == "docker" else ["--format", "docker"]
    about = ["--platform", f"linux/{arch}", "--build-arg", f"BASE={base}", "--tag", reference]
    run_command([tool, "build", *form, *about, str(context)])


def upload_image(tool: str, reference: str, token: str) -> None:
    """Push the image `reference` with the builder `tool`; `token` is base64 of `user:password`, as ECR returns it."""
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


def push_image(url: str, context: Path, kind: str, *, base: str, ecr: Any, custom: Path | None = None) -> str:
    """Return the image reference with its digest; build and push the image unless the registry has it.

    Args:
        url: the stack's output `registry`.
        context: the folder `launcher/`.
        kind: instance type of the nodes.
        base: base image of the launcher image.
        ecr: boto3 client in the registry's region.
        custom: folder with your own Dockerfile (`FROM localhost/paddle-training:launcher`), or None.

    Raises:
        CommandError: `url` is not an ECR repository, the folder `custom` has no Dockerfile, no builder is on PATH, or a
            step failed.
    """
    if custom is not None and not (custom / "Dockerfile").is_file():
        raise CommandError(
            f"FROM={custom} has no Dockerfile. Fix: add one there whose first line is FROM {LAUNCHER}"
        )
    found = re.fullmatch(ECR, url)
    if found is None:
        raise CommandError(
            f"the stack's output registry is {url!r}, which is not an ECR repository. Fix: run pulumi up"
        )
    arch = "arm64" if node_capacity.is_arm(kind) else "amd64"
    wanted = image_tag(context, arch, base, custom)
    digest = digest_in_registry(ecr, found[2], wanted)
    if digest is None:
        tool, reference = find_builder(), f"{url}:{wanted}"
        build_image(tool, context, LAUNCHER if custom else reference, arch, base)
        if custom is not None:
            build_image(tool, custom, reference, arch, LAUNCHER)
        # The ECR password is valid for 12 hours. Request it after the build, which may take long.
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        upload_image(tool, reference, token)
        digest = digest_in_registry(ecr, found[2], wanted)
    if digest is None:
        raise CommandError(
            f"{url}:{wanted} was pushed, but ECR does not list it yet. Fix: run make push again"
        )
    return f"{url}@{digest}"
