"""The exceptions of the launcher and the exit codes of its processes.

The gang is all processes of a training job together; a rank is one of its pods, numbered from 0. An attempt
is one start of the gang: after a failure the gang restarts, which is the next attempt.

LauncherError                 70  any error below; `exit_code` is the exit code of the process
├── SettingsError             64  a setting is wrong; nothing was created yet
├── DataError                 65  the data is wrong or missing
│   └── DivergedError             the loss is NaN or infinite, and a restart would not change that
├── GangError                 70  the processes of the job failed
│   ├── ProcessError              a parameter server (pserver) or trainer exited unexpectedly or hangs
│   └── DeadlineError             a wait timed out
├── TwinError                 69  another pod with the same rank is alive, or has replaced this one
├── UnfitError                71  this pod cannot continue, but another pod with the same rank may
│   ├── CheckpointError           a checkpoint is damaged; the next attempt uses an earlier one
│   └── StorageFailedError        the storage failed, perhaps temporarily (EIO, ESTALE, ETIMEDOUT)
├── StorageError              75  the storage is full, or the pod may not read or write it
├── ExportError               75  the bucket of training.exportTo cannot be written; the model is not lost
└── StoppedError             143  stopped by SIGTERM or SIGINT

When a pod exits with 64, 65, 70 or 75, the chart's podFailurePolicy fails the whole Job. 69 and 143 do not
fail it, and after 71 Kubernetes starts another pod (docs/explanation/decisions.md).
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_SETTINGS = 64
EXIT_DATA = 65
EXIT_TWIN = 69
EXIT_GANG = 70
EXIT_UNFIT = 71
EXIT_STORAGE = 75
EXIT_STOPPED = 143

FINAL = (EXIT_SETTINGS, EXIT_DATA, EXIT_STORAGE)
"""Exit codes after which nothing is restarted, because the new attempt would fail in the same way."""
RUN_ENDS = (*FINAL, EXIT_GANG)
"""Exit codes of a pod after which Kubernetes starts no other pod: they end the run, or the data Job."""


class LauncherError(Exception):
    """Base of all errors that the launcher reports. `str(error)` is the complete message for the user."""

    exit_code: int = EXIT_GANG


class SettingsError(LauncherError):
    """One or more settings (chart values, environment variables or options) are invalid."""

    exit_code = EXIT_SETTINGS


class DataError(LauncherError):
    """The source file, a shard (one rank's part of it), the manifest, or a row is wrong or missing."""

    exit_code = EXIT_DATA


class DivergedError(DataError):
    """The training loss is NaN or infinite, so training cannot continue."""


class GangError(LauncherError):
    """The gang (the parameter servers and trainers of all ranks) cannot continue."""


class ProcessError(GangError):
    """A child process (pserver, trainer or helper) exited unexpectedly or hangs.

    Attributes:
        returncode: the process's exit code, negative for a signal; None if it still runs. A code in FINAL becomes the
            exit code of this error. For example, if the program cannot parse a row (65), the Job fails at once.
        process: the process's name as users see it, such as `pserver 0`.
        priority: a number by which the cause is chosen if an attempt has several failures. The failure with the lowest
            number is the cause, and among equal numbers the earliest one. 0: this failure is the cause, whenever it
            happened. 1: as most failures. 2: another failure may have caused this one. 3: another failure usually has
            caused this one.
        ends_pod: whether only another pod can continue, because a device of this pod failed; then `exit_code` is 71.
    """

    def __init__(
        self,
        message: str,
        returncode: int | None = None,
        process: str = "",
        priority: int = 1,
        *,
        ends_pod: bool = False,
    ) -> None:
        super().__init__(message)
        self.returncode, self.process, self.priority = returncode, process, priority
        if ends_pod:
            self.exit_code = EXIT_UNFIT
        elif returncode in FINAL:
            self.exit_code = returncode


class DeadlineError(GangError):
    """A wait reached its time limit; the message says what was waited for, how long, and possible causes."""


class TwinError(LauncherError):
    """Two pods with the same rank are alive, and this pod must exit so that only one trains."""

    exit_code = EXIT_TWIN


class UnfitError(LauncherError):
    """This pod cannot continue, but the run can, with a new pod for its rank."""

    exit_code = EXIT_UNFIT


class CheckpointError(UnfitError):
    """A checkpoint cannot be restored; the message contains the damage.

    The errors of launcher/io/checkpoints.py do not contain the checkpoint's path, which their callers add.
    """


class StorageFailedError(UnfitError):
    """The storage failed in a way that may be temporary, and retries for some seconds did not help."""


class StorageError(LauncherError):
    """The shared storage or the pod's own disk is full, or cannot be read or written without a change by the user."""

    exit_code = EXIT_STORAGE


class ExportError(LauncherError):
    """The model of a complete run could not be copied to `training.exportTo`.

    The helper process that checks this address before the training raises this error, too. The launcher then converts
    the error to a `SettingsError`.
    """

    exit_code = EXIT_STORAGE


class StoppedError(LauncherError):
    """The process received SIGTERM or SIGINT and exits because of it."""

    exit_code = EXIT_STOPPED


def setting_message(key: str, value: object, limit: str, reason: str, fix: str) -> str:
    """Return the message `KEY is VALUE, but must be LIMIT: REASON. Fix: FIX.` about a wrong setting.

    Args:
        key: name of the setting, as users write it, such as `training.passes`.
        value: the wrong value.
        limit: description of valid values; follows the words `but must be`.
        reason: why other values cannot work.
        fix: the action for the user: a sentence without `Fix:` and without the full stop.
    """
    return f"{key} is {value!r}, but must be {limit}: {reason}. Fix: {fix[:1].lower()}{fix[1:]}."


def setting_error(key: str, value: object, limit: str, reason: str, fix: str) -> SettingsError:
    """Return the `SettingsError` with the message of `setting_message`, which takes the same arguments."""
    return SettingsError(setting_message(key, value, limit, reason, fix))


def make_again_fix(damaged: object) -> str:
    """Return the `Fix:` of a message about prepared data: delete `damaged` (paths), and make the data again."""
    return (
        f"Fix: delete {damaged} in a pod or on a machine that mounts the shared storage, then start the run again "
        "with another runId (helm upgrade with --reset-then-reuse-values --set-string runId=TEXT), which makes its "
        "data again."
    )
