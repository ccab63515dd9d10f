"""Run buildah with a separate storage in the cache, so that the user's own images are not affected."""

from __future__ import annotations

from local.external_commands import command_succeeds, run_command
from local.paths import cache


def _options() -> list[str]:
    storage = cache() / "images" / "storage"
    return ["--root", str(storage), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]


def run_buildah(command: str, *words: str, seconds: float = 1200) -> str:
    """Run one buildah command and return its output.

    Raises:
        LocalError: The command failed; with the last lines of its output.
    """
    return run_command(["buildah", *_options(), command, *words], why=f"buildah {command}", seconds=seconds)


def image_exists(image: str) -> bool:
    """Return whether the storage contains the image."""
    return command_succeeds(["buildah", *_options(), "inspect", "--type", "image", image])


def list_images() -> list[str]:
    """Return the names of all tagged images in the storage."""
    listed = run_buildah("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", "dangling=false")
    return sorted(set(listed.split()))
