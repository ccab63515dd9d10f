"""Tests of the lease on an output folder: acquiring, renewing, expiry and loss."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.errors import DeadlineError, LauncherError, StorageFailedError, TwinError
from launcher.io import files
from launcher.settings import TrainSettings
from launcher.supervisor.shared_storage.output_lease import (
    LeaseLostError,
    OutputLease,
    read_lease_holder,
)
from launcher.supervisor.timings import Timings
from testkit.pod_settings import pod_environ
from tests.launcher.supervisor.failing_calls import fail_calls
from tests.launcher.supervisor.fake_clock import FakeClock

SHORT = replace(Timings(), lock_beat=0.02, lock_lease=0.3, lock_stale=0.6, lock_settle=0.05, poll=0.01)


SETTINGS = replace(TrainSettings.from_environ(pod_environ()), namespace="ns", job_name="job")


def build_lease(
    path: Path, run: str, release: str = "r", pod: str = "0", grace: int = 110, **more: Any
) -> OutputLease:
    """Return the lease of a pod of a run, with short periods; `more` are other arguments of `OutputLease`."""
    own = {"k8s_job": run, "release": release, "pod_name": f"{run}-{pod}", "grace_seconds": grace}
    settings, token = replace(SETTINGS, **own), f"token-{run}-{pod}"
    return OutputLease(path, settings, **{"timings": SHORT, "token": token, **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output" / "run.lock"


class Pods:
    """Pods that hold or want one lease file, with the product's periods on a fake clock. `first` of run a holds it."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, FakeClock()
        self.first = self.lease("a")
        self.first.acquire()

    def lease(self, *args: Any, **more: Any) -> OutputLease:
        """Return the lease of `build_lease(*args, **more)` with the product's periods."""
        own = {"timings": Timings(), "clock": self.clock, "pause": self.clock.pause}
        return build_lease(self.path, *args, **own, **more)

    @property
    def token(self) -> str | None:
        """The token in the lease file."""
        return read_token(self.path)


@pytest.fixture
def pods(path: Path) -> Pods:
    return Pods(path)


def renewals(held: OutputLease, until: int, since: int = 2) -> list[tuple[float, object]]:
    """Return a renewal every two seconds as (second, function) for the fake clock."""
    return [(float(second), held.renew) for second in range(since, until, 2)]


class LossRecorder:
    """Record the errors that `start_renewing` reports."""

    def __init__(self) -> None:
        self.errors: list[LauncherError] = []
        self.reported = threading.Event()

    def __call__(self, error: LauncherError) -> None:
        self.errors.append(error)
        self.reported.set()


def start_renewed_lease(path: Path) -> tuple[OutputLease, LossRecorder]:
    """Return an acquired lease with short periods that a real thread renews, and its recorder of losses."""
    held, lost = build_lease(path, "a"), LossRecorder()
    held.acquire()
    held.start_renewing(lost)
    return held, lost


# -- acquiring


def read_token(path: Path, sleep: Callable[[float], None] = time.sleep) -> str | None:
    """Return the token in the lease file, or None."""
    return read_lease_holder(path, sleep).get("token")


def test_acquire_waits_while_the_lease_is_renewed_until_it_is_released(pods: Pods) -> None:
    second = pods.lease("b")
    pods.clock.at = [*renewals(pods.first, 30), (31.0, pods.first.release)]
    second.acquire()
    assert 31 <= pods.clock.now < 33
    assert pods.token == second.token


@pytest.mark.parametrize(
    ("waiter", "error", "text"),
    [
        (("b", "other"), DeadlineError, "still held by run a .*same jobName 'job'"),
        (("b",), DeadlineError, "Fix: stop that run first: kubectl delete job a -n ns"),
        (("a", "r", "new"), TwinError, "another pod of this run"),
    ],
    ids=["another release", "another run", "another pod"],
)
def test_acquire_raises_at_its_deadline_if_another_pod_renews_the_lease(
    pods: Pods, waiter: Any, error: Any, text: str
) -> None:
    pods.clock.at = renewals(pods.first, 400)
    with pytest.raises(error, match=text):
        pods.lease(*waiter).acquire()
    assert 180 <= pods.clock.now < 181
    assert pods.token == pods.first.token


@pytest.mark.parametrize("grace", [110, 600])
def test_acquire_waits_for_the_grace_period_of_the_pod_that_holds_the_lease(pods: Pods, grace: int) -> None:
    """The earlier run saves a checkpoint for 400 s after SIGTERM, and renews the lease meanwhile."""
    pods.first.release()
    earlier = pods.lease("a", grace=grace)
    earlier.acquire()
    pods.clock.at = [*renewals(earlier, 400), (401.0, earlier.release)]
    with nullcontext() if grace == 600 else pytest.raises(DeadlineError):
        pods.lease("b", grace=30).acquire()
    assert (pods.clock.now > 400) is (grace == 600)


