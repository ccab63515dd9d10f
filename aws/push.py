"""`make push`: builds the launcher's image for the nodes' architecture, pushes it, and sets its digest."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws.stack import CommandError, run
from infra import capacity, naming

BUILDERS = ("buildah", "docker")
LAUNCHER = "localhost/paddle-training:launcher"
"""What a person's own Dockerfile builds upon (`FROM`): the launcher's image, only on this machine."""
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(.+)")


@dataclass(frozen=True)
class Login:
    """User and password of a registry; they live in a folder that is removed after the push."""

    user: str
    password: str


def builder(wanted: str = "") -> str:
    """The builder to use: the wanted one, else the first on PATH.

    Raises:
        CommandError: there is none.
    """
    names = (wanted,) if wanted != "" else BUILDERS
    for name in names:
        if shutil.which(name):
            return name
    raise CommandError(f"no {' and no '.join(names)} on PATH; install one of them to build the image")


def architecture(instance_types: Sequence[str]) -> str:
    """`arm64` for Graviton nodes, else `amd64`: the first type decides, as in infra/nodes.py."""
    return "arm64" if capacity.is_arm(instance_types[0]) else "amd64"


def tag(context: Path, arch: str, base: str, upon: Path | None = None) -> str:
    """A tag that stands for one image: the launcher, the architecture, the base, what is put upon."""
    digest = naming.folder_digest(context)[: naming.SHORT_DIGEST]
    own = "" if upon is None else f"-{naming.folder_digest(upon)[: naming.SHORT_DIGEST]}"
    return f"{digest}-{arch}-{hashlib.sha256(base.encode()).hexdigest()[:6]}{own}"


def build_argv(tool: str, context: Path, reference: str, arch: str, base: str) -> list[str]:
    """The builder's command line. Without attestations the digest is the image's own, of one platform."""
    verb = ["build", "--provenance=false"] if tool == "docker" else ["build", "--format", "docker"]
    return [
        tool,
        *verb,
        "--platform",
        f"linux/{arch}",
        "--build-arg",
        f"BASE={base}",
        "--tag",
        reference,
        str(context),
    ]


def push_argv(tool: str, reference: str, config: Path, *, tls: bool = True) -> list[str]:
    """Pushes with the login of folder `config`, in the form of docker's own `config.json`."""
    if tool == "docker":
        return ["docker", "--config", str(config), "push", reference]
    verify = [] if tls else ["--tls-verify=false"]
    digest = ["--digestfile", str(config / "digest")]
    return ["buildah", "push", *verify, "--authfile", str(config / "config.json"), *digest, reference]


def build_and_push(
    tool: str,
    context: Path,
    reference: str,
    *,
    arch: str,
    base: str,
    login: Login | None,
    tls: bool = True,
    upon: Path | None = None,
) -> str:
    """Builds and pushes; returns the digest that the registry gave, `sha256:…`.

    `upon`: a folder with a Dockerfile of its own, built from the image of `context`.

    Raises:
        CommandError: a step failed, with the builder's own words above it.
    """
    if upon is not None:
        run(build_argv(tool, context, LAUNCHER, arch, base), context)
        context, base = upon, LAUNCHER
    run(build_argv(tool, context, reference, arch, base), context)
    with tempfile.TemporaryDirectory(prefix="paddle-training-login.") as made:
        config = Path(made)
        auths: dict[str, Any] = {}
        if login is not None:
            secret = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            auths[reference.partition("/")[0]] = {"auth": secret}
        _configure(config, auths)
        run(push_argv(tool, reference, config, tls=tls), context, env=dict(os.environ))
        if tool == "buildah":
            return (config / "digest").read_text(encoding="utf-8").strip()
    name = reference.rpartition(":")[0]
    asked = ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", reference]
    for known in json.loads(run(asked, context, capture=True)):
        if known.startswith(f"{name}@"):
            return str(known.partition("@")[2])
    raise CommandError(
        f"{reference} was pushed, but docker does not know its digest; push again with buildah"
    )


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
    try:
        found = ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": wanted}])
    except ecr.exceptions.ImageNotFoundException:
        return None
    return str(found["imageDetails"][0]["imageDigest"])


def ecr_login(ecr: Any) -> Login:
    """ECR's password of the next twelve hours."""
    token = ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    return Login(user, password)


def push(
    url: str,
    context: Path,
    instance_types: Sequence[str],
    *,
    base: str,
    ecr: Any,
    tool: str = "",
    upon: Path | None = None,
) -> str:
    """The image with its digest, built and pushed unless the registry has this very one already.

    Args:
        url: the stack's output `registry`.
        context: the folder `launcher/`.
        instance_types: the nodes'.
        base: the Dockerfile's argument BASE.
        ecr: a boto3 client of the registry's region.
        tool: buildah or docker; empty: what is there.
        upon: a folder with a person's own Dockerfile, `FROM localhost/paddle-training:launcher`.

    Raises:
        CommandError: `url` is no ECR repository, `upon` has no Dockerfile, there is no builder, or a step
            failed.
    """
    if upon is not None and not (upon / "Dockerfile").is_file():
        raise CommandError(
            f"FROM={upon} has no Dockerfile, but must be a folder with one that begins with FROM {LAUNCHER}"
        )
    found = _ECR.fullmatch(url)
    if found is None:
        raise CommandError(f"the stack's output registry is {url!r}, which is no ECR repository")
    arch = architecture(instance_types)
    wanted = tag(context, arch, base, upon)
    digest = in_registry(ecr, found[3], wanted)
    if digest is None:
        chosen = builder(tool)
        reference = f"{url}:{wanted}"
        digest = build_and_push(
            chosen, context, reference, arch=arch, base=base, login=ecr_login(ecr), upon=upon
        )
    return f"{url}@{digest}"


def config_argv(stack: str, image: str) -> list[str]:
    """Writes the image to the stack's settings."""
    return ["pulumi", "config", "set", "paddle-training:image", image, "--stack", stack]
