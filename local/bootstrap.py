"""Create the Python environment of this repository; uses only the standard library.

`python3 local/bootstrap.py` prints the folder of the environment. `python3 local/bootstrap.py COMMAND …` runs
`python -m local COMMAND …` in the environment.

The environment is in the cache outside the clone, and its name contains the digest of the lock file. So clones with the
same lock file share an environment, and a changed lock file leads to a new environment.
"""

from __future__ import annotations

import configparser
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
INSTALLER_LOCK = CLONE / "requirements" / "installer.lock"  # uv, and the pip of the environment
SUPPORTED = ((3, 11), (3, 12))
NEEDED_GB = 3.0


def cache() -> Path:
    """Return the folder for tools, Python environments and images.

    `$PADDLE_TRAINING_CACHE` overrides the default `~/.cache/paddle-training`.
    """
    chosen = os.environ.get("PADDLE_TRAINING_CACHE", "")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paddle-training"


def environment_name(lock: bytes, version: tuple[int, ...]) -> str:
    """Return the name of the environment's folder.

    `lock` is the content of the lock file, and `version` is the Python version of the environment.
    """
    return f"venv-{version[0]}.{version[1]}-{hashlib.sha256(lock).hexdigest()[:12]}"


def python_version() -> tuple[int, int]:
    """Return the Python version of the environment.

    It is the version of this interpreter if that is supported, else the oldest supported version.
    """
    version = sys.version_info[:2]
    return version if version in SUPPORTED else SUPPORTED[0]


def exit_with_error(message: str) -> None:
    """Print `error: ` and the message on stderr, and exit with code 1."""
    sys.exit(f"error: {message}")


def run_or_exit(command: list[str], what: str, fix: str) -> None:
    """Run a command. If the command fails, print a message and exit with code 1.

    The message is `error: {what}. Fix: {fix}`, followed by the last 15 lines of the command's stderr, or of its stdout
    if stderr is empty. So `what` must say what failed.
    """
    ended = subprocess.run(command, env=uv_variables(), capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = (ended.stderr or ended.stdout).strip().splitlines()[-15:]
        exit_with_error(f"{what}. Fix: {fix}\n" + "\n".join(lines))


def uv_variables() -> dict[str, str]:
    """Return the environment variables for uv: those of this process, and defaults for variables that are not set.

    With the defaults, uv keeps Python interpreters in the cache, trusts the certificates of the machine, and uses the
    package index that pip is configured to use.
    """
    files = (
        "/etc/pip.conf",
        "~/.pip/pip.conf",
        "~/.config/pip/pip.conf",
        os.environ.get("PIP_CONFIG_FILE", ""),
    )
    pip = configparser.ConfigParser(interpolation=None)
    pip.read([os.path.expanduser(file) for file in files])  # noqa: PTH111 - an empty name is ignored
    index = os.environ.get("PIP_INDEX_URL") or pip.get("global", "index-url", fallback="")
    variables = {"UV_PYTHON_INSTALL_DIR": str(cache() / "python"), "UV_SYSTEM_CERTS": "true"}
    return variables | ({"UV_DEFAULT_INDEX": index} if index else {}) | dict(os.environ)


def ensure_uv() -> str:
    """Return the path of uv. Without uv on PATH, pip first installs it in a separate environment in the cache."""
    if found := shutil.which("uv"):
        return found
    folder = cache() / f"uv-{hashlib.sha256(INSTALLER_LOCK.read_bytes()).hexdigest()[:12]}"
    if not (folder / "bin" / "uv").exists():
        what = f"`{sys.executable} -m venv` failed"
        run_or_exit(
            [sys.executable, "-m", "venv", str(folder)], what, "on Debian, apt-get install python3-venv"
        )
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        what = f"the packages of {INSTALLER_LOCK.relative_to(CLONE)} could not be installed"
        fix = "correct the cause in pip's output, then repeat your command"
        run_or_exit([*pip, "--no-deps", "-r", str(INSTALLER_LOCK)], what, fix)
    return str(folder / "bin" / "uv")


def install_packages(folder: Path, lock: Path) -> None:
    """Create an environment in `folder` with pip and the packages of the lock file, whose hashes are checked.

    If this interpreter's version is not supported, the environment gets another Python: uv searches this machine for a
    supported version, or downloads it.
    """
    uv, version = ensure_uv(), ".".join(map(str, python_version()))
    if sys.version_info[:2] in SUPPORTED:
        wanted, what = sys.executable, f"the environment could not be created with {sys.executable}"
        fix = "correct the cause in uv's output, then repeat your command"
    else:
        wanted, what = (
            version,
            (
                f"Python {'.'.join(map(str, sys.version_info[:2]))} is not supported: the locked packages need 3.11 or "
                "3.12, and uv found neither on this machine and could not download one"
            ),
        )
        fix = (
            f"install Python {version} and run make demo PYTHON=python{version}; or let uv download it from a mirror "
            "that this machine reaches, with UV_PYTHON_INSTALL_MIRROR=URL"
        )
    # Relocatable, because the folder is renamed when it is complete.
    run_or_exit([uv, "venv", "--quiet", "--relocatable", "--python", wanted, str(folder)], what, fix)
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--python", str(folder / "bin" / "python"), "-r", str(INSTALLER_LOCK), "-r", str(lock)]
    what = f"the packages of {lock.relative_to(CLONE)} could not be installed"
    run_or_exit(command, what, "correct the cause in uv's output, then repeat your command")


def ensure_environment(lock: Path = LOCK) -> Path:
    """Return the folder of the environment with the packages of a lock file of this clone.

    A missing environment is created first, under a temporary name. If this fails, the process exits with code 1.
    """
    final = cache() / environment_name(lock.read_bytes(), python_version())
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
            install_packages(draft, lock)
            draft.chmod(0o755)
            draft.rename(final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        print(f"Python environment: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)  # noqa: T201
    return final


def main(words: list[str]) -> None:
    """Create the environment if it is missing. Then run `python -m local WORDS` in it, or print its folder.

    The folder is printed if `words` is empty.
    """
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
