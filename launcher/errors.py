"""Everything that the launcher itself reports as an error.

LauncherError                 70  anything below; `exit_code` is what the process ends with
├── SettingsError             64  a setting is wrong: nothing was made yet
├── DataError                 65  the data is wrong or missing
├── GangError                 70  the job's processes failed as a whole
│   ├── ProcessError              a pserver or trainer ended when it should not have
│   ├── PeerLostError             another rank's launcher is silent or gone
│   ├── PeerError                 another rank said why it ends (carries that rank's exit code)
│   └── DeadlineError             something that was waited for did not come
├── StorageError              75  no space, or storage that cannot be written
├── ExportError               75  the bucket of training.exportTo cannot be written; the model is not lost
└── StoppedError             143  told to stop (SIGTERM, SIGINT)

64, 65, 70 and 75 are final: the chart's podFailurePolicy fails the Job on them.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_SETTINGS = 64
EXIT_DATA = 65
EXIT_GANG = 70
EXIT_STORAGE = 75
EXIT_STOPPED = 143


class LauncherError(Exception):
    """The root. `str(error)` is the cause as a person reads it, whole, on one or more lines."""

    exit_code: int = EXIT_GANG


class SettingsError(LauncherError):
    """One or more settings are wrong."""

    exit_code = EXIT_SETTINGS


class DataError(LauncherError):
    """The source, a shard, the manifest or a row is wrong or missing."""

    exit_code = EXIT_DATA


class GangError(LauncherError):
    """The gang cannot go on."""


class ProcessError(GangError):
    """A child ended when it should not have.

    The launcher's own final codes (64, 65, 75) of a child are kept, so that a row which a program cannot
    parse ends the Job as wrong data and not as a broken gang.
    """

    def __init__(self, message: str, returncode: int = 1) -> None:
        super().__init__(message)
        if returncode in (EXIT_SETTINGS, EXIT_DATA, EXIT_STORAGE):
            self.exit_code = returncode


class PeerLostError(GangError):
    """A rank's launcher closed its connection or was silent for too long."""


class PeerError(GangError):
    """Another rank gave up and told why; everybody ends with that rank's code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DeadlineError(GangError):
    """What was waited for did not come in time; the message says what, how long, and why it may be late."""


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
