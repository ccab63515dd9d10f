"""The launcher image's base where no container registry can be reached: a minimal Debian 12 with Python
3.11."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from local import say
from local.errors import LocalError
from local.files import need_space, whole_folder
from local.images import buildah
from local.paths import cache
from local.run import run

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1")
# What nobody reads inside a pod; a quarter of the base.
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


def recipe() -> str:
    """First 12 hex digits of the sha256 of all that decides the base."""
    return hashlib.sha256(repr((SUITE, PACKAGES, _DROPPED, 1)).encode()).hexdigest()[:12]


def mirror(targets: str) -> str:
    """The package mirror this machine uses for the suite, from `apt-get indextargets` lines `site release`.

    Empty when it has none (another release of Debian): debootstrap then takes its default.
    """
    for line in targets.splitlines():
        site, _, release = line.partition(" ")
        if release.strip() == SUITE:
            return site
    return ""


def ensure() -> str:
    """Name of the base image in our own builder's storage, made when it is missing.

    Raises:
        LocalError: no space, or debootstrap failed.
    """
    name = f"{REPOSITORY}:{recipe()}"
    if buildah.exists(name):
        return name
    need_space(cache(), 3, "The launcher image")
    with say.step(f"base image: Debian {SUITE} with Python 3.11 (once)"):
        targets = run(
            ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"],
            why="asking apt for its mirror",
        )
        with whole_folder(cache() / "images" / f"base-{recipe()}") as draft:
            root = draft / "root"
            run(
                [
                    "debootstrap",
                    "--variant=minbase",
                    f"--include={','.join(PACKAGES)}",
                    SUITE,
                    str(root),
                    *filter(None, [mirror(targets)]),
                ],
                why="making the base image",
                seconds=900,
            )
            _strip(root)
            container = buildah.run("from", "scratch").strip()
            try:
                buildah.run("add", "--quiet", container, str(root), "/")
                buildah.run("commit", "--quiet", container, name)
            finally:
                buildah.run("rm", container)
            shutil.rmtree(root)
    if not buildah.exists(name):
        raise LocalError(
            "The base image was committed but is not in the builder's storage; try `make image` again."
        )
    return name


def _strip(root: Path) -> None:
    for name in _DROPPED:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True, exist_ok=True)
    for device in (root / "dev").iterdir():  # the runtime makes its own
        device.unlink() if not device.is_dir() or device.is_symlink() else shutil.rmtree(device)
