"""Build the launcher image from `launcher/Dockerfile`, and import it into the nodes.

Its tag is a digest of launcher/.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from infra.naming import folder_digest
from local import console
from local.cluster import cluster_lifecycle
from local.errors import LocalError
from local.external_commands import run_command
from local.filesystem import create_folder_atomically, hold_file_lock, require_free_space
from local.images import base_image, buildah, images_on_nodes
from local.paths import CLONE, cache

REPOSITORY = "localhost/paddle-training"
CONTEXT = CLONE / "launcher"


def image_name() -> str:
    """Return `localhost/paddle-training:<12 hex digits>`, which is equal in all clones of one commit."""
    return f"{REPOSITORY}:{folder_digest(CONTEXT)[:12]}"


def ensure_wheels_folder() -> Path:
    """Return the folder with the image's Python packages.

    They are downloaded outside of the image build, which may not trust the package index's certificate.
    """
    lock = CONTEXT / "requirements.lock"
    folder = cache() / "images" / f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        require_free_space(cache(), 3, "The launcher image")
        with (
            console.timed_step("packages of the launcher image (once)"),
            create_folder_atomically(folder) as draft,
        ):
            run_command(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                    *("--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version=3.11"),
                    *("--requirement", str(lock), "--dest", str(draft)),
                ],
                why="downloading the packages of the launcher image",
                seconds=1200,
            )
    return folder


def archive_path(image: str) -> Path:
    """Return where the archive of the image is stored."""
    return cache() / "images" / f"{image.rpartition(':')[2]}.tar"


def ensure_archive() -> tuple[str, Path]:
    """Return name and archive of the image of this clone's `launcher/`; build the image if it is missing."""
    image = image_name()
    target = archive_path(image)
    with hold_file_lock(cache() / "images" / "lock", "the launcher image"):
        if not target.is_file():
            packages = ensure_wheels_folder()
            below = base_image.ensure_base_image()
            require_free_space(cache(), 3, "The launcher image")
            with console.timed_step(f"launcher image {image}"):
                _build_archive(image, below, packages, target)
                if image_name() != image:
                    target.unlink()
                    raise LocalError(
                        f"launcher/ changed while {image} was built, so the image does not match its tag and was "
                        "deleted. Fix: run the command again and do not edit launcher/ meanwhile."
                    )
            _remove_old_images(image)
    return image, target


def _build_archive(image: str, below: str, packages: Path, target: Path) -> None:
    buildah.run_buildah(
        "bud",
        *("--isolation", "chroot", "--layers", "--pull-never", "--quiet", "--network", "host"),
        *("--build-arg", f"BASE={below}", "--volume", f"{packages}:/wheels:ro"),
        *("--tag", image, str(CONTEXT)),
    )
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        # Not compressed: the archive never leaves this machine, and three nodes unpack it at the same time.
        buildah.run_buildah(
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


def _remove_old_images(image: str) -> None:
    """Delete older images and archives; layers that the new image shares with them stay in the cache."""
    for file in (cache() / "images").glob("*.tar"):
        if file != archive_path(image):
            file.unlink()
    for old in buildah.list_images():
        if old.rpartition(":")[0] == REPOSITORY and old != image:
            buildah.run_buildah("rmi", old)


def ensure_imported() -> str:
    """Import the image into every node of the running cluster and return its name."""
    image, file = ensure_archive()
    nodes = cluster_lifecycle.running_nodes()
    with cluster_lifecycle.lock_cluster():
        if any(image not in images_on_nodes.image_names(n) for n in nodes):
            require_free_space(
                nodes[0].folder, 1.5 * len(nodes), "Importing the launcher image into every node"
            )
            with console.timed_step(f"import of {image} into {len(nodes)} nodes in parallel"):
                images_on_nodes.import_everywhere(nodes, file, image)
            images_on_nodes.remove_old_images(nodes, REPOSITORY)
    return image
