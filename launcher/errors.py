"""Everything that the launcher itself reports as an error.

LauncherError                 70  anything below; `exit_code` is what the process ends with
├── SettingsError             64  a setting is wrong: nothing was made yet
├── DataError                 65  the data is wrong or missing
│   └── DivergedError             the loss is no number: the same again would end the same
├── GangError                 70  the job's processes failed as a whole
│   ├── ProcessError              a pserver or trainer ended when it should not have, or hangs
│   └── DeadlineError             something that was waited for did not come
├── TwinError                 69  another pod of this rank is alive, or has taken its place
├── UnfitError                71  this launcher cannot go on; another pod of its rank may
│   ├── CheckpointError           a checkpoint is damaged: the next attempt takes the one before it
│   └── StorageFailedError        the storage answers with errors that may pass (EIO, ESTALE, ETIMEDOUT)
├── StorageError              75  no space, or storage that refuses to be written
├── ExportError               75  the bucket of training.exportTo cannot be written; the model is not lost
└── StoppedError             143  told to stop (SIGTERM, SIGINT)

64, 65, 70 and 75 are final: the chart's podFailurePolicy fails the Job on them. 69 and 143 fail nothing, and
71 brings another pod (docs/adr/0004-the-gang-restarts-in-place.md).
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
"""Exit codes, of launchers and their children, that no restart mends: the same again would end the same."""


class LauncherError(Exception):
    """The root. `str(error)` is the cause as a person reads it, whole, on one or more lines."""

    exit_code: int = EXIT_GANG


class SettingsError(LauncherError):
    """One or more settings are wrong."""

    exit_code = EXIT_SETTINGS


class DataError(LauncherError):
    """The source, a shard, the manifest, a save or a row is wrong or missing."""

    exit_code = EXIT_DATA


class DivergedError(DataError):
    """The loss is no number."""


class GangError(LauncherError):
    """The gang cannot go on."""


class ProcessError(GangError):
    """A child ended when it should not have, or does not go on.

    `returncode`: the child's, negative for a signal; None while it still runs. A final code of a child
    becomes the error's own, so that a row which a program cannot parse ends the Job as wrong data.
    `process`: its name, as people are shown it.
    """

    def __init__(self, message: str, returncode: int | None = None, process: str = "") -> None:
        super().__init__(message)
        self.returncode, self.process = returncode, process
        if returncode in FINAL:
            self.exit_code = returncode


class DeadlineError(GangError):
    """What was waited for did not come in time; the message says what, how long, and why it may be late."""


class TwinError(LauncherError):
    """Two pods of one rank: this one is not the one that counts."""

    exit_code = EXIT_TWIN


class UnfitError(LauncherError):
    """This launcher cannot go on, though the run can."""

    exit_code = EXIT_UNFIT


class CheckpointError(UnfitError):
    """A checkpoint cannot be resumed from; the message says what is wrong with it."""


class StorageFailedError(UnfitError):
    """The storage failed in a way that may pass; it was tried again for a while."""


class StorageError(LauncherError):
    """The shared storage or the pod's own disk is full or refuses to be written."""

    exit_code = EXIT_STORAGE


class ExportError(LauncherError):
    """A complete run could not be copied to `training.exportTo`."""

    exit_code = EXIT_STORAGE


class StoppedError(LauncherError):
    """The launcher was told to stop."""

    exit_code = EXIT_STOPPED


def setting(key: str, value: object, limit: str, reason: str, mend: str) -> str:
    """The one form of a message about a wrong setting: key, value, limit, reason, mend."""
    return f"{key} is {value!r}, but must be {limit}: {reason}. {mend}."
