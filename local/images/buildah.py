"""Buildah with a storage of its own below the cache: a person's own images are neither seen nor touched."""

from __future__ import annotations

from local.paths import cache
from local.run import ok
from local.run import run as run_command


def _options() -> list[str]:
    storage = cache() / "images" / "storage"
    return ["--root", str(storage), "--runroot", str(storage / "run"), "--storage-driver", "overlay"]


def run(command: str, *words: str, seconds: float = 1200) -> str:
    """Run one buildah command and return what it wrote.

    Raises:
        LocalError: it failed, with its last lines.
    """
    return run_command(["buildah", *_options(), command, *words], why=f"buildah {command}", seconds=seconds)


def exists(image: str) -> bool:
    return ok(["buildah", *_options(), "inspect", "--type", "image", image])


def images() -> list[str]:
    """Names of all tagged images."""
    listed = run("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", "dangling=false")
    return sorted(set(listed.split()))