def test_a_holder_without_run_id_is_reported_without_a_job_to_delete(pods: Pods) -> None:

    def renew(beat: int) -> Callable[[], object]:
        content = {"namespace": "ns", "release": "r", "pod": "0", "token": "t", "beat": str(beat)}
        return lambda: pods.path.write_text(json.dumps(content))

    pods.clock.at = [(float(second), renew(second)) for second in range(2, 400, 2)]
    with pytest.raises(
        DeadlineError, match=r"Fix: stop that run first: delete its Job in namespace ns$"
    ) as caught:
        pods.lease("b").acquire()
    assert "kubectl" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b'{"runId": "a", "tok', b"\0" * 300])
def test_an_expired_lease_is_taken_after_20_s_by_the_waiters_own_clock(
    pods: Pods, content: bytes | None
) -> None:
    if content is not None:
        pods.path.write_bytes(content)
    second = pods.lease("b")
    second.acquire()
    assert 20 <= pods.clock.now < 25
    assert pods.token == second.token


def test_a_slow_read_does_not_count_as_an_expired_lease(pods: Pods) -> None:
    slow = iter([20.0])

    def hang() -> None:
        pods.clock.pause(next(slow, 0))

    pods.clock.at = [*renewals(pods.first, 60), (61.0, pods.first.release)]
    with fail_calls("open", "*/run.lock", then=hang):
        pods.lease("b").acquire()
    assert pods.clock.now >= 61


def test_a_lease_that_cannot_be_read_is_neither_absent_nor_expired(pods: Pods) -> None:
    before = pods.path.read_bytes()
    with fail_calls("open", "*/run.lock", errno.ESTALE), pytest.raises(StorageFailedError):
        pods.lease("b").acquire()
    assert pods.path.read_bytes() == before


def test_acquire_continues_after_a_temporary_storage_error(pods: Pods) -> None:
    pods.clock.at = [(9.0, pods.first.release)]
    with fail_calls("open", "*/run.lock", errno.EIO, times=3) as fault:
        pods.lease("b").acquire()
    assert fault.hits == 3
    assert pods.clock.now >= 9


@pytest.mark.parametrize("at_once", [True, False])
def test_of_two_pods_that_take_an_expired_lease_only_the_last_one_holds_it(pods: Pods, at_once: bool) -> None:
    """The other pod takes it just before this one overwrites it (`at_once`), or just after."""

    def other_pod_takes_lease() -> None:
        other = pods.lease("c")
        other.write_to(pods.path)
        pods.clock.at = renewals(other, 400, int(pods.clock.now) + 2)

    pods.clock.at = [] if at_once else [(21.0, other_pod_takes_lease)]
    before = fail_calls("link", "*", times=1, then=other_pod_takes_lease) if at_once else nullcontext()
    with before, pytest.raises(DeadlineError, match="still held by run c") as caught:
        pods.lease("b").acquire()
    assert "Fix: stop that run first: kubectl delete job c -n ns" in str(caught.value)
    assert pods.token == pods.lease("c").token


def test_a_pod_whose_rename_was_late_waits_until_the_earlier_holder_has_noticed(pods: Pods) -> None:
    earlier, late = pods.lease("b"), pods.lease("c")

    def hang() -> None:
        earlier.acquire()  # during the slow rename of the late pod
        seen.append(pods.clock.now)

    seen: list[float] = []
    with fail_calls("replace", f"{pods.path.parent}/.run.lock.*", times=1, then=hang):
        late.acquire()
    assert pods.token == late.token
    assert pods.clock.now - seen[0] >= Timings().lock_lease, (
        "the earlier holder may have trusted its lease for so long"
    )
    with pytest.raises(LeaseLostError, match="was taken by run c"):
        earlier.renew()


# -- renewing


def test_a_renewal_changes_the_content_but_neither_inode_nor_length(pods: Pods) -> None:
    before, content = pods.path.stat(), pods.path.read_bytes()
    for _ in range(12):
        pods.first.renew()
        assert pods.path.read_bytes() != content
        content = pods.path.read_bytes()
        json.loads(content)
    assert (pods.path.stat().st_ino, pods.path.stat().st_size) == (before.st_ino, before.st_size)


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
@example(99, 100)
def test_a_read_that_mixes_two_renewals_has_the_holders_token(a: int, b: int) -> None:
    held = build_lease(Path("run.lock"), "a")
    held._beat = a - 1
    one = held._content()
    held._beat = b - 1
    other = held._content()
    assert (a == b) == (one == other)
    for cut in range(len(one)):
        assert json.loads(one[:cut] + other[cut:])["token"] == "token-a-0"


def test_a_lease_can_be_renewed_on_a_full_disk(pods: Pods) -> None:
    content = pods.path.read_bytes()
    with fail_calls("open", "*.tmp", errno.ENOSPC), fail_calls("rename", "*", errno.ENOSPC):
        pods.first.renew()
    assert pods.path.read_bytes() != content


def test_release_removes_the_lease_and_reports_no_loss(path: Path) -> None:
    held, lost = start_renewed_lease(path)
    held.release()
    assert not path.exists()
    assert not held.is_lost
    with pytest.raises(LeaseLostError, match="was released by this pod"):
        held.check()
    assert lost.errors == []


