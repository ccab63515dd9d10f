"""Build images with buildah, without a container registry: the launcher image of each runtime, and the pause image.

The launcher image is built from `launcher/Dockerfile`, and its tag begins with a digest of launcher/. The image of
runtime fleet has PaddlePaddle 2.6.2, and the image of runtime collective has a current PaddlePaddle; both contain the
same launcher. The base of both images is a minimal Debian 12 with Python 3.11. buildah stores these images in the
cache, so that the user's own images are not affected.
"""

from __future__ import annotations

import hashlib
import json
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
"""Runtimes that have an image. The Dockerfile's argument RUNTIME is one of these names."""
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libgomp1")
# Files that no pod needs; a quarter of the size.
_DROPPED = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)
OWN_MOUNTS = ("unshare", "--mount")
"""Command prefix that starts a command in a separate mount namespace, so that a killed command leaves no mounts."""
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
    root, run = _storage()
    return [*OWN_MOUNTS, "buildah", "--storage-driver", "overlay", "--root", root, "--runroot", run]


def _storage() -> tuple[Path, Path]:
    """Return two folders of buildah: for its images, and for the state of its running commands."""
    storage = cache() / "images" / "storage"
    return storage, storage / "run"


def _create_image(name: str, source: Path | str, target: str, *settings: str) -> None:
    """Create the image `name` with one layer: the file `source`, or the content of the folder `source`.

    `target` is the path in the image. `settings` are options of `buildah config`.
    """
    container = run_buildah("from", "scratch").strip()
    try:
        run_buildah("add", "--quiet", container, source, target)
        run_buildah("config", *settings, container)
        run_buildah("commit", "--quiet", container, name)
    finally:
        run_buildah("rm", container)


def _write_layout(image: str, target: Path) -> None:
    """Write an image to the folder `target` as an OCI image layout.

    Layers that another layout in the same parent folder has are hard-linked first, so that skopeo neither reads nor
    writes these layers.
    """
    with create_folder_atomically(target) as draft:
        blobs = draft / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for blob in target.parent.glob("*/blobs/sha256/*"):
            if not (blobs / blob.name).exists():
                os.link(blob, blobs / blob.name)
        root, run = _storage()
        # Not compressed, as buildah's own `push` would do: the image never leaves this machine.
        copy = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
        names = [f"containers-storage:[overlay@{root}+{run}]{image}", f"oci:{draft}:{image}"]
        run_command([*OWN_MOUNTS, *copy, *names], why=f"copying {image} out of buildah's storage")
        used = "".join(path.read_text() for path in manifest_files(draft))
        for blob in blobs.iterdir():
            if blob.name not in used:
                blob.unlink()


def manifest_files(layout: Path) -> list[Path]:
    """Return the index file and the manifest file of an OCI image layout. They contain the digests of all its blobs."""
    index = layout / "index.json"
    [manifest] = json.loads(index.read_text())["manifests"]
    return [index, layout / "blobs" / manifest["digest"].replace(":", "/")]


def ensure_pause_image(target: Path, name: str) -> None:
    """Write the pause image `name` (one layer with one program) to the folder `target` unless this folder exists."""
    if not target.is_dir():
        if not Path(_CATATONIT).is_file():
            raise LocalError(f"the pause image is built from {_CATATONIT}, which is missing. Fix: make tools")
        _create_image(name, _CATATONIT, "/pause", "--entrypoint", '["/pause", "-P"]', "--user", "65535:65535")
        _write_layout(name, target)


def find_mirror(targets: str) -> str:
    """Return the URL of the mirror from which this machine installs packages of the Debian release SUITE.

    `targets` has a line `URL RELEASE` for each package list of apt. If no line has SUITE, because the machine runs
    another release, return an empty text; debootstrap then uses its default mirror.
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
    """Return the stack's setting `image` for a runtime, with the placeholder `{launcher}` for the digest."""
    return f"{REPOSITORY}:{LAUNCHER_PLACEHOLDER}" + ("" if runtime == "fleet" else f"-{runtime}")


def image_name(runtime: str = "fleet") -> str:
    """Return the name of a runtime's image: `localhost/paddle-training:<12 hex digits>`.

    The name of runtime collective's image ends with `-collective`. The name is the same in all clones of one commit.
    """
    return image_reference(image_template(runtime), CONTEXT)


def lock_file(runtime: str = "fleet") -> Path:
    """Return the file with the pinned Python packages of a runtime's image."""
    return CONTEXT / ("requirements.lock" if runtime == "fleet" else f"requirements-{runtime}.lock")


def ensure_wheels_folder(runtime: str = "fleet") -> Path:
    """Return the folder with the Python packages of a runtime's image; download missing packages.

    The packages are downloaded before the image build, because the build may not trust the certificate of the package
    index.
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
    """Return the Python interpreter of an environment with the packages of runtime collective's image.

    `make try`, tests and benchmarks run scripts with this interpreter, because the project's own environment has
    PaddlePaddle 2.6.2. A missing environment is created. If that fails, this process exits with code 1 and a message.
    """
    return bootstrap.ensure_environment(lock_file("collective")) / "bin" / "python"


def layout_path(image: str) -> Path:
    """Return the folder in which the OCI image layout of an image is stored."""
    return cache() / "images" / "layouts" / image.rpartition(":")[2]


def ensure_image(runtime: str = "fleet") -> tuple[str, Path]:
    """Return the name and the OCI image layout of a runtime's launcher image; build the image if it is missing.

    The image is built from `launcher/` of this clone. Images of this runtime that were built from other versions of
    launcher/ are deleted.

    Raises:
        LocalError: the disk is full, a download or a build step failed, or launcher/ changed during the build.
    """
    image = image_name(runtime)
    target = layout_path(image)
    with hold_file_lock(cache() / "images" / "lock", "the launcher image"):
        if not target.is_dir():
            packages = ensure_wheels_folder(runtime)
            below = ensure_base_image()
            require_free_space(cache(), 3, "The launcher image")
            with console.timed_step(f"launcher image {image}"):
                words = ["--isolation", "chroot", "--layers", "--pull-never", "--quiet", "--network", "host"]
                words += ["--build-arg", f"BASE={below}", "--build-arg", f"RUNTIME={runtime}"]
                run_buildah("bud", *words, "--volume", f"{packages}:/wheels:ro", "--tag", image, CONTEXT)
                _write_layout(image, target)
                if image_name(runtime) != image:
                    shutil.rmtree(target)
                    raise LocalError(
                        f"launcher/ changed while {image} was built, so the image does not match its tag and was "
                        "deleted. Fix: run the command again and do not edit launcher/ meanwhile."
                    )
            _remove_old_images(runtime)
    return image, target


def _remove_old_images(runtime: str) -> None:
    """Delete images and layouts that were built for this runtime from other versions of launcher/.

    Images of the other runtime stay, because its next build uses their package layers again.
    """
    current = image_name(runtime)
    kind = _tag_suffix(current)
    for folder in layout_path("").glob("*"):
        if _tag_suffix(folder.name) == kind and folder != layout_path(current):
            shutil.rmtree(folder)
    listed = run_buildah("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", "dangling=false")
    for old in set(listed.split()) - {current}:
        if old.rpartition(":")[0] == REPOSITORY and _tag_suffix(old) == kind:
            run_buildah("rmi", old)


def _tag_suffix(image: str) -> str:
    """Return the part of an image's tag after the digest: `collective`, or an empty text for runtime fleet."""
    return image.rpartition(":")[2].partition("-")[2]
