"""One writer per output: `output/run.lock`, a lease that its holder renews (DESIGN, decision 7).

    absent ── link(2) ──▶ ours ── a beat, written in place ──▶ ours … ── release ──▶ absent
    of another, and it changes ── lock_wait ──▶ refused (of the same run: a twin)
    of another, unchanged for lock_stale ── rename over it, lock_settle ──▶ ours, if it is still our token

Nobody compares clocks of two machines: a waiter looks whether the content changes while its own clock runs.

- **In place.** A beat overwrites as many bytes of the same inode. So the name means one file as long as one
  holder lives, and no other node's cached name goes stale; and no new block is needed, so a full disk ends
  no lease (but on a copy-on-write file system). Contents differ in the digits of the beat alone, so that a
  torn read is still a whole lock.
- **Created by link(2)**, which fails if the name exists, also on NFS, where the answer is the server's own
  and makes this node forget what it believed about the name: a waiter tries it before it calls a lock stale.
- **Taken over by rename.** What the old holder's hanging write does later, it does to a file without a name.
  Of several takers the last has it and the others see that, if none needs longer than `lock_settle` from its
  last look to its own rename (Fischer's algorithm); one that does waits until an earlier one has seen it.
- **The lease ends by itself.** A thread that touches no storage ends it `lock_lease` after the beginning of
  the last renewal that succeeded, whatever the mount does. A lost lock stays lost: it is never written nor
  removed again. Nobody else writes to the output before `lock_stale` + `lock_settle` after the same moment:
  17 - 10 = 7 s are left for the order to reach all ranks and their children to be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import DeadlineError, LauncherError, TwinError, UnfitError
from launcher.reporting.log import log
from launcher.timings import Timings

_LONGEST = 1 << 14  # bytes; a lock has some 300


class LockLostError(UnfitError):
    """Another holder took the output or may have, or it was removed, while this one was writing."""


@dataclass(frozen=True)
class Holder:
    """Who holds, or wants, a lock."""

    run_id: str
    namespace: str
    release: str
    job_name: str
    pod: str
    token: str
    """Random: tells two pods of one run apart, and lets this run's other ranks in."""
    address: str = ""
    """Where this run's other ranks find it."""

    def content(self, beat: int) -> bytes:
        """One line of JSON, as long as any other of this holder."""
        own = {"runId": self.run_id, "namespace": self.namespace, "release": self.release, "pod": self.pod}
        own |= {"token": self.token, "address": self.address}
        return f'{json.dumps(own)[:-1]}, "beat": "{beat:012}"}}\n'.encode()


