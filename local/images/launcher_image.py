"""Build the launcher image of a runtime from `launcher/Dockerfile`, and import it into the nodes.

Its tag begins with a digest of launcher/. The image of runtime fleet has PaddlePaddle 2.6.2, that of runtime
collective a current one; both contain the same launcher.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from infra.naming import LAUNCHER_PLACEHOLDER, image_reference
from local import console
from local.cluster import cluster_lifecycle
from local.errors import LocalError
from local.external_commands import run_command
from local.files_and_locks import create_folder_atomically, hold_file_lock, require_free_space
from local.images import base_image, buildah, images_on_nodes
from local.paths import CLONE, cache

REPOSITORY = "localhost/paddle-training"
CONTEXT = CLONE / "launcher"


IMAGE_PYTHON = "3.11"
"""Version of Python in the base image."""
RUNTIMES = ("fleet", "collective")
"""Runtimes that have an image: the values of the Dockerfile's argument RUNTIME."""


def image_template(runtime: str) -> str:
    """Return the stack's setting `image` for a runtime: the image's name with `{launcher}` for the digest."""
    return f"{REPOSITORY}:{LAUNCHER_PLACEHOLDER}" + ("" if runtime == "fleet" else f"-{runtime}")


def image_name(runtime: str = "fleet") -> str:
    """Return `localhost/paddle-training:<12 hex digits>`, for runtime collective with `-collective` at the end.

    The name is equal in all clones of one commit.
    """
    return image_reference(image_template(runtime), CONTEXT)


def lock_file(runtime: str = "fleet") -> Path:
    """Return the file with the pinned Python packages of a runtime's image."""
    return CONTEXT / ("requirements.lock" if runtime == "fleet" else f"requirements-{runtime}.lock")


def ensure_wheels_folder(runtime: str = "fleet", python: str = IMAGE_PYTHON) -> Path:
    """Return the folder with the Python packages of a runtime's image, for the Python version `python` (`3.11`).

    They are downloaded outside of the image build, which may not trust the package index's certificate.
    """
    lock = lock_file(runtime)
    recipe = lock.read_bytes() + (b"" if python == IMAGE_PYTHON else python.encode())
    folder = cache() / "images" / f"wheels-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if not folder.is_dir():
        require_free_space(cache(), 3, "The launcher image")
        with (
            console.timed_step(f"packages of the launcher image, runtime {runtime} (once)"),
            create_folder_atomically(folder) as draft,
        ):
            run_command(
                [
                    *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                    *("--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={python}"),
                    *("--requirement", str(lock), "--dest", str(draft)),
                ],
                why="downloading the packages of the launcher image",
                seconds=1200,
            )
    return folder


def archive_path(image: str) -> Path:
    """Return where the archive of the image is stored."""
    return cache() / "images" / f"{image.rpartition(':')[2]}.tar"


def ensure_archive(runtime: str = "fleet") -> tuple[str, Path]:
    """Return name and archive of a runtime's image of this clone's `launcher/`; build the image if it is missing."""
    image = image_name(runtime)
    target = archive_path(image)
    with hold_file_lock(cache() / "images" / "lock", "the launcher image"):
        if not target.is_file():
            packages = ensure_wheels_folder(runtime)
            below = base_image.ensure_base_image()
            require_free_space(cache(), 3, "The launcher image")
            with console.timed_step(f"launcher image {image}"):
                _build_archive(image, below, packages, target, runtime)
                if image_name(runtime) != image:
                    target.unlink()
                    raise LocalError(
                        f"launcher/ changed while {image} was built, so the image does not match its tag and was "
                        "deleted. Fix: run the command again and do not edit launcher/ meanwhile."
                    )
            _remove_old_images()
    return image, target


def _build_archive(image: str, below: str, packages: Path, target: Path, runtime: str) -> None:
    buildah.run_buildah(
        "bud",
        *("--isolation", "chroot", "--layers", "--pull-never", "--quiet", "--network", "host"),
        *("--build-arg", f"BASE={below}", "--build-arg", f"RUNTIME={runtime}"),
        *("--volume", f"{packages}:/wheels:ro", "--tag", image, str(CONTEXT)),
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


def _remove_old_images() -> None:
    """Delete images and archives of other launchers; layers that the new images share with them stay in the cache."""
    current = {image_name(runtime) for runtime in RUNTIMES}
    for file in (cache() / "images").glob("*.tar"):
        if file not in map(archive_path, current):
            file.unlink()
    for old in buildah.list_images():
        if old.rpartition(":")[0] == REPOSITORY and old not in current:
            buildah.run_buildah("rmi", old)


def ensure_imported(runtime: str = "fleet") -> str:
    """Import a runtime's image into every node of the running cluster and return its name."""
    image, file = ensure_archive(runtime)
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
