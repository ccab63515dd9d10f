"""Errors and exit codes of the commands that users type. Each error is printed as one message, no traceback.

All other errors and exit codes are in launcher/errors.py. For example, these commands raise its `DataError` for an
invalid program or row.
"""

from __future__ import annotations

import errno
import os

from launcher.errors import (
    EXIT_DATA,
    EXIT_GANG,
    EXIT_OK,
    EXIT_STORAGE,
    EXIT_UNFIT,
    LauncherError,
    StorageError,
)

EXIT_RUN_FAILED = 1
EXIT_TIMEOUT = 2
EXIT_UNKNOWN = 3
EXIT_OTHER_RUN = 4
EXIT_USAGE = 64

# docs/how-to/troubleshooting.md lists these next to the exit codes of the pods.
EXIT_CODES = {
    EXIT_OK: "done",
    EXIT_RUN_FAILED: "the training failed",
    EXIT_TIMEOUT: "--timeout expired",
    EXIT_UNKNOWN: "the cluster or the storage could not be reached, or returned an error",
    EXIT_OTHER_RUN: "another run holds the release's lease, or has replaced the run that was followed",
    EXIT_USAGE: "an option, an argument or a setting is invalid",
    EXIT_DATA: "the data, a row, the program, the model or a file of the run is invalid or damaged",
    EXIT_GANG: "any other failure",
    EXIT_UNFIT: "a temporary error of the storage",
    EXIT_STORAGE: "a disk or the storage is full or read-only",
}


class CliError(LauncherError):
    """A command failed: the cluster or the storage could not be reached, or returned an error."""

    exit_code = EXIT_UNKNOWN

    def __init__(self, problem: str, fix: str = "") -> None:
        """Store the message: `problem`, and after `Fix:` the one action that solves it."""
        self.problem = problem
        end = "" if problem.endswith((".", "…", ":", "?")) else "."
        super().__init__(f"{problem}{end} Fix: {fix}" if fix else problem)


class UsageError(CliError):
    """An option, argument or setting is invalid, the run is in the wrong state, or the user did not confirm.

    The command changed nothing, with few exceptions: for example, `run` may have uploaded the program before.
    """

    exit_code = EXIT_USAGE


class RunFailedError(CliError):
    """The training that was followed failed, does not exist or was removed; or no trial of a sweep has a score."""

    exit_code = EXIT_RUN_FAILED


class WaitTimeoutError(CliError):
    """The time-out of `wait`, `run` or `resume --follow` expired before the run was over."""

    exit_code = EXIT_TIMEOUT


class OtherRunError(CliError):
    """Another command holds the lease of the release or job, or an upgrade has replaced the run that was followed.

    This error is also raised if this command has lost its lease.
    """

    exit_code = EXIT_OTHER_RUN


class DiskFullError(CliError):
    """A disk of this machine, or the storage, is full or read-only."""

    exit_code = EXIT_STORAGE


_FULL_TEXTS = (
    *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
    *("no space left", "bytes free, but", "No usable temporary directory"),
)
"""Parts of messages about a full or read-only disk, which the system, the reader's commands or Python write."""


def _is_disk_full(text: str) -> bool:
    return any(part in text for part in _FULL_TEXTS)


def storage_failure(text: str) -> CliError:
    """Return the error with the message `text`: a `DiskFullError` if the text is about a full disk, else a `CliError`.

    The text comes from a command of the reader, or from the operating system of this machine.
    """
    return DiskFullError(text) if _is_disk_full(text) else CliError(text)


def describe_os_error(error: Exception, where: object = "") -> LauncherError:
    """Return the error to report to the user after a failed operation on a file of this machine.

    A `LauncherError` is returned unchanged, except a `StorageError` whose cause is an OSError. `where` is the path that
    was used; it is part of the message if `error` itself has no path.
    """
    cause = error.__cause__ if isinstance(error, StorageError) else error
    if not isinstance(cause, OSError):
        return error if isinstance(error, LauncherError) else storage_failure(str(error))
    text = f"{cause.strerror or cause}: {cause.filename or where}".rstrip(": ")
    if cause is not error:  # the fix of a StorageError is for a pod and its storage
        text = str(error).partition(" Fix:")[0].rstrip(".")
    if _is_disk_full(text):
        return DiskFullError(
            text, "free space on this disk, or use another one that is not read-only, then try again"
        )
    return CliError(text, "check that this path exists and that you may use it")


_EXTRAS = {
    "model": ("google", "numpy", "paddle"),
    "pod": ("boto3", "matplotlib"),
    "serve": ("fastapi", "prometheus_client", "uvicorn"),
    "sweep": ("optuna", "plotly"),
}
"""Top-level modules of the packages of each extra of pyproject.toml; not all packages are listed."""


def missing_package(error: ModuleNotFoundError) -> CliError:
    """Return the error for a Python package that is not installed.

    If the missing module belongs to the launcher, raise `error` instead.
    """
    name = (error.name or "launcher").partition(".")[0]
    if name == "launcher":
        raise error
    extra = next((f"[{one}]" for one, packages in _EXTRAS.items() if name in packages), "")
    return CliError(
        f"this command needs the Python package {name}, which is not installed",
        f"pip install '.{extra}' in the project's folder, or run this in the launcher's image",
    )
