"""Who makes what, by locks on the shared storage: the kernel's (or the NFS server's), so that a killed holder
lets go of them.

.prepare.<digest>.lock       shared by all pods that make this data; another data Job waits until it is free,
                             for Helm starts the new Job before it removes the old one
.<digest>.tmp/<name>.lock    one part, or the publishing: one pod's

Where the file system knows no locks, one pod goes on without, and several are refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from launcher.data.progress import Progress
from launcher.errors import DeadlineError, SettingsError, setting
from launcher.files import storage
from launcher.layout import Layout
from launcher.reporting.log import log

_BUSY = (errno.EACCES, errno.EAGAIN)
_PAUSE = 0.5  # seconds between two looks


class Claims:
    """This pod's locks on a job's folder. Use as a context."""

    def __init__(
        self,
        layout: Layout,
        digest: str,
        progress: Progress,
        pods: int,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._layout, self._digest, self._progress, self._pause = layout, digest, progress, pause
        self._pods = pods
        self._path = layout.job / f".prepare.{digest}.lock"
        self._said = False
        self._fd = -1

    def __enter__(self) -> Claims:
        """Waits until no data Job of other data works here."""
        with storage(self._path):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        for other in sorted(self._layout.job.glob(".prepare.*.lock")):
            while other != self._path and not self._free(other):
                self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def _wait(self) -> None:
        where = f"waiting for another data Job that works in {self._layout.job}"
        if not self._said:
            log.info("%s", where)
            self._said = True
        try:
            self._progress.tick(where)
        except DeadlineError as error:
            raise DeadlineError(f"{error} `kubectl get jobs` shows which one holds it.") from error
        self._pause(_PAUSE)

    def alone(self) -> bool:
        """Takes the folder for this pod alone, and tells whether that went: nobody else works here."""
        return self._take(self._fd, fcntl.LOCK_EX)

    def together(self) -> bool:
        """Lets others in, and tells whether this pod is."""
        return self._take(self._fd, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[bool]:
        """Whether this is the only pod that works on `name`, for as long as the block lasts."""
        path = self._layout.data_tmp(self._digest) / f"{name}.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        except FileNotFoundError:  # another pod has published meanwhile, and removed the folder
            yield False
            return
        try:
            yield self._take(fd, fcntl.LOCK_EX)
        finally:
            os.close(fd)

    def _take(self, fd: int, kind: int) -> bool:
        try:
            fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            if self._pods > 1:
                raise SettingsError(
                    setting(
                        "data.workers (PADDLE_LAUNCHER_DATA_WORKERS)",
                        self._pods,
                        "1 on this storage",
                        f"it has no locks ({error}), by which several pods would share the work",
                        "Set it to 1",
                    )
                ) from error
            log.info("this storage has no locks (%s): see that only one data Job runs", error)
        return True

    def _free(self, path: Path) -> bool:
        """Whether nobody holds another data's lock; it is then removed."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            if not self._take(fd, fcntl.LOCK_EX):
                return False
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)