@pytest.mark.parametrize("taken", ["before the read", "during the read"])
def test_release_keeps_the_lease_of_another_pod_that_took_it(pods: Pods, taken: str) -> None:
    other = pods.lease("b")

    class SlowPath(type(pods.path)):  # type: ignore[misc]
        def read_bytes(self) -> bytes:
            content = bytes(super().read_bytes())
            pods.clock.pause(30)
            other.write_to(pods.path)
            return content

    if taken == "before the read":
        other.write_to(pods.path)
    else:
        pods.first.path = SlowPath(pods.path)
    pods.first.release()
    assert pods.token == other.token


def test_the_output_folder_can_be_replaced_while_the_lease_is_renewed(path: Path) -> None:
    held, lost = start_renewed_lease(path)
    new = path.parent.with_name("new")
    new.mkdir()
    with held.pause_renewals():
        held.write_to(new / "run.lock")
        path.parent.rename(path.parent.with_name("old"))
        assert not lost.reported.wait(5 * SHORT.lock_beat), "no renewal runs while the file is missing"
        new.rename(path.parent)
    content = path.read_bytes()
    while path.read_bytes() == content:  # the next renewal writes to the new folder
        assert not lost.reported.wait(SHORT.lock_beat)
    held.release()


# -- losing


@pytest.mark.parametrize(
    "error", [0, errno.EIO, errno.ESTALE, errno.EROFS], ids=["hangs", "EIO", "ESTALE", "read-only"]
)
def test_a_lease_that_cannot_be_renewed_is_lost_for_good(path: Path, error: int) -> None:
    held, lost = start_renewed_lease(path)
    back = threading.Event()
    call, then = ("open", lambda: None) if error else ("pwrite", lambda: back.wait() and None)
    with fail_calls(call, "*/run.lock", error, then=then):
        assert lost.reported.wait(10)
        assert [type(each) for each in lost.errors] == [LeaseLostError]
        assert held.is_lost
        back.set()
        held.release()  # waits for the thread and its hanging write, which may still happen
    content = path.read_bytes()
    assert read_token(path) == held.token, "a lost lease file is not removed"
    held.renew()
    assert path.read_bytes() == content, "a lost lease file is not written"
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        files.retry_storage(path, held.check, sleep=lambda wait: pytest.fail(f"tries again in {wait} s"))
    assert len(lost.errors) == 1


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_late_renewal_does_not_change_the_new_holders_lease(path: Path, call: str) -> None:
    held, lost = start_renewed_lease(path)
    hangs, back = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        back.wait(10)

    with fail_calls(call, "*/run.lock", times=1, then=hang):
        assert hangs.wait(10)
        assert lost.reported.wait(10)
        second = build_lease(path, "b")
        second.acquire()
        content = path.read_bytes()
        back.set()
        held.release()  # waits for the thread and its write
    assert path.read_bytes() == content
    assert [type(each) for each in lost.errors] == [LeaseLostError], "the loss is reported once"


@pytest.mark.parametrize("slow", [0, 8], ids=["frozen", "slow"])
def test_a_lease_expires_10_s_after_the_start_of_its_last_renewal(pods: Pods, slow: int) -> None:
    with fail_calls("pwrite", "*/run.lock", then=lambda: pods.clock.pause(slow)):
        pods.first.renew()
    content = pods.path.read_bytes()
    pods.clock.pause(Timings().lock_lease - slow)
    pods.first.renew()
    assert pods.path.read_bytes() == content


def test_a_lease_file_with_other_content_is_not_overwritten_by_a_renewal(pods: Pods) -> None:
    written = pods.path.read_bytes()
    for content in (b"", written[:40], b"\0" * len(written), written + b"{}", written[:-1]):
        pods.path.write_bytes(content)
        with pytest.raises(files.UnreadableError, match=f"contains {len(content)} bytes"):
            pods.first.renew()
        assert pods.path.read_bytes() == content


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "removed"])
def test_a_lease_that_is_taken_or_removed_is_lost_at_the_next_renewal(path: Path, taken: bool) -> None:
    held, lost = start_renewed_lease(path)
    other = build_lease(path, "b")
    if taken:
        other.write_to(path)
    else:
        path.unlink()
    assert lost.reported.wait(10)
    assert isinstance(lost.errors[0], LeaseLostError)
    assert lost.errors[0].exit_code == 71
    held.release()
    assert read_token(path) == (other.token if taken else None)


def test_a_lease_lost_during_a_folder_replacement_raises(path: Path) -> None:
    held, lost = start_renewed_lease(path)
    with pytest.raises(LeaseLostError), held.pause_renewals():  # no renewal for longer than the lease
        assert lost.reported.wait(10)


def test_read_lease_holder_returns_a_token_only_from_a_complete_file(pods: Pods) -> None:
    assert read_token(pods.path.with_name("absent")) is None
    assert pods.token == pods.first.token
    pods.path.write_bytes(pods.path.read_bytes()[:40])
    assert pods.token is None
    with fail_calls("open", "*/run.lock", errno.EIO), pytest.raises(StorageFailedError):
        read_token(pods.path, lambda _: None)
