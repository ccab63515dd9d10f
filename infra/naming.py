"""Names, tags and digests of a stack. Imports no pulumi."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

LAUNCHER_PLACEHOLDER = "{launcher}"
# 12 hex digits are 48 bits: enough to distinguish all versions of a folder, in a tag that stays readable.
SHORT_DIGEST = 12


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=lambda item: item.name):
        if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def folder_digest(path: str | Path) -> str:
    """Return the sha256 (64 hex digits) of the relative names and contents of the files below `path`.

    `__pycache__`, `*.pyc` and hidden files are ignored, because they differ between clones of one commit. The length of
    each name is hashed before the name, and the length of each content before the content, so that two different
    folders never give the hash the same input.

    Raises:
        FileNotFoundError: `path` is not a folder.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not a folder, so it has no digest. Fix: run from a complete clone of the repository"
        )
    entries = sorted((file.relative_to(root).as_posix(), file) for file in _files(root))
    digest = hashlib.sha256()
    for name, file in entries:
        for part in (name.encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file (64 hex digits). The file is read in pieces, because data sets are large."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def image_reference(image: str, launcher_folder: str | Path) -> str:
    """Return `image` with `{launcher}` replaced by the first 12 digits of the launcher folder's digest."""
    if LAUNCHER_PLACEHOLDER not in image:
        return image
    return image.replace(LAUNCHER_PLACEHOLDER, folder_digest(launcher_folder)[:SHORT_DIGEST])


def prefix(project: str, stack: str) -> str:
    """Return the prefix of all names of a stack, so that several stacks can share one account.

    Characters that AWS does not accept in names become dashes: `org/dev.1` → `org-dev-1`.
    """
    return re.sub(r"[^a-z0-9-]+", "-", f"{project}-{stack}".lower()).strip("-")


def stack_tags(project: str, stack: str) -> dict[str, str]:
    """Return the tags that identify a stack's resources."""
    return {
        "Project": project,
        "Stack": stack,
        "ManagedBy": "pulumi",
        "KubernetesCluster": prefix(project, stack),
    }
