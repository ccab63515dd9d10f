"""Build images with buildah, without a container registry: the launcher image of each runtime, and the pause image.

The launcher image is built from `launcher/Dockerfile`, and its tag begins with a digest of launcher/. The image of
runtime fleet has PaddlePaddle 2.6.2, that of runtime collective a current one; both contain the same launcher. Their
base is a minimal Debian 12 with Python 3.11. buildah has its own storage in the cache, so that the user's own images
are not affected.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from infra.naming import LAUNCHER_PLACEHOLDER, image_reference
from local import bootstrap, console
from local.external_commands import LocalError, command_succeeds, download_packages, run_command
from local.files_and_locks import create_folder_atomically, hold_file_lock, require_free_space
from local.paths import CLONE, cache

REPOSITORY = "localhost/paddle-training"
CONTEXT = CLONE / "launcher"
IMAGE_PYTHON = "3.11"
"""Version of Python in the base image."""
RUNTIMES = ("fleet", "collective")
"""Runtimes that have an image: the values of the Dockerfile's argument RUNTIME."""
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1")
# Files that no pod needs; a quarter of the size.
_DROPPED = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)
_CATATONIT = (
    "/usr/bin/catatonit"  # Debian's static init; with `-P` it only waits, as a pod's pause container must
)


def run_buildah(command: str, *words: str | Path, seconds: float = 1200) -> str:
    """Run `buildah COMMAND WORDS…` on the image store in the cache; return its standard output.

    Raises:
        LocalError: buildah is missing, failed, or did not finish within `seconds`. After a failure the message ends
            with the last lines of buildah's output.
    """
    return run_command([*_buildah(), command, *words], why=f"buildah {command}", seconds=seconds)


def _buildah() -> list[str | Path]:
    storage = cache() / "images" / "storage"
    # In its own mount namespace, so that a killed build leaves no mounts.
    words = ["unshare", "--mount", "buildah", "--storage-driver", "overlay"]
    return [*words, "--root", storage, "--runroot", storage / "run"]


def _create_image(name: str, source: Path | str, target: str, *settings: str) -> None:
    """Create an image of one layer with the file or the content of the folder `source`."""
    container = run_buildah("from", "scratch").strip()
    try:
        run_buildah("add", "--quiet", container, source, target)
        run_buildah("config", *settings, container)
        run_buildah("commit", "--quiet", container, name)
    finally:
        run_buildah("rm", container)


def _write_archive(image: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        # Not compressed: the archive never leaves this machine, and three nodes unpack it at the same time.
        options = ("--quiet", "--disable-compression", "--format", "oci")
        run_buildah("push", *options, image, f"oci-archive:{draft}:{image}")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def ensure_pause_archive(target: Path, name: str) -> None:
    """Write the archive of the pause image (one layer with one program) unless it exists."""
    if not target.is_file():
        if not Path(_CATATONIT).is_file():
            raise LocalError(f"the pause image is built from {_CATATONIT}, which is missing. Fix: make tools")
        _create_image(name, _CATATONIT, "/pause", "--entrypoint", '["/pause", "-P"]', "--user", "65535:65535")
        _write_archive(name, target)


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
    recipe = hashlib.sha256(repr((SUITE, PACKAGES, _DROPPED, 1)).encode()).hexdigest()[:12]
    name = f"{REPOSITORY}-base:{recipe}"
    if command_succeeds([*_buildah(), "inspect", "--type", "image", name]):
        return name
    require_free_space(cache(), 3, "The launcher image")
    with (
        console.timed_step(f"base image: Debian {SUITE} with Python 3.11 (once)"),
        create_folder_atomically(cache() / "images" / f"base-{recipe}") as draft,
    ):
        listing = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages"]
        mirror = find_mirror(run_command(listing, why="reading the package mirror from apt"))
        root = draft / "root"
        bootstrap = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root)]
        run_command([*bootstrap, *filter(None, [mirror])], why="building the base image", seconds=900)
        for folder in _DROPPED:
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).mkdir(parents=True, exist_ok=True)
        for device in (root / "dev").iterdir():  # the container runtime creates its own
            device.unlink() if not device.is_dir() or device.is_symlink() else shutil.rmtree(device)
        _create_image(name, root, "/")
        shutil.rmtree(root)
    return name


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


def ensure_wheels_folder(runtime: str = "fleet") -> Path:
    """Return the folder with the Python packages of a runtime's image.

    They are downloaded outside of the image build, which may not trust the package index's certificate.
    """
    lock = lock_file(runtime)
    folder = cache() / "images" / f"wheels-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        require_free_space(cache(), 3, "The launcher image")
        with (
            console.timed_step(f"packages of the launcher image, runtime {runtime} (once)"),
            create_folder_atomically(folder) as draft,
        ):
            why = "downloading the packages of the launcher image"
            download_packages(lock, draft, why, f"--python-version={IMAGE_PYTHON}")
    return folder


def ensure_collective_python() -> Path:
    """Return the interpreter of an environment with the packages of runtime collective's image.

    `make try`, tests and benchmarks run scripts with it: the project's own environment has PaddlePaddle 2.6.2.
    The environment is created if it is missing; if that fails, this process exits with code 1 and a message.
    """
    return bootstrap.ensure_environment(lock_file("collective")) / "bin" / "python"


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
            below = ensure_base_image()
            require_free_space(cache(), 3, "The launcher image")
            with console.timed_step(f"launcher image {image}"):
                words = ["--isolation", "chroot", "--layers", "--pull-never", "--quiet", "--network", "host"]
                words += ["--build-arg", f"BASE={below}", "--build-arg", f"RUNTIME={runtime}"]
                run_buildah("bud", *words, "--volume", f"{packages}:/wheels:ro", "--tag", image, CONTEXT)
                _write_archive(image, target)
                if image_name(runtime) != image:
                    target.unlink()
                    raise LocalError(
                        f"launcher/ changed while {image} was built, so the image does not match its tag and was "
                        "deleted. Fix: run the command again and do not edit launcher/ meanwhile."
                    )
            _remove_old_images()
    return image, target


def _remove_old_images() -> None:
    """Delete images and archives of other launchers; layers that the new images share with them stay in the cache."""
    current = {image_name(runtime) for runtime in RUNTIMES}
    for file in (cache() / "images").glob("*.tar"):
        if file not in map(archive_path, current):
            file.unlink()
    listed = run_buildah("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", "dangling=false")
    for old in set(listed.split()) - current:
        if old.rpartition(":")[0] == REPOSITORY:
            run_buildah("rmi", old)
