"""`make push`: builds the launcher's image for the nodes' architecture, and pushes it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from aws.stack import CommandError, run, seen
from infra import capacity, naming

BUILDERS = ("buildah", "docker")
LAUNCHER = "localhost/paddle-training:launcher"
"""What a person's own Dockerfile builds upon (`FROM`): the launcher's image, only on this machine."""
ECR = r"(\d{12})\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([^@:]+)"
"""A repository: its account and its name."""


def builder() -> str:
    """The first builder on PATH.

    Raises:
        CommandError: there is none.
    """
    for name in BUILDERS:
        if shutil.which(name):
            return name
    raise CommandError(f"no {' and no '.join(BUILDERS)} on PATH; install one of them to build the image")


def tag(context: Path, arch: str, base: str, upon: Path | None = None) -> str:
    """A tag that stands for one image: the launcher, the architecture, the base, what is put upon."""
    digest = naming.folder_digest(context)[: naming.SHORT_DIGEST]
    own = "" if upon is None else f"-{naming.folder_digest(upon)[: naming.SHORT_DIGEST]}"
    return f"{digest}-{arch}-{hashlib.sha256(base.encode()).hexdigest()[:6]}{own}"


def build(tool: str, context: Path, reference: str, arch: str, base: str) -> None:
    """Builds a folder for one architecture; `base` is its Dockerfile's argument BASE."""
    # Without attestations the pushed digest is the image's own, of one platform.
    form = ["--provenance=false"] if tool == "docker" else ["--format", "docker"]
    about = ["--platform", f"linux/{arch}", "--build-arg", f"BASE={base}", "--tag", reference]
    run([tool, "build", *form, *about, str(context)])


def upload(tool: str, reference: str, token: str) -> None:
    """Pushes an image; `token` is base64 of user:password, as ECR and docker write a login."""
    registry = reference.partition("/")[0]
    if tool == "buildah":
        with tempfile.TemporaryDirectory(prefix="paddle-training-login.") as folder:
            known = Path(folder) / "auth.json"
            known.write_text(json.dumps({"auths": {registry: {"auth": token}}}), encoding="utf-8")
            run(["buildah", "push", "--authfile", str(known), reference])
        return
    # docker's login is where its context is, by which it finds its daemon (Docker Desktop, colima).
    user, _, password = base64.b64decode(token).decode().partition(":")
    run(["docker", "login", "--username", user, "--password-stdin", registry], given=password)
    try:
        run(["docker", "push", reference])
    finally:
        run(["docker", "logout", registry])


def in_registry(ecr: Any, repository: str, wanted: str) -> str | None:
    """Digest of the image with that tag, or None."""
    found = seen(ecr.describe_images, repositoryName=repository, imageIds=[{"imageTag": wanted}])
    return found and str(found["imageDetails"][0]["imageDigest"])


def push(url: str, context: Path, kind: str, *, base: str, ecr: Any, upon: Path | None = None) -> str:
    """The image with its digest, built and pushed unless the registry has this very one already.

    `url` is the stack's output `registry`, `context` the folder `launcher/`, `kind` the nodes' instance type,
    `ecr` a client of the registry's region, and `upon` a folder with a person's own Dockerfile,
    `FROM localhost/paddle-training:launcher`.

    Raises:
        CommandError: `url` is no ECR repository, `upon` has no Dockerfile, there is no builder, or a step
            failed.
    """
    if upon is not None and not (upon / "Dockerfile").is_file():
        limit = f"a folder with one that begins with FROM {LAUNCHER}"
        raise CommandError(f"FROM={upon} has no Dockerfile, but must be {limit}")
    found = re.fullmatch(ECR, url)
    if found is None:
        raise CommandError(f"the stack's output registry is {url!r}, which is no ECR repository")
    arch = "arm64" if capacity.is_arm(kind) else "amd64"
    wanted = tag(context, arch, base, upon)
    digest = in_registry(ecr, found[2], wanted)
    if digest is None:
        tool, reference = builder(), f"{url}:{wanted}"
        build(tool, context, LAUNCHER if upon else reference, arch, base)
        if upon is not None:
            build(tool, upon, reference, arch, LAUNCHER)
        # ECR's password of the next twelve hours; asked for late, as a build may take long.
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        upload(tool, reference, token)
        digest = in_registry(ecr, found[2], wanted)
    if digest is None:
        raise CommandError(f"{url}:{wanted} was pushed, but ECR does not list it yet; run make push again")
    return f"{url}@{digest}"