class RunLock:
    """The lock of one output folder, as rank 0's launcher uses it.

    `pause` gets seconds, and may raise to end a wait.
    """

    def __init__(
        self,
        path: Path,
        holder: Holder,
        timings: Timings,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path, self.holder, self.timings = path, holder, timings
        self.pause, self._clock = pause, clock
        self._beat = 0
        self._renewed = clock()
        """When the last renewal that succeeded began: it is not stale before `lock_stale` after that."""
        self._failure: Exception | None = None
        """Why the newest renewal did not succeed."""
        self._error: LauncherError | None = None
        self._ends = threading.Lock()
        self._still = threading.Lock()
        self._end = threading.Event()
        self._renewer = threading.Thread(target=self._renew_on, name="run.lock", daemon=True)
        self._lost: Callable[[LauncherError], None] = lambda _: None

    @property
    def token(self) -> str:
        """What stands in the lock while it is ours."""
        return self.holder.token

    @property
    def is_lost(self) -> bool:
        """Whether it was ours and is not for sure any more: then nothing may be written to the output."""
        return self._error is not None

    def check(self) -> None:
        """Raises why the lock was lost, if it was: to be called before each writing to the output."""
        if self._error is not None:
            raise self._error

    def acquire(self) -> None:
        """Waits until the lock is ours.

        Raises `DeadlineError` when another live run keeps it, `TwinError` when another pod of this run does,
        and what `files.storage` makes of a lock that cannot be read: it is not overwritten.
        """
        began = self._clock()
        seen: bytes | None = None
        seen_at = began
        told = False
        while True:
            now = self._clock()
            current = files.read_bytes(self.path, self.pause)
            if current is None:
                if self._create():
                    return
            elif current != seen:
                seen, seen_at = current, self._clock()  # a slow read may have seen it only at its end
            elif now - seen_at >= self.timings.lock_stale and self._take_over(current):
                return
            if now - began >= self.timings.lock_wait:
                raise self._refusal(seen)
            if not told and seen is not None:
                log.info(
                    "waiting for %s to release %s, up to %g s", _who(seen), self.path, self.timings.lock_wait
                )
                told = True
            self.pause(self.timings.poll)

    def _refusal(self, seen: bytes | None) -> LauncherError:
        other = _parsed(seen) or {}
        text = (
            f"{self.path} is still held by {_who(seen)}, which is alive (it renewed the lock while this run "
            f"waited {self.timings.lock_wait:.0f} s)"
        )
        if other.get("runId") == self.holder.run_id:
            return TwinError(
                f"{text}. It is another pod of this very run and leads it, so this one ends, and nothing "
                "failed. A pod that was deleted by force lives on while its node cannot be reached: switch "
                "that node off."
            )
        own = self.holder.release, self.holder.namespace
        if (other.get("release"), other.get("namespace")) != own:
            return DeadlineError(
                f"{text}. Two live releases cannot write one output: release {own[0]} in namespace {own[1]} "
                f"has the same jobName {self.holder.job_name!r} on the same storage. Set another jobName, or "
                "remove the other release first."
            )
        return DeadlineError(f"{text}. Remove that run first (kubectl delete job {other.get('runId')}).")

    def _content(self) -> bytes:
        self._beat += 1
        return self.holder.content(self._beat)

    def _create(self) -> bool:
        """Whether the name was free, and is ours now."""
        return files.patient(self.path, self._link, self.pause)

    def _link(self) -> bool:
        temp = files.temp_name(self.path)
        now = self._clock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.plant(temp)
            os.link(temp, self.path)
        except (FileExistsError, FileNotFoundError):  # the latter: the folder was moved aside at this moment
            return False
        finally:
            with contextlib.suppress(OSError):
                temp.unlink()
        self._renewed = now
        return True

    def _take_over(self, stale: bytes) -> bool:
        if self._create():
            return True
        looked = self._clock()
        if files.read_bytes(self.path, self.pause) != stale:
            return False
        log.info(
            "run.lock of %s has not changed for %g s: taking it over", _who(stale), self.timings.lock_stale
        )
        if not self._did(lambda: self.plant(self.path)):
            return False
        in_time = self._clock() - looked < self.timings.lock_settle
        self.pause(self.timings.lock_settle + (0 if in_time else self.timings.lock_lease))
        self._renewed = self._clock()
        return self._did(self.renew)

    def _did(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except (FileNotFoundError, UnfitError, files.UnreadableError) as error:
            log.info("it could not be taken over, looking again: %s", error)
            return False
        return True

    def plant(self, path: Path) -> None:
        """Puts our lock at `path`, whatever is there: a stale one, or a folder that will be output/."""
        files.write_whole(path, self._content())

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """No renewal happens inside the block, so that the folder may be exchanged; the lease runs on."""
        with self._still:
            self.check()
            yield
            self.check()

    def keep(self, lost: Callable[[LauncherError], None]) -> None:
        """Renews the lock from now on. `lost` is called once, from a thread, when it is not surely ours.

        It gets a `LockLostError`: nothing that is tried again later gets the lock back.
        """
        self._lost = lost
        self._renewer.start()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def _lose(self, error: LauncherError) -> None:
        with self._ends:
            if self._error is not None or self._end.is_set():
                return
            self._error = error
        self._end.set()
        self._lost(error)

    def _left(self) -> float:
        return self._renewed + self.timings.lock_lease - self._clock()

    def _watch(self) -> None:
        """Touches no storage: a hanging mount holds the renewing thread, never this one."""
        while (left := self._left()) > 0:
            if self._end.wait(left):
                return
        self._lose(
            LockLostError(
                f"{self.path} could not be renewed for {self.timings.lock_lease:g} s "
                f"({self._failure or 'the storage does not answer'}): another run may take the output, so "
                "this one writes no more. See whether the volume is still mounted and writable."
            )
        )

    def _renew_on(self) -> None:
        while not self._end.wait(self.timings.lock_beat):
            try:
                with self._still:
                    self.renew()
            except LockLostError as error:
                self._lose(error)
            except Exception as error:  # whatever it is, it was no renewal: the lease decides
                self._failure = error
        self._remove()

    def renew(self) -> None:
        """One beat, or none when the lease is over. Raises `LockLostError`, else as `files.storage` does."""
        began = self._clock()
        with files.storage(self.path):
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except files.ABSENT as error:
                raise LockLostError(f"{self.path} was removed while this run was writing there") from error
            try:
                there = os.pread(fd, _LONGEST, 0)
                content = self._content()
                if _token(there) not in {None, self.token}:
                    raise LockLostError(f"{self.path} was taken by {_who(there)}: this run must not write on")
                if _token(there) is None or len(there) != len(content):
                    raise files.UnreadableError(
                        f"{self.path} holds {there[:60]!r}, which is not what was written"
                    )
                if self.is_lost or self._left() <= 0:
                    return
                os.pwrite(fd, content, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        self._renewed = began

    def release(self) -> None:
        """Stops renewing and removes the lock, unless it was lost, is another's, or cannot be reached."""
        self._end.set()
        if self._renewer.ident is None:
            self._remove()
        else:
            self._renewer.join(timeout=self.timings.lock_beat + 5)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if not self.is_lost and _token(self.path.read_bytes()) == self.token:
                self.path.unlink()


def _parsed(content: bytes | None) -> dict[str, Any] | None:
    try:
        value = json.loads(content or b"")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _token(content: bytes | None) -> str | None:
    token = (_parsed(content) or {}).get("token")
    return token if isinstance(token, str) else None


def _who(content: bytes | None) -> str:
    holder = _parsed(content)
    if holder is None:
        return "an unreadable holder"
    return (
        f"run {holder.get('runId')} (release {holder.get('release')}, namespace {holder.get('namespace')}, "
        f"pod {holder.get('pod')})"
    )


def holder_at(path: Path, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """The lock at `path` (token, address …), as far as this node can see; {} when there is no (whole) lock.

    Raises as `files.read_bytes`.
    """
    return _parsed(files.read_bytes(path, sleep)) or {}
