"""Copy the growing log of a child process to the pod's log and to the shared storage."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

LATE_SECONDS = 60.0  # how long the copy of a log is retried after the child has exited


def measure_log(log: Path) -> int:
    """Return the size of a log in bytes; 0 if it cannot be read, because the process removed it."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


class LogFollower:
    """Writes new lines of a child's growing log file to the pod's log and to a copy, and searches them for errors.

    The child writes its log itself, to the pod's own disk, so neither a slow launcher nor a full or hung
    volume blocks it. The copy is retried until it can be written. The log file must exist; it is read to its
    end even if a later child replaces it.
    """

    def __init__(
        self,
        path: Path,
        *,
        copy: Path | None,
        shown: bool,
        judge: Callable[[str], None] | None = None,
        period: float = 0.25,
    ) -> None:
        """Start the threads that read the log `path` every `period` seconds until `end` is called.

        Args:
            path: the log.
            copy: the file to copy it to; None: no copy.
            shown: whether to write its new lines to the pod's log.
            judge: called, from a thread, with each block of new lines, and searches them for errors.
        """
        self._copy, self._judge, self._period = copy, judge, period
        self._end = threading.Event()
        self._threads = []
        if shown or judge is not None:
            self._threads.append(self._thread(self._lines, path.open("rb"), shown))
        if copy is not None:
            self._threads.append(self._thread(self._copied, path.open("rb")))

    def _thread(self, target: Callable[..., None], file: BinaryIO, *args: object) -> threading.Thread:
        def run() -> None:
            with file:
                target(file, *args)

        thread = threading.Thread(target=run, name=f"follow {file.name}", daemon=True)
        thread.start()
        return thread

    def _lines(self, file: BinaryIO, shown: bool) -> None:
        position = 0
        while True:
            last = self._end.wait(self._period)
            with contextlib.suppress(OSError):
                while block := file.read(1 << 16):
                    cut = (
                        len(block)
                        if last
                        else block.rfind(b"\n") + 1 or (len(block) if len(block) == 1 << 16 else 0)
                    )
                    if not cut:
                        break
                    if shown:  # the launcher's next line must not continue an incomplete last one (dots)
                        ending = b"" if block[:cut].endswith(b"\n") or len(block) == 1 << 16 else b"\n"
                        sys.stdout.buffer.write(block[:cut] + ending)
                    if self._judge is not None:
                        self._judge(block[:cut].decode(errors="replace"))
                    position += cut
                    file.seek(position)
                    if shown:
                        sys.stdout.buffer.flush()
            if last:
                return

    def _copied(self, file: BinaryIO) -> None:
        """Append the growing log to the copy until `end` is called.

        The copy is opened at once and stays open: the next attempt renames it, and then has its own file at this path.
        After a failed write it is opened again only if it still has its path; if not, the open file is written again.
        """
        copy: BinaryIO | None = None
        inode: int | None = None
        with contextlib.suppress(OSError):  # opened again below
            copy, inode = self._open_copy(inode)
        position, give_up = 0, float("inf")
        while time.monotonic() < give_up:
            last = self._end.wait(8 * self._period)
            if last and give_up == float("inf"):
                give_up = time.monotonic() + LATE_SECONDS
            try:
                file.seek(position)
                while block := file.read(1 << 20):
                    if copy is None:
                        copy, inode = self._open_copy(inode)
                    copy.seek(position)  # an earlier write may have failed half way
                    position += copy.write(block) or 0
                    file.seek(position)
            except OSError:
                with contextlib.suppress(OSError):
                    failed = copy
                    # Raises while the storage fails; then `copy` is tried again.
                    copy, inode = self._open_copy(inode)
                    if failed is not None:
                        failed.close()
                time.sleep(self._period)
                continue
            if last:
                break
        if copy is not None:
            with contextlib.suppress(OSError):
                copy.close()

    def _open_copy(self, inode: int | None) -> tuple[BinaryIO, int]:
        """Create the copy, or open it again if it has been created with this inode; return it and its inode.

        Raises OSError if the storage fails, or if the next attempt's file is at the path.
        """
        assert self._copy is not None  # noqa: S101 - __init__ looked
        self._copy.parent.mkdir(parents=True, exist_ok=True)
        mode: Literal["r+b", "xb", "wb"] = "r+b" if inode else "xb" if self._end.is_set() else "wb"
        copy = self._copy.open(mode, buffering=0)
        found = os.fstat(copy.fileno()).st_ino
        if inode not in (None, found):
            copy.close()
            raise FileExistsError(f"{self._copy} is the log of another attempt")
        return copy, found

    def end(self) -> None:
        """Tell the threads, after the child has exited, to copy the rest of the log and exit; `join` waits for that."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait until the threads have exited, at most `seconds` for each of them."""
        for thread in self._threads:
            thread.join(seconds)
