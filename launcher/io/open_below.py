"""Open files and folders below a root without following a symbolic link in any part of their path.

Each folder is opened relative to the descriptor of its parent (openat with O_NOFOLLOW). So a link that somebody puts
into the path after a check is not followed either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from launcher.paths import is_safe_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class ReaderError(Exception):
    """Copying between command line and pod failed; the message is for users. No existing file was changed."""


def checked_name(name: str) -> str:
    """Return `name`. Raise `ReaderError` if it is not the path of a file below a folder (`paths.is_safe_name`)."""
    if not is_safe_name(name):
        raise ReaderError(
            f"{name!r} is not a path below the shared folder. Fix: give a relative path without '..' and backslashes"
        )
    return name


def link_error(path: Path) -> ReaderError:
    """Return the error for a symbolic link on the storage."""
    return ReaderError(
        f"{path} is a symbolic link, and links on the storage are not followed: its target may be any file of the "
        "machine. Nothing was changed. Fix: remove the link, or move its target into its place"
    )


@contextlib.contextmanager
def open_parent(root: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield (descriptor of the folder that contains `root`/`name`, last part of `name`).

    Raises:
        ReaderError: `root` or a folder between `root` and the last part is a link; or `name` is no path below `root`.
        OSError: a folder is absent, or cannot be opened.
    """
    *folders, last = checked_name(name).split("/")
    path, opened = root, [_open(root, str(root), _FOLDER, None)]
    try:
        for part in folders:
            path /= part
            opened.append(_open(path, part, _FOLDER, opened[-1]))
        yield opened[-1], last
    except OSError as error:
        error.filename = str(root / name)
        raise
    finally:
        for folder in opened:
            os.close(folder)


def _open(path: Path, name: str, flags: int, parent: int | None) -> int:
    """Open the file or folder `name` in the open folder `parent`, and return its descriptor.

    `path` is the path of this file or folder, for messages. Without `parent`, `name` is a path.
    """
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, parent):
            raise link_error(path) from error
        raise


def _is_link(name: str, parent: int | None) -> bool:
    return stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode)


def open_file(root: Path, name: str) -> BinaryIO:
    """Open the regular file `root`/`name` to read it.

    Raises:
        ReaderError: the path is not a regular file, or a part of the path is a link.
        OSError: the file is absent, or cannot be opened.
    """
    with open_parent(root, name) as (folder, last):
        # Without O_NONBLOCK, the open of a named pipe would wait for a writer.
        descriptor = _open(root / name, last, os.O_RDONLY | os.O_NONBLOCK, folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ReaderError(f"{root / name} is not a regular file. Fix: replace it by a file")
    return os.fdopen(descriptor, "rb")


def refuse_links(root: Path, name: str) -> Path:
    """Return the path `root`/`name`; raise `ReaderError` if a part of the path is a link. The path may be absent."""
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open_parent(root, name) as (folder, last),
    ):
        if _is_link(last, folder):
            raise link_error(root / name)
    return root / name
