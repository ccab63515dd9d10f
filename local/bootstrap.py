"""Create the Python environment of this repository; uses only the standard library.

`python3 local/bootstrap.py` prints the folder of the environment, and `python3 local/bootstrap.py COMMAND …`
runs `python -m local COMMAND …` in it. The environment is in the cache outside the clone. Its name contains
the digest of the lock file: clones with the same lock file share it, and a changed lock file creates a new
one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
LOCK = CLONE / "requirements" / "dev.lock"
INSTALLER_LOCK = (
    CLONE / "requirements" / "installer.lock"
)  # uv, ten times faster than pip on a long lock file
SUPPORTED = ((3, 11), (3, 12))
NEEDED_GB = 3.0


def cache() -> Path:
    """Return the cache folder (as in local/paths.py, which bootstrap cannot import)."""
    chosen = os.environ.get("PADDLE_TRAINING_CACHE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paddle-training"


def environment_name(lock: bytes, version: tuple[int, ...]) -> str:
    """Return the folder name of the environment for this lock file and Python version."""
    return f"venv-{version[0]}.{version[1]}-{hashlib.sha256(lock).hexdigest()[:12]}"


def environment_folder() -> Path:
    """Return the folder of the environment for this clone's lock file."""
    return cache() / environment_name(LOCK.read_bytes(), sys.version_info[:2])


def exit_with_error(message: str) -> None:
    """Print `error: ` and the message on stderr, and exit with code 1."""
    sys.exit(f"error: {message}")


def check_python() -> None:
    """Exit with an error if this Python version is not supported."""
    if sys.version_info[:2] not in SUPPORTED:
        exit_with_error(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is not supported: the locked packages "
            "need 3.11 or 3.12. Fix: use another interpreter, for example: make demo PYTHON=python3.11"
        )


def install_packages(folder: Path) -> None:
    """Create an environment in `folder` with the packages of the lock file, whose hashes are checked."""
    result = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
    )
    if result.returncode:
        exit_with_error(
            f"`{sys.executable} -m venv` failed. Fix on Debian: apt-get install python3-venv\n"
            f"{(result.stderr or result.stdout).strip()[-800:]}"
        )
    python = str(folder / "bin" / "python")
    common = ("install", "--quiet", "--no-deps", "--require-hashes")
    pip = [python, "-m", "pip", *common, "--disable-pip-version-check"]
    uv = [str(folder / "bin" / "uv"), "pip", *common, "--python", python]
    tries = [[[*pip, "-r", str(INSTALLER_LOCK)], [*uv, "-r", str(LOCK)]], [[*pip, "-r", str(LOCK)]]]
    problem = ""
    for commands in tries:  # the second try is for package indexes that are configured only for pip
        for command in commands:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                problem = "\n".join((ended.stderr or ended.stdout).strip().splitlines()[-15:])
                break
        else:
            return
    exit_with_error(
        f"the packages of {LOCK.relative_to(CLONE)} could not be installed. "
        f"Fix: correct the cause in pip's output, then run the same command again:\n{problem}"
    )


def relocate_scripts(folder: Path, final: Path) -> None:
    """Replace the path `folder` by `final` in the scripts of an environment that is about to be moved."""
    for script in (folder / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            data = script.read_bytes()
            if b"\0" not in data[:1024] and str(folder).encode() in data:
                script.write_bytes(data.replace(str(folder).encode(), str(final).encode()))


def ensure_environment() -> Path:
    """Return the folder of the environment; create it first, under a temporary name, if it does not exist."""
    check_python()
    final = environment_folder()
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(final.parent).free / 1e9
    if free < NEEDED_GB:
        exit_with_error(
            f"the Python environment needs {NEEDED_GB:.0f} GB in {final.parent}, whose disk has {free:.1f} GB free. "
            "Nothing was installed. Fix: free some space, or use another disk with "
            "PADDLE_TRAINING_CACHE=FOLDER"
        )
    with (final.parent / "venv.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if final.is_dir():  # another process created it while this one waited
            return final
        started = time.monotonic()
        print(f"Python environment {final.name} (once) …", file=sys.stderr, flush=True)  # noqa: T201
        draft = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        try:
            install_packages(draft)
            relocate_scripts(draft, final)
            draft.chmod(0o755)
            draft.rename(final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        print(f"Python environment: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
    return final


def main(words: list[str]) -> None:
    """Create the environment if it is missing; then run `python -m local` with `words` in it, or print its folder."""
    folder = ensure_environment()
    if not words:
        print(folder)  # noqa: T201
        return
    python = str(folder / "bin" / "python")
    os.environ["PYTHONPATH"] = str(CLONE)
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execv(python, [python, "-m", "local", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
