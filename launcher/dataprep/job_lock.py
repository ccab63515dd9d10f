"""Lock files on the shared storage, with which the data Job's pods divide their work.

.prepare.<digest>.lock       held shared by every pod that makes this data. A data Job for other data of the
                             same folder waits for it: Helm starts the new Job before it removes the old one
.<digest>.tmp/<name>.lock    held by the one pod that makes this part, or that publishes

The kernel (or the NFS server) holds the locks, so that a killed holder releases them. On a file system without
locks one pod continues without them, and several pods are rejected.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DeadlineError, setting_error
from launcher.io.files import storage_errors
from launcher.log import log
from launcher.settings import DataSettings

_BUSY = (errno.EACCES, errno.EAGAIN)
_POLL_SECONDS = 0.5


class DataJobLock:
    """Locks the job's folder, or one part of the work, for one pod. Use it as a context manager."""

    def __init__(self, settings: DataSettings, progress: DataProgress) -> None:
        """Prepare the locks. `progress` enforces the deadline while this pod waits for another data Job."""
        self._settings, self._layout, self._progress = settings, settings.layout, progress
        self._path = self._layout.job / f".prepare.{settings.data_digest}.lock"
        self._logged = False
        self._fd = -1

    def __enter__(self) -> DataJobLock:
        """Wait until no data Job for other data is running in this folder."""
        self._open()
        return self

    def _open(self) -> None:
        with storage_errors(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        for other in sorted(self._layout.job.glob(".prepare.*.lock")):
            while other != self._path and not self._remove_if_free(other):
                self._wait()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _wait(self) -> None:
        what = f"waiting for another data Job that writes to {self._layout.job}"
        if not self._logged:
            log.info("%s", what)
            self._logged = True
        try:
            self._progress.report(what)
        except DeadlineError as error:
            raise DeadlineError(
                f"{str(error).partition(' Fix:')[0]} Fix: wait until the other data Job is complete, or delete it; "
                "`kubectl get jobs` shows it."
            ) from error
        time.sleep(_POLL_SECONDS)

    def try_exclusive(self) -> bool:
        """Try to lock the job's folder for this pod alone. Return False if another pod holds the lock."""
        return self._try_lock_folder(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Try to lock the job's folder together with other pods. Return False if another pod holds the lock alone."""
        return self._try_lock_folder(fcntl.LOCK_SH)

    def unlock(self) -> None:
        """Release the lock of the job's folder, so that another pod can lock it for itself alone."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[bool]:
        """Lock `name` (a part's key, or `publish`) for the block; yield False if another pod holds it."""
        path = self._layout.data_tmp(self._settings.data_digest) / f"{name}.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        except FileNotFoundError:  # another pod has published meanwhile, and removed the folder
            yield False
            return
        try:
            yield self._try_lock(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def _try_lock_folder(self, kind: int) -> bool:
        """Lock the job's folder as `_try_lock` does; wait again for other data Jobs if one removed the lock file."""
        while self._try_lock(self._fd, kind):
            with contextlib.suppress(FileNotFoundError), storage_errors(self._path):
                if os.path.samestat(os.fstat(self._fd), self._path.stat()):
                    return True
            self._open()  # the locked file is not the one that other pods lock
        return False

    def _try_lock(self, fd: int, kind: int) -> bool:
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            if self._settings.workers > 1:
                reason = f"the storage does not support file locks ({error}), and several pods need them"
                key, value, only = "data.workers", str(self._settings.workers), "1"
                if self._settings.in_training_pod:
                    key, value, only = "data.preparedBy", "trainingPods", "dataJob"
                raise setting_error(
                    key, value, f"{only} on this storage", reason, f"Set {key} to {only}"
                ) from error
            log.info(
                "the storage does not support file locks (%s), so two data Jobs in one folder do not wait for each "
                "other: run only one at a time",
                error,
            )
        return True

    def _remove_if_free(self, path: Path) -> bool:
        """Remove the lock file of other data unless a pod holds that lock; return whether it is gone."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            if not self._try_lock(fd, fcntl.LOCK_EX):
                return False
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)
