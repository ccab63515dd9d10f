"""The lease on output/, the file run.lock: only the run whose rank 0 holds the lease may write to the output.

States of run.lock, and what a pod that wants the lease does (lock_… are the fields of `Timings`):

    absent                               ── create with link(2)      ──▶ held by this pod
    held by this pod                     ── renew in place           ──▶ held by this pod
    held by this pod                     ── release                  ──▶ absent
    held by another pod, which renews it ── wait for lock_wait plus  ──▶ error; TwinError if both pods belong
                                            that pod's grace period      to one run
    held by another pod, which has not   ── replace with rename(2)   ──▶ held by this pod, if the file still
    renewed it for lock_stale                                            contains its token after lock_settle

Clocks of two machines are never compared: a waiter observes by its own clock whether the content changes.

- **In place.** A renewal overwrites the same bytes of the same inode. The name therefore refers to one file while one
  holder lives, and names that other nodes have cached stay valid. A renewal needs no new block, so a full disk does not
  end the lease (except on a copy-on-write file system). Two contents of one holder differ only in the digits of the
  beat, the number of renewals, so a read during a write still finds a valid lease.
- **Created by link(2)**, which fails if the name exists. On NFS the server answers this call, and the answer also
  invalidates the name that this node has cached. So a waiter calls link(2) before it treats a lease as expired.
- **Taken over by rename.** The old holder may still write to the file that it has open. After the rename that file has
  no name any more, so a late write of the old holder does not change the new run.lock. Several waiters may rename at
  once: the last rename stays, and after `lock_settle` the other waiters read a token that is not their own. This is
  Fischer's algorithm. The algorithm requires that a waiter renames within `lock_settle` after its last read of the
  file. A waiter that took longer waits for another `lock_lease` before it reads the token.
- **Expires by itself.** The holder's lease expires `lock_lease` after the start of its last successful renewal. A
  thread that uses no storage ends the lease at that time, so a hung mount cannot delay the end. A holder that has lost
  its lease does not write or remove run.lock again. Another run writes to the output only `lock_stale` + `lock_settle`
  after the start of that renewal. In the seconds between, the holder notifies all ranks, and they kill their child
  processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.errors import DeadlineError, LauncherError, TwinError, UnfitError
from launcher.io import files
from launcher.log import log
from launcher.settings import TrainSettings
from launcher.supervisor.timings import Timings

_LONGEST = 1 << 14  # bytes; a lease has about 300
MAX_GRACE_SECONDS = 3600  # of the chart's training.terminationGracePeriodSeconds


class LeaseLostError(UnfitError):
    """This run has lost the lease, or may have lost it.

    The lease expired, another run took the lease or created output/, run.lock was removed, or this pod itself released
    the lease.
    """


class OutputLease:
    """Acquires the lease on one output folder for rank 0's launcher, renews it in a thread, and releases it."""

    def __init__(
        self,
        path: Path,
        settings: TrainSettings,
        timings: Timings,
        *,
        token: str,
        address: str = "",
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the object for the lease file `path`; it touches no file before `acquire`.

        Args:
            settings: contain the names of this run and this pod, which are written to the file.
            token: the hash of the credential with which this run's other ranks authenticate. Every pod has its own
                token, even two pods of one run.
            address: IP address at which this run's other ranks reach this pod.
            clock: returns the monotonic time.
            pause: waits for a number of seconds.
        """
        self.path, self._settings, self.timings = path, settings, timings
        self.token, self._address = token, address
        self.pause, self._clock = pause, clock
        self._beat = 0
        self._renewed = clock()
        """Clock time at the start of the last successful renewal. Until `lock_stale` later, no other pod takes over the
        lease."""
        self._failure: Exception | None = None
        """Why the last renewal failed."""
        self._error: LauncherError | None = None
        self._ends = threading.Lock()
        self._still = threading.Lock()
        self._end = threading.Event()
        self._renewer = threading.Thread(target=self._renew_on, name="run.lock", daemon=True)
        self._lost: Callable[[LauncherError], None] = lambda _: None
        self._after_renewal: Callable[[], None] = lambda: None

    @property
    def is_lost(self) -> bool:
        """Return whether this pod has lost the lease, or may have lost it.

        If so, this pod must not write to the output any more.
        """
        return self._error is not None

    def check(self) -> None:
        """Raise an error if the lease was lost or released. Call this before each write to the output."""
        if self._error is not None:
            raise self._error
        if self._end.is_set():
            raise LeaseLostError(f"{self.path} was released by this pod, which writes nothing more")

    def acquire(self, *, yields: bool = False) -> bool:
        """Wait until this process holds the lease, and return True.

        With `yields`, return False as soon as this function sees that another pod of this run has renewed the lease.

        Raises:
            DeadlineError: a pod of another run holds the lease and keeps renewing it.
            TwinError: another pod of this run holds the lease and keeps renewing it.
            StorageError, StorageFailedError: run.lock cannot be read; it is not overwritten.
        """
        began = self._clock()
        seen: bytes | None = None
        seen_at = began
        is_logged = False
        while True:
            now = self._clock()
            current = files.read_bytes(self.path, self.pause)
            if current is None:
                if self._create():
                    return True
            elif current != seen:
                if yields and seen is not None and self._is_of_this_run(current):
                    return False
                # The clock is read again, because a slow read may have seen the content only at its end.
                seen, seen_at = current, self._clock()
            elif now - seen_at >= self.timings.lock_stale and self._take_over(current):
                return True
            limit = self.timings.lock_wait + _grace_seconds(seen, self._settings.grace_seconds)
            if now - began >= limit:
                raise self._refusal(seen, limit)
            if not is_logged and seen is not None:
                log.info("waiting for %s to release %s, up to %g s", _who(seen), self.path, limit)
                is_logged = True
            self.pause(self.timings.poll)

    def _is_of_this_run(self, content: bytes) -> bool:
        holder = _parsed(content) or {}
        ours = self._settings.run_id, self._settings.namespace
        return (holder.get("runId"), holder.get("namespace")) == ours and _token(content) != self.token

    def _refusal(self, seen: bytes | None, waited: float) -> LauncherError:
        other, s = _parsed(seen) or {}, self._settings
        text = (
            f"{self.path} is still held by {_who(seen)}, which is alive (it renewed the lease while this run "
            f"waited {waited:.0f} s)"
        )
        if other.get("runId") == s.run_id:
            return TwinError(
                f"{text}. It is another pod of this run, so this one exits; the run continues. Fix: if a "
                "pod was deleted by force while its node cannot be reached, it still runs: power that node off."
            )
        own = s.release, s.namespace
        if (other.get("release"), other.get("namespace")) != own:
            return DeadlineError(
                f"{text}. Two live releases cannot write one output: release {own[0]} in namespace {own[1]} "
                f"has the same jobName {s.job_name!r} on the same storage. Fix: set another "
                "jobName, or uninstall the other release first."
            )
        # `stop` would act on the release's newest Job, which is usually the one that waits here.
        job = other.get("runId")
        stop = f"kubectl delete job {job} -n {own[1]}" if job else f"delete its Job in namespace {own[1]}"
        return DeadlineError(f"{text}. Fix: stop that run first: {stop}")

    def _content(self) -> bytes:
        """Return the content of run.lock for the next renewal: one line of JSON.

        The line contains the number of renewals (the beat) with leading zeros, so that its length does not change.
        """
        self._beat += 1
        s = self._settings
        ours: dict[str, object] = {"runId": s.run_id, "namespace": s.namespace, "release": s.release}
        ours |= {"pod": s.pod_name, "token": self.token, "address": self._address}
        ours |= {"graceSeconds": s.grace_seconds}
        return f'{json.dumps(ours)[:-1]}, "beat": "{self._beat:012}"}}\n'.encode()

    def _create(self) -> bool:
        """Create run.lock if it is absent; return whether this process holds the lease now."""
        return files.retry_storage(self.path, self._link, self.pause)

    def _link(self) -> bool:
        temp = files.temporary_path(self.path)
        now = self._clock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.write_to(temp)
            os.link(temp, self.path)
        except (FileExistsError, FileNotFoundError):  # NotFound: the folder was moved aside at this moment
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
            "run.lock of %s was not renewed for %g s: taking it over", _who(stale), self.timings.lock_stale
        )
        if not self._did(lambda: self.write_to(self.path)):
            return False
        in_time = self._clock() - looked < self.timings.lock_settle
        self.pause(self.timings.lock_settle + (0 if in_time else self.timings.lock_lease))
        self._renewed = self._clock()
        return self._did(self.renew)

    def _did(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except (FileNotFoundError, UnfitError, files.UnreadableError) as error:
            log.info("the lease on the output could not be taken over, trying again: %s", error)
            return False
        return True

    def write_to(self, path: Path) -> None:
        """Write the content of run.lock, which says that this process holds the lease, to the file `path`.

        `path` is run.lock itself if this process takes over an expired lease. It is a file in another folder if that
        folder is about to become output/. The file is written atomically, and replaces an existing one.
        """
        files.write_atomically(path, self._content())

    @contextlib.contextmanager
    def pause_renewals(self) -> Iterator[None]:
        """Prevent renewals inside the `with` block, so that output/ can be replaced by another folder.

        The lease may expire in the meantime. Before and after the block, this raises an error if the lease was lost.
        """
        with self._still:
            self.check()
            yield
            self.check()

    def start_renewing(
        self, lost: Callable[[LauncherError], None], renewed: Callable[[], None] = lambda: None
    ) -> None:
        """Start two threads: one renews the lease, the other ends the lease when it expires.

        Args:
            lost: called once, in one of these threads, when the lease is lost or may be lost; receives the cause.
            renewed: called after each renewal. If it raises an error, it is only called again after the next renewal.
        """
        self._lost, self._after_renewal = lost, renewed
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
        """Wait until the lease expires, and then treat it as lost; return without that if the lease ends earlier.

        This thread uses no storage, so a hung mount cannot block it.
        """
        while (left := self._left()) > 0:
            if self._end.wait(left):
                return
        self._lose(
            LeaseLostError(
                f"{self.path} could not be renewed for {self.timings.lock_lease:g} s "
                f"({self._failure or 'the storage does not respond'}): another run may take the output, so "
                "this pod stops writing and exits, and Kubernetes replaces it. Fix: check that the volume is still "
                "mounted and writable."
            )
        )

    def _renew_on(self) -> None:
        while not self._end.wait(self.timings.lock_beat):
            try:
                with self._still:
                    self.renew()
                self._after_renewal()
            except LeaseLostError as error:
                self._lose(error)
            except Exception as error:  # any failed renewal is retried until the lease expires
                self._failure = error
        self._remove()

    def renew(self) -> None:
        """Check that run.lock still contains the lease of this pod, then renew the lease once by writing to the file.

        If the lease has expired or was lost, this only checks the file and does not write to it.

        Raises:
            LeaseLostError: the file was removed, or contains the lease of another holder.
            UnreadableError: the file is damaged, because it contains no lease, or a lease of another length.
            StorageError, StorageFailedError: the file cannot be read or written.
        """
        began = self._clock()
        with files.storage_errors(self.path):
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except files.NOT_FOUND as error:
                raise LeaseLostError(
                    f"{self.path}, the lease of this run on the output, was removed, so this pod stops writing and "
                    "exits. Kubernetes replaces it, and the training resumes from the newest checkpoint. Fix: "
                    "nothing to do now; do not remove this file while a run writes there"
                ) from error
            try:
                there = os.pread(fd, _LONGEST, 0)
                content = self._content()
                if _token(there) not in {None, self.token}:
                    raise LeaseLostError(
                        f"{self.path} was taken by {_who(there)}, so this pod stops writing to the output and exits. "
                        "Fix: none if that is another pod of this run; else set another jobName: two live releases "
                        "must not have the same one"
                    )
                if _token(there) is None or len(there) != len(content):
                    raise files.UnreadableError(
                        f"{self.path} contains {len(there)} bytes, which are not the lease that this pod wrote"
                    )
                if self.is_lost or self._left() <= 0:
                    return
                os.pwrite(fd, content, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        self._renewed = began

    def release(self) -> None:
        """Stop renewing the lease, then remove run.lock; from now on `check` raises an error.

        The file is not removed if the lease was lost or has expired, if the file contains another holder's lease, or if
        the file cannot be read.
        """
        self._end.set()
        if self._renewer.ident is None:
            self._remove()
        else:
            self._renewer.join(timeout=self.timings.lock_beat + 5)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            is_own = _token(self.path.read_bytes()) == self.token
            # If no time is left, another pod may have taken over the lease during the read.
            if is_own and not self.is_lost and self._left() > 0:
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


def _grace_seconds(content: bytes | None, default: int) -> int:
    """Return the grace period in seconds in the lease `content`; `default` if `content` has no valid one."""
    found = (_parsed(content) or {}).get("graceSeconds")
    return found if isinstance(found, int) and 0 <= found <= MAX_GRACE_SECONDS else default


def _who(content: bytes | None) -> str:
    holder = _parsed(content)
    if holder is None:
        return "an unknown pod (the file is damaged)"
    return (
        f"run {holder.get('runId')} (release {holder.get('release')}, namespace {holder.get('namespace')}, "
        f"pod {holder.get('pod')})"
    )


def read_lease_holder(path: Path, sleep: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Return the JSON object in the lease file `path` (keys such as token, address); {} if absent or damaged.

    `sleep` waits between retries while the storage fails.

    Raises:
        StorageError, StorageFailedError: the file cannot be read.
    """
    return _parsed(files.read_bytes(path, sleep)) or {}


def build_credential(settings: TrainSettings, secret: str) -> str:
    """Return the credential with which ranks of this run authenticate to rank 0's HTTP server.

    It contains the random secret that rank 0 writes to `JobPaths.run_secret`, which only the user of the pods can read.
    """
    return f"{settings.namespace}/{settings.run_id}/{secret}"


def hash_credential(credential: str) -> str:
    """Return the hash of a credential, which is the token of the output lease.

    run.lock and run.json contain the token, and everybody may read these files.
    """
    return hashlib.sha256(credential.encode()).hexdigest()[:32]


def write_secret(path: Path, secret: str) -> None:
    """Write `secret`, the secret of the run that holds the output lease, to the file `path` if it is not there already.

    The file is overwritten in place: NFS clients may cache the name for up to a minute, and would open an earlier file
    under this name. The holder of the lease calls this again and again, because a pod that lost the lease may overwrite
    the file with a late write.
    """
    if files.read_bytes(path) == secret.encode():
        return
    with files.storage_errors(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)  # of a file that somebody else created
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
