"""A Python environment with the packages of runtime collective's image, for scripts on this machine.

`make try`, tests and benchmarks run scripts with it: the project's own environment has PaddlePaddle 2.6.2.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from local import console
from local.external_commands import run_command
from local.files_and_locks import create_folder_atomically, hold_file_lock, require_free_space
from local.images import launcher_image
from local.paths import cache


def ensure_collective_python() -> Path:
    """Return the interpreter of the environment; create the environment if it is missing.

    Raises:
        LocalError: the disk is full, or the packages cannot be downloaded.
    """
    version = ".".join(map(str, sys.version_info[:2]))
    lock = launcher_image.lock_file("collective")
    folder = cache() / f"collective-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}-python{version}"
    with hold_file_lock(cache() / "collective.lock", "the environment of runtime collective"):
        if not folder.is_dir():
            wheels = launcher_image.ensure_wheels_folder("collective", version)
            require_free_space(cache(), 2, "The environment of runtime collective")
            with (
                console.timed_step("Python environment of runtime collective (once)"),
                create_folder_atomically(folder) as draft,
            ):
                why = "creating the environment of runtime collective"
                run_command([sys.executable, "-m", "venv", "--without-pip", str(draft)], why=why)
                pip = [sys.executable, "-m", "pip", "--python", str(draft / "bin" / "python"), "install"]
                pip += ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels)]
                pip += ["--no-deps", "--require-hashes", "--requirement", str(lock)]
                run_command(pip, why=why, seconds=1200)
    return folder / "bin" / "python"
