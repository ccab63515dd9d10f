"""Build the base of the launcher image without a container registry: a minimal Debian 12 with Python 3.11."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from local import console
from local.errors import LocalError
from local.external_commands import run_command
from local.files_and_locks import create_folder_atomically, require_free_space
from local.images import buildah
from local.paths import cache

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1")
# Files that no pod needs; a quarter of the size.
_DROPPED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
REPOSITORY = "localhost/paddle-training-base"


def recipe_digest() -> str:
    """Return the first 12 hex digits of the SHA-256 of everything that decides the content of the image."""
    return hashlib.sha256(repr((SUITE, PACKAGES, _DROPPED, 1)).encode()).hexdigest()[:12]


def find_mirror(targets: str) -> str:
    """Return the URL of the mirror that this machine uses for SUITE, by the lines `site release` of `targets`.

    It is empty if the machine runs another Debian release; then debootstrap uses its default.
    """
    for line in targets.splitlines():
        site, _, release = line.partition(" ")
        if release.strip() == SUITE:
            return site
    return ""


def ensure_base_image() -> str:
    """Return the name of the base image in buildah's storage; build the image if it is missing.

    Raises:
        LocalError: The disk is full, or debootstrap or buildah failed.
    """
    name = f"{REPOSITORY}:{recipe_digest()}"
    if buildah.image_exists(name):
        return name
    require_free_space(cache(), 3, "The launcher image")
    with console.timed_step(f"base image: Debian {SUITE} with Python 3.11 (once)"):
        targets = run_command(
            ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
            why="reading the package mirror from apt",
        )
        with create_folder_atomically(cache() / "images" / f"base-{recipe_digest()}") as draft:
            root = draft / "root"
            run_command(
                [
                    "debootstrap",
                    "--variant=minbase",
                    f"--include={','.join(PACKAGES)}",
                    SUITE,
                    str(root),
                    *filter(None, [find_mirror(targets)]),
                ],
                why="building the base image",
                seconds=900,
            )
            _remove_unneeded_files(root)
            container = buildah.run_buildah("from", "scratch").strip()
            try:
                buildah.run_buildah("add", "--quiet", container, str(root), "/")
                buildah.run_buildah("commit", "--quiet", container, name)
            finally:
                buildah.run_buildah("rm", container)
            shutil.rmtree(root)
    if not buildah.image_exists(name):
        raise LocalError(
            "The base image was committed but is missing in buildah's storage. Fix: run `make image` again."
        )
    return name


def _remove_unneeded_files(root: Path) -> None:
    for name in _DROPPED:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True, exist_ok=True)
    for device in (root / "dev").iterdir():  # the container runtime creates its own
        device.unlink() if not device.is_dir() or device.is_symlink() else shutil.rmtree(device)
