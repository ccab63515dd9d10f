"""List the files that a script wrote to its working folder, and copy those that must be kept.

The working folder is a copy of the program on the pod's own disk, and is lost with the pod.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.errors import LauncherError
from launcher.io import files
from launcher.log import log

SHOWN = 20
"""A warning about lost files lists at most this many of them, the largest ones first."""
LOOKED_AT = 100_000
"""The search for new files ends with the first folder after which it has looked at more than this many files."""


def find_new_files(folder: Path, since: float) -> list[tuple[str, int]]:
    """Return (name, bytes) of the files below `folder` that were written after the Unix time `since`.

    The largest file comes first, and a name is a path relative to `folder`. Byte code is left out, and so are links,
    because they may lead anywhere.
    """
    found, seen = list[tuple[str, int]](), 0
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            seen += 1
            path = Path(root, name)
            status = path.lstat()
            if status.st_mtime > since and not path.is_symlink() and path.is_file():
                found.append((path.relative_to(folder).as_posix(), status.st_size))
        if seen > LOOKED_AT:
            break
    return sorted(found, key=lambda one: (-one[1], one[0]))


def keep_script_files(
    program: Path, target: Path, since: float, patterns: Sequence[str], check: Callable[[], None]
) -> None:
    """Copy the new files that match `patterns` to the folder `target`; warn about the others, which will be lost.

    Each copy appears under its name only when it is complete. An error ends the copies and is only logged, because the
    training is already over.

    Args:
        program: the script's working folder.
        since: Unix time in seconds from which on a written file counts as new. The launcher uses the time before it
            starts the script's first process, after it has copied the program.
        patterns: patterns of the module fnmatch, in which `*` also matches a path of several folders.
        check: called often during the copy; if it raises an error, the copy stops.
    """
    try:
        found = find_new_files(program, since)
        kept = {name for name, _ in found if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
        for name, _ in found:
            if name in kept:
                _copy(program / name, target / name, check)
    except (LauncherError, OSError) as error:
        log.warning("not all files of training.keepFiles were copied to %s: %s", target, error)
        return
    if kept:
        log.info("copied %d files of training.keepFiles to %s", len(kept), target)
    if lost := [(name, size) for name, size in found if name not in kept]:
        listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in lost[:SHOWN])
        log.warning(
            "the script wrote %d files (%s bytes) to its working folder, which are lost with this pod: %s%s. Fix: give "
            "the script a path below {output_dir}, or name them in training.keepFiles",
            len(lost),
            f"{sum(size for _, size in lost):,}",
            listed,
            " …" if len(lost) > SHOWN else "",
        )


def _copy(source: Path, target: Path, check: Callable[[], None]) -> None:
    with files.storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_path(target)
        try:
            files.copy_file(source, temporary, check)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
