"""From a bare Python 3.11 to the environment that everything else runs in. Standard library only.

`python3 local/bootstrap.py` prints the environment's folder; with a command after it, it runs
`python -m local COMMAND …` there. The environment lies outside the clone and is keyed by its lock file's
digest, so that two clones of one commit share it and a changed lock makes a new one.
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
)  # uv: ten times faster than pip on a long lock file
SUPPORTED = ((3, 11), (3, 12))
NEEDED_GB = 3.0


def cache() -> Path:
    chosen = os.environ.get("PADDLE_TRAINING_CACHE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paddle-training"


def key(lock: bytes, version: tuple[int, ...]) -> str:
    """Folder name of the environment for this lock file and Python."""
    return f"venv-{version[0]}.{version[1]}-{hashlib.sha256(lock).hexdigest()[:12]}"


def environment() -> Path:
    return cache() / key(LOCK.read_bytes(), sys.version_info[:2])


def stop(message: str) -> None:
    sys.exit(f"error: {message}")


def check_python() -> None:
    if sys.version_info[:2] not in SUPPORTED:
        stop(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is not supported: the locked packages "
            "need 3.11 or "
            "3.12. Name another with PYTHON: make demo PYTHON=python3.11"
        )


def install(folder: Path) -> None:
    """Fill the new environment at `folder` from the lock file; every package's hash is checked."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        stop(
            f"`{sys.executable} -m venv` failed. On Debian: apt-get install python3-venv\n"
            f"{(made.stderr or made.stdout).strip()[-800:]}"
        )
    python = str(folder / "bin" / "python")
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]
    uv = [
        str(folder / "bin" / "uv"),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--python",
        python,
    ]
    tries = [[[*pip, "-r", str(INSTALLER_LOCK)], [*uv, "-r", str(LOCK)]], [[*pip, "-r", str(LOCK)]]]
    problem = ""
    for commands in tries:  # pip knows package indexes of a pip.conf that uv does not
        for command in commands:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                problem = "\n".join((ended.stderr or ended.stdout).strip().splitlines()[-15:])
                break
        else:
            return
    stop(f"the packages of {LOCK.relative_to(CLONE)} could not be installed:\n{problem}")


def relocate(folder: Path, final: Path) -> None:
    """Make the scripts of an environment made at `folder` name `final`, where it will lie."""
    for script in (folder / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            data = script.read_bytes()
            if b"\0" not in data[:1024] and str(folder).encode() in data:
                script.write_bytes(data.replace(str(folder).encode(), str(final).encode()))


def ensure() -> Path:
    """The environment's folder; made under a temporary name, so that a half-made one is never used."""
    check_python()
    final = environment()
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(final.parent).free / 1e9
    if free < NEEDED_GB:
        stop(
            f"the Python environment needs {NEEDED_GB:.0f} GB below {final.parent}, whose disk has "
            f"{free:.1f} GB "
            "free. Nothing was begun. Make room, or name another disk: PADDLE_TRAINING_CACHE=FOLDER"
        )
    with (final.parent / "venv.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if final.is_dir():  # another run made it while this one waited
            return final
        began = time.monotonic()
        print(f"Python environment {final.name}, once …", file=sys.stderr, flush=True)  # noqa: T201
        draft = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
        try:
            install(draft)
            relocate(draft, final)
            draft.chmod(0o755)
            draft.rename(final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        print(f"Python environment: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
    return final


def main(words: list[str]) -> None:
    folder = ensure()
    if not words:
        print(folder)  # noqa: T201
        return
    python = str(folder / "bin" / "python")
    os.environ["PYTHONPATH"] = str(CLONE)
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execv(python, [python, "-m", "local", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
