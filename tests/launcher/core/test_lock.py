"""The lease on an output: who gets it, who keeps it, how it ends."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher import files
from launcher.errors import DeadlineError, LauncherError, StorageFailedError, TwinError
from launcher.storage.lock import Holder, LockLostError, RunLock, holder_at
from launcher.timings import Timings
from tests.launcher.core.clock import Clock
from tests.launcher.core.faulty import faulty

SHORT = replace(Timings(), lock_beat=0.02, lock_lease=0.3, lock_stale=0.6, lock_settle=0.05, poll=0.01)


def holder(run: str, release: str = "r", pod: str = "0") -> Holder:
    return Holder(run, "ns", release, "job", f"{run}-{pod}", f"token-{run}-{pod}")


def lock(path: Path, who: Holder, clock: Clock) -> RunLock:
    return RunLock(path, who, Timings(), clock, clock.pause)


def beats(held: RunLock, until: int, since: int = 2) -> list[tuple[float, object]]:
    """One every two seconds."""
    return [(float(second), held.renew) for second in range(since, until, 2)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output" / "run.lock"


class Lost:
    """What `keep` tells."""

    def __init__(self) -> None:
        self.errors: list[LauncherError] = []
        self.told = threading.Event()

    def __call__(self, error: LauncherError) -> None:
        self.errors.append(error)
        self.told.set()


def kept(path: Path, who: Holder) -> tuple[RunLock, Lost]:
    """A lock that real threads renew, with short times."""
    held, lost = RunLock(path, who, SHORT), Lost()
    held.acquire()
    held.keep(lost)
    return held, lost


# -- who gets it


def token_at(path: Path, sleep: Callable[[float], None] = time.sleep) -> str | None:
    return holder_at(path, sleep).get("token")


def test_a_released_lock_is_taken_at_once_and_a_renewed_one_is_waited_for(path: Path) -> None:
    clock = Clock()
    first, second = lock(path, holder("a"), clock), lock(path, holder("b"), clock)
    first.acquire()
    clock.at = [*beats(first, 30), (31.0, first.release)]
    second.acquire()
    assert 31 <= clock.now < 33
    assert token_at(path) == second.token


def test_a_lock_that_another_release_renews_for_ever_is_refused_at_the_deadline(path: Path) -> None:
    clock = Clock()
    first = lock(path, holder("a"), clock)
    first.acquire()
    clock.at = beats(first, 400)
    with pytest.raises(DeadlineError, match=r"still held by run a .*same jobName 'job'"):
        lock(path, holder("b", "other"), clock).acquire()
    assert 180 <= clock.now < 181
    assert token_at(path) == first.token


def test_a_live_pod_of_the_same_run_makes_the_other_a_twin_which_fails_nothing(path: Path) -> None:
    clock = Clock()
    first = lock(path, holder("a"), clock)
    first.acquire()
    clock.at = beats(first, 400)
    with pytest.raises(TwinError, match="another pod of this very run") as caught:
        lock(path, holder("a", pod="new"), clock).acquire()
    assert caught.value.exit_code == 69
    assert token_at(path) == first.token


@pytest.mark.parametrize("content", [None, b"", b'{"runId": "a", "tok', b"\0" * 300])
def test_a_lock_that_nobody_renews_is_taken_after_20_s_of_the_waiters_own_clock(
    path: Path, content: bytes | None
) -> None:
    clock = Clock()
    lock(path, holder("a"), clock).acquire()
    if content is not None:
        path.write_bytes(content)
    second = lock(path, holder("b"), clock)
    second.acquire()
    assert 20 <= clock.now < 25
    assert token_at(path) == second.token


def test_a_slow_read_makes_no_lock_stale(path: Path) -> None:
    clock = Clock()
    first = lock(path, holder("a"), clock)
    first.acquire()
    slow = iter([20.0])

    def hang() -> None:
        clock.pause(next(slow, 0))

    clock.at = [*beats(first, 60), (61.0, first.release)]
    with faulty("open", "*/run.lock", then=hang):
        lock(path, holder("b"), clock).acquire()
    assert clock.now >= 61


def test_a_lock_that_cannot_be_read_is_neither_absent_nor_stale(path: Path) -> None:
    clock = Clock()
    lock(path, holder("a"), clock).acquire()
    before = path.read_bytes()
    with faulty("open", "*/run.lock", errno.ESTALE), pytest.raises(StorageFailedError):
        lock(path, holder("b"), clock).acquire()
    assert path.read_bytes() == before


def test_storage_that_comes_back_lets_the_wait_go_on(path: Path) -> None:
    clock = Clock()
    first = lock(path, holder("a"), clock)
    first.acquire()
    clock.at = [(9.0, first.release)]
    with faulty("open", "*/run.lock", errno.EIO, times=3) as fault:
        lock(path, holder("b"), clock).acquire()
    assert fault.hits == 3
    assert clock.now >= 9


def test_of_two_that_take_a_stale_lock_the_last_has_it_and_the_other_knows(path: Path) -> None:
    clock = Clock()
    lock(path, holder("a"), clock).acquire()

    def rival_writes() -> None:
        """It saw the same stale lock, and writes while the other lets its own writing settle."""
        rival = lock(path, holder("c"), clock)
        rival.plant(path)
        clock.at = beats(rival, 400, 18)

    clock.at = [(16.0, rival_writes)]
    with pytest.raises(DeadlineError, match="still held by run c"):
        lock(path, holder("b"), clock).acquire()
    assert token_at(path) == holder("c").token


def test_a_stale_lock_that_a_rival_has_just_taken_is_left_to_it(path: Path) -> None:
    clock = Clock()
    lock(path, holder("a"), clock).acquire()

    def rival_takes() -> None:
        rival = lock(path, holder("c"), clock)
        rival.plant(path)
        clock.at = beats(rival, 400, 17)

    with faulty("link", "*", times=1, then=rival_takes), pytest.raises(DeadlineError, match="held by run c"):
        lock(path, holder("b"), clock).acquire()
    assert token_at(path) == holder("c").token


def test_a_taker_whose_rename_came_late_waits_until_an_earlier_one_has_seen_it(path: Path) -> None:
    clock = Clock()
    lock(path, holder("a"), clock).acquire()
    earlier, late = lock(path, holder("b"), clock), lock(path, holder("c"), clock)

    def hang() -> None:
        earlier.acquire()  # in the time that the late one's own rename takes
        seen.append(clock.now)

    seen: list[float] = []
    with faulty("replace", f"{path.parent}/.run.lock.*", times=1, then=hang):
        late.acquire()
    assert token_at(path) == late.token
    assert clock.now - seen[0] >= Timings().lock_lease, "the earlier one may have trusted its lock so long"
    with pytest.raises(LockLostError, match="was taken by run c"):
        earlier.renew()


# -- who keeps it


def test_a_beat_changes_the_content_and_neither_inode_nor_length(path: Path) -> None:
    clock = Clock()
    held = lock(path, holder("a"), clock)
    held.acquire()
    before, content = path.stat(), path.read_bytes()
    for _ in range(12):
        held.renew()
        assert path.read_bytes() != content
        content = path.read_bytes()
        json.loads(content)
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
@example(99, 100)
def test_whatever_two_beats_a_torn_read_mixes_it_is_a_lock_of_the_holder(a: int, b: int) -> None:
    one, other = holder("a").content(a), holder("a").content(b)
    assert (a == b) == (one == other)
    for cut in range(len(one)):
        assert json.loads(one[:cut] + other[cut:])["token"] == "token-a-0"


def test_a_full_disk_ends_no_lease(path: Path) -> None:
    held = lock(path, holder("a"), Clock())
    held.acquire()
    content = path.read_bytes()
    with faulty("open", "*.tmp", errno.ENOSPC), faulty("rename", "*", errno.ENOSPC):
        held.renew()
    assert path.read_bytes() != content


def test_releasing_removes_the_lock_and_tells_no_loss(path: Path) -> None:
    held, lost = kept(path, holder("a"))
    held.release()
    assert not path.exists()
    assert not held.is_lost
    assert lost.errors == []


def test_the_folder_can_be_exchanged_while_the_lock_is_kept(path: Path) -> None:
    held, lost = kept(path, holder("a"))
    new = path.parent.with_name("new")
    new.mkdir()
    with held.still():
        held.plant(new / "run.lock")
        path.parent.rename(path.parent.with_name("old"))
        assert not lost.told.wait(5 * SHORT.lock_beat), "no beat finds the name gone"
        new.rename(path.parent)
    content = path.read_bytes()
    while path.read_bytes() == content:  # the next beat is in the new one
        assert not lost.told.wait(SHORT.lock_beat)
    held.release()


# -- how it ends


@pytest.mark.parametrize(
    "error", [0, errno.EIO, errno.ESTALE, errno.EROFS], ids=["hangs", "EIO", "ESTALE", "read-only"]
)
def test_a_lock_that_cannot_be_renewed_is_lost_by_itself_and_for_ever(path: Path, error: int) -> None:
    held, lost = kept(path, holder("a"))
    back = threading.Event()
    call, then = ("open", lambda: None) if error else ("pwrite", lambda: back.wait() and None)
    with faulty(call, "*/run.lock", error, then=then):
        assert lost.told.wait(10)
        assert [type(each) for each in lost.errors] == [LockLostError]
        assert held.is_lost
        back.set()
        held.release()  # waits for the thread, and so for a write that hung: it may still land
    content = path.read_bytes()
    assert token_at(path) == held.token, "a lost lock is not removed"
    held.renew()
    assert path.read_bytes() == content, "nor written again"
    with pytest.raises(LockLostError, match="could not be renewed"):
        files.patient(path, held.check, sleep=lambda wait: pytest.fail(f"tries again in {wait} s"))
    assert len(lost.errors) == 1


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_beat_that_hung_and_lands_late_does_not_touch_the_new_holders_lock(path: Path, call: str) -> None:
    held, lost = kept(path, holder("a"))
    hangs, back = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        back.wait(10)

    with faulty(call, "*/run.lock", times=1, then=hang):
        assert hangs.wait(10)
        assert lost.told.wait(10)
        second = RunLock(path, holder("b"), SHORT)
        second.acquire()
        content = path.read_bytes()
        back.set()
        held.release()  # waits for the thread, and with it for the write
    assert path.read_bytes() == content
    assert [type(each) for each in lost.errors] == [LockLostError], "and the loss is told once"


def test_a_beat_that_took_long_counts_from_its_beginning(path: Path) -> None:
    clock = Clock()
    held = lock(path, holder("a"), clock)
    held.acquire()
    with faulty("pwrite", "*/run.lock", then=lambda: clock.pause(8)):
        held.renew()
    content = path.read_bytes()
    clock.pause(3)
    held.renew()
    assert path.read_bytes() == content, "11 s after its beginning the lease is over"


def test_a_launcher_that_was_frozen_beyond_its_lease_writes_nothing_when_it_wakes(path: Path) -> None:
    clock = Clock()
    held = lock(path, holder("a"), clock)
    held.acquire()
    content = path.read_bytes()
    clock.pause(Timings().lock_lease)
    held.renew()
    assert path.read_bytes() == content


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "removed"])
def test_a_lock_that_is_taken_or_removed_is_lost_at_the_next_beat(path: Path, taken: bool) -> None:
    held, lost = kept(path, holder("a"))
    other = RunLock(path, holder("b"), SHORT)
    if taken:
        other.plant(path)
    else:
        path.unlink()
    assert lost.told.wait(10)
    assert isinstance(lost.errors[0], LockLostError)
    assert lost.errors[0].exit_code == 71
    held.release()
    assert token_at(path) == (other.token if taken else None)


def test_a_loss_inside_an_exchange_of_folders_ends_it(path: Path) -> None:
    held, lost = kept(path, holder("a"))
    with pytest.raises(LockLostError), held.still():  # no beat for longer than the lease
        assert lost.told.wait(10)


def test_the_token_is_what_stands_there_and_only_in_a_whole_lock(path: Path) -> None:
    assert token_at(path) is None
    held = lock(path, holder("a"), Clock())
    held.acquire()
    assert token_at(path) == held.token
    path.write_bytes(path.read_bytes()[:40])
    assert token_at(path) is None
    with faulty("open", "*/run.lock", errno.EIO), pytest.raises(StorageFailedError):
        token_at(path, lambda _: None)
