"""Names, tags and digests. Pure: imports nothing of pulumi."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from infra.problems import Problem, SettingsError

LAUNCHER_PLACEHOLDER = "{launcher}"
# 12 hex digits are 48 bits: no two versions of one folder meet by chance, and the tag stays readable.
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
    """sha256 (64 hex digits) over the sorted relative names and the bytes of the files below `path`.

    Leaves out what differs between clones of one commit: `__pycache__`, `*.pyc` and hidden files. Name and
    content are each preceded by their length, so that no two trees share one stream.

    Raises:
        FileNotFoundError: `path` is no folder.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder")
    entries = sorted((file.relative_to(root).as_posix(), file) for file in _files(root))
    digest = hashlib.sha256()
    for name, file in entries:
        for part in (name.encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def image_reference(image: str, launcher_folder: str | Path) -> str:
    """The stack's `image`, with `{launcher}` as the first 12 digits of the launcher folder's digest."""
    if LAUNCHER_PLACEHOLDER not in image:
        return image
    return image.replace(LAUNCHER_PLACEHOLDER, folder_digest(launcher_folder)[:SHORT_DIGEST])


def prefix(project: str, stack: str) -> str:
    """What the name of every resource begins with, so that two stacks share one account and are told apart.

    Characters that AWS names do not take become dashes: `org/dev.1` → `org-dev-1`.
    """
    return re.sub(r"[^a-z0-9-]+", "-", f"{project}-{stack}".lower()).strip("-")


# The bucket's name is the tightest: 63 characters with `-artifacts` and the provider's eight.
LONGEST_PREFIX = 45


def refuse_long(project: str, stack: str) -> None:
    """Names longer than AWS takes would fail in the middle of `up`.

    Raises:
        SettingsError: project and stack are too long together.
    """
    name = prefix(project, stack)
    if len(name) > LONGEST_PREFIX:
        limit, why = (
            f"at most {LONGEST_PREFIX} characters",
            "names of buckets and roles begin with it, and end at 63",
        )
        raise SettingsError(
            [Problem("the stack's name", name, limit, why, "init a stack with a shorter name")]
        )


def tags(project: str, stack: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The one tag set of every taggable resource. A person's own tags come on top, and never replace ours."""
    ours = {
        "Project": project,
        "Stack": stack,
        "ManagedBy": "pulumi",
        "KubernetesCluster": prefix(project, stack),
    }
    return {**(own if own is not None else {}), **ours}


def file_digest(path: str | Path) -> str:
    """sha256 of a file's bytes, 64 hex digits; reads it in pieces, since data sets are large."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
