"""`make push`: builds the launcher's image for the nodes' architecture, and pushes it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
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
    """Pushes an image; `token` is base64 of user:password, as docker's `config.json` holds a login."""
    # The login lives in a folder that is removed after the push.
    with tempfile.TemporaryDirectory(prefix="paddle-training-login.") as config:
        _configure(Path(config), {reference.partition("/")[0]: {"auth": token}})
        if tool == "docker":
            run(["docker", "--config", config, "push", reference])
        else:
            run(["buildah", "push", "--authfile", f"{config}/config.json", reference])


def _configure(folder: Path, auths: dict[str, Any]) -> None:
    """The person's own docker configuration with these logins for all others.

    The context stays, by which docker finds its daemon: Docker Desktop's and colima's are no default ones.
    """
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        known = json.loads((own / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    kept = {key: value for key, value in known.items() if key not in ("credsStore", "credHelpers")}
    (folder / "config.json").write_text(json.dumps({**kept, "auths": auths}), encoding="utf-8")
    if (own / "contexts").is_dir():
        (folder / "contexts").symlink_to(own.resolve() / "contexts")


def in_registry(ecr: Any, repository: str, wanted: str) -> str | None:
    """Digest of the image with that tag, or None."""
    found = seen(ecr.describe_images, repositoryName=repository, imageIds=[{"imageTag": wanted}])
    return found and str(found["imageDetails"][0]["imageDigest"])


def push(
    url: str,
    context: Path,
    instance_types: Sequence[str],
    *,
    base: str,
    ecr: Any,
    upon: Path | None = None,
) -> str:
    """The image with its digest, built and pushed unless the registry has this very one already.

    Args:
        url: the stack's output `registry`.
        context: the folder `launcher/`.
        instance_types: the nodes'; all are of one architecture (infra/checks.py).
        base: the Dockerfile's argument BASE.
        ecr: a boto3 client of the registry's region.
        upon: a folder with a person's own Dockerfile, `FROM localhost/paddle-training:launcher`.

    Raises:
        CommandError: `url` is no ECR repository, `upon` has no Dockerfile, there is no builder, or a step
            failed.
    """
    if upon is not None and not (upon / "Dockerfile").is_file():
        raise CommandError(
            f"FROM={upon} has no Dockerfile, but must be a folder with one that begins with FROM {LAUNCHER}"
        )
    found = re.fullmatch(ECR, url)
    if found is None:
        raise CommandError(f"the stack's output registry is {url!r}, which is no ECR repository")
    arch = "arm64" if capacity.is_arm(instance_types[0]) else "amd64"
    wanted = tag(context, arch, base, upon)
    digest = in_registry(ecr, found[2], wanted)
    if digest is None:
        tool, reference = builder(), f"{url}:{wanted}"
        if upon is None:
            build(tool, context, reference, arch, base)
        else:
            build(tool, context, LAUNCHER, arch, base)
            build(tool, upon, reference, arch, LAUNCHER)
        # ECR's password of the next twelve hours; asked for late, as a build may take long.
        token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
        upload(tool, reference, token)
        digest = in_registry(ecr, found[2], wanted)
    if digest is None:
        raise CommandError(f"{url}:{wanted} was pushed, but ECR does not list it yet; run make push again")
    return f"{url}@{digest}"
