"""One writer per output: `output/run.lock` (DESIGN, decision 7).

The lock is a small JSON file with the run, its release and a beat that its holder renews. Nobody compares
clocks of two machines: a waiter looks whether the file changes while its own clock runs.

An absent lock is taken by link(2), which fails if the name exists, also on NFS. A stale one is overwritten,
and trusted only when it is still ours after a pause that is longer than what a rival needs between its last
look and its own writing (Fischer's algorithm): of several takers the last writer wins, the others see it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import DeadlineError, GangError, LauncherError, StorageError
from launcher.gang.log import log
from launcher.gang.timings import Timings


class LockLostError(GangError):
    """Another run took the output while this one was writing."""


@dataclass(frozen=True)
class Holder:
    """Who holds, or wants, a lock."""

    run_id: str
    namespace: str
    release: str
    job_name: str
    pod: str
    token: str
    """Random: tells two pods of one run apart."""

    def content(self, beat: int) -> dict[str, Any]:
        return {
            "runId": self.run_id,
            "namespace": self.namespace,
            "release": self.release,
            "pod": self.pod,
            "token": self.token,
            "beat": beat,
        }


class RunLock:
    """The lock of one output folder, as rank 0's launcher uses it."""

    def __init__(
        self,
        path: Path,
        holder: Holder,
        timings: Timings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path, self.holder = path, holder
        self.timings, self._clock, self._pause = timings, clock, pause
        self._beat = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Waits until the lock is ours. Raises `DeadlineError` when another live run keeps it."""
        began = self._clock()
        deadline = began + self.timings.lock_wait
        seen: dict[str, Any] | None = None
        seen_at = began
        told = False
        while not self._create():
            now = self._clock()
            current = files.read_json(self.path)
            if current != seen or (current is None and not self.path.exists()):
                seen, seen_at = current, now
            elif now - seen_at >= self.timings.lock_stale:
                log.info(
                    "run.lock of %s has not changed for %.0f s: taking it over", _who(seen), now - seen_at
                )
                if self._take_over():
                    return
                seen_at = self._clock()
            if now >= deadline:
                raise DeadlineError(self._refusal(seen))
            if not told and seen is not None:
                log.info("waiting for %s to release %s, up to %.0f s", _who(seen), self.path, deadline - now)
                told = True
            self._pause(self.timings.poll)

    def _refusal(self, seen: Mapping[str, Any] | None) -> str:
        other = (seen or {}).get("release"), (seen or {}).get("namespace")
        own = self.holder.release, self.holder.namespace
        text = (
            f"{self.path} is still held by {_who(seen)}, which is alive (it renewed the lock while this run "
            f"waited {self.timings.lock_wait:.0f} s)"
        )
        if other != own:
            return (
                f"{text}. Two live releases cannot write one output: release {own[0]} in namespace "
                f"{own[1]} has the "
                f"same jobName {self.holder.job_name!r} on the same storage. Set another jobName, or remove "
                "the other release first."
            )
        return f"{text}. Remove that run first (kubectl delete job {(seen or {}).get('runId')})."

    def _content(self) -> dict[str, Any]:
        self._beat += 1
        return self.holder.content(self._beat)

    def _create(self) -> bool:
        temp = files.temp_name(self.path)
        with files.storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(temp, self._content())
            try:
                os.link(temp, self.path)
            except FileExistsError:
                return False
            except FileNotFoundError:  # the folder was moved aside at this moment
                return False
            finally:
                with contextlib.suppress(OSError):
                    temp.unlink()
        return True

    def _take_over(self) -> bool:
        self.write()
        self._pause(self.timings.lock_settle)
        return self.is_ours()

    def write(self) -> None:
        """Writes our content, whatever is there."""
        with contextlib.suppress(FileNotFoundError):
            files.write_json(self.path, self._content())

    def is_ours(self) -> bool:
        """Whether the file says that we hold it."""
        current = files.read_json(self.path)
        return current is not None and current.get("token") == self.holder.token

    def keep(self, failed: Callable[[LauncherError], None]) -> None:
        """Renews the lock from a thread; `failed` is called once if another run has taken it."""
        self._thread = threading.Thread(target=self._renew, args=(failed,), name="run.lock", daemon=True)
        self._thread.start()

    def _renew(self, failed: Callable[[LauncherError], None]) -> None:
        last_ours = self._clock()
        while not self._end.wait(self.timings.lock_beat):
            try:
                current = files.read_json(self.path)
                if current is not None and current.get("token") != self.holder.token:
                    failed(
                        LockLostError(f"{self.path} was taken by {_who(current)}: this run must not write on")
                    )
                    return
                if current is None and not self.path.parent.exists():
                    failed(LockLostError(f"{self.path.parent} was removed while this run was writing to it"))
                    return
                files.write_json(self.path, self._content())
                last_ours = self._clock()
            except (StorageError, OSError) as error:
                # A full disk frees again and an NFS server comes back; but beyond `lock_stale` another run
                # may rightly have taken over.
                if self._clock() - last_ours > self.timings.lock_stale:
                    failed(StorageError(f"cannot renew {self.path}: {error}"))
                    return

    def release(self) -> None:
        """Stops renewing and removes the lock, if it is ours."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=self.timings.lock_beat + 5)
        if self.is_ours():
            with contextlib.suppress(OSError):
                self.path.unlink()


def _who(content: Mapping[str, Any] | None) -> str:
    if not content:
        return "an unreadable holder"
    return (
        f"run {content.get('runId')} (release {content.get('release')}, namespace "
        f"{content.get('namespace')}, "
        f"pod {content.get('pod')})"
    )


def holder_text(path: Path) -> str:
    """Who holds the lock at `path`, for messages."""
    return _who(files.read_json(path))
