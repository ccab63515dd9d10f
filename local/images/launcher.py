"""The launcher image: built from `launcher/Dockerfile`, named by the folder's digest, imported once per
digest."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from infra.naming import folder_digest
from local import say
from local.cluster import lifecycle
from local.errors import LocalError
from local.files import locked, need_space, whole_folder
from local.images import base, buildah, store
from local.paths import CLONE, cache
from local.run import run

REPOSITORY = "localhost/paddle-training"
CONTEXT = CLONE / "launcher"


def name() -> str:
    """`localhost/paddle-training:<12 digits>`; the same for every clone of one commit."""
    return f"{REPOSITORY}:{folder_digest(CONTEXT)[:12]}"


def wheels() -> Path:
    """Folder with the image's packages, fetched here because a build may know no registry's certificate."""
    lock = CONTEXT / "requirements.lock"
    folder = cache() / "images" / f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        need_space(cache(), 3, "The launcher image")
        with say.step("packages of the launcher image (once)"), whole_folder(folder) as draft:
            run(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                    *("--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11"),
                    *("--requirement", str(lock), "--dest", str(draft)),
                ],
                why="fetching the packages of the launcher image",
                seconds=1200,
            )
    return folder


def archive(image: str) -> Path:
    return cache() / "images" / f"{image.rpartition(':')[2]}.tar"


def ensure_archive() -> tuple[str, Path]:
    """Name and archive of the image of this clone's `launcher/`, built when it is missing."""
    image = name()
    target = archive(image)
    with locked(cache() / "images" / "lock", "the launcher image"):
        if not target.is_file():
            packages = wheels()
            below = base.ensure()
            need_space(cache(), 3, "The launcher image")
            with say.step(f"launcher image {image}"):
                _build(image, below, packages, target)
                if name() != image:
                    target.unlink()
                    raise LocalError(
                        f"launcher/ changed while {image} was built, so that the image is not what its "
                        "name says. "
                        "It was dropped; start again when the files are at rest."
                    )
            _forget_old(image)
    return image, target


def _build(image: str, below: str, packages: Path, target: Path) -> None:
    buildah.run(
        "bud",
        *("--isolation", "chroot", "--layers", "--pull-never", "--quiet", "--network", "host"),
        *("--build-arg", f"BASE={below}", "--volume", f"{packages}:/wheels:ro"),
        *("--tag", image, str(CONTEXT)),
    )
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        # Not compressed: it never leaves this machine, and three nodes unpack it at the same time.
        buildah.run(
            "push",
            "--quiet",
            "--disable-compression",
            "--format",
            "oci",
            image,
            f"oci-archive:{draft}:{image}",
        )
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _forget_old(image: str) -> None:
    """Drop superseded images and archives; the layers they share with the new one stay as its cache."""
    for file in (cache() / "images").glob("*.tar"):
        if file != archive(image):
            file.unlink()
    for old in buildah.images():
        if old.rpartition(":")[0] == REPOSITORY and old != image:
            buildah.run("rmi", old)


def ensure_imported() -> str:
    """The image in every node of the running cluster; its name."""
    image, file = ensure_archive()
    nodes = lifecycle.running_nodes()
    with lifecycle.lock():
        if any(image not in store.names(n) for n in nodes):
            need_space(nodes[0].folder, 1.5 * len(nodes), "Importing the launcher image into every node")
            with say.step(f"import of {image} into {len(nodes)} nodes, side by side"):
                store.import_everywhere(nodes, file, image)
            store.remove_superseded(nodes, REPOSITORY)
    return image
