"""Forking off a process that has threads: none of them may hold anything at that moment."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator

import pytest

from launcher.worker import forks

BUSY = bytes(1 << 24)  # some 10 ms to hash, without Python's own lock
REST = 0.05  # longer than a fork, which takes up to 20 ms where this process has Paddle


@pytest.fixture
def held() -> Iterator[threading.Lock]:
    """A lock that another thread holds again and again while it computes, as bvar's sampler does its own."""
    lock, stop = threading.Lock(), threading.Event()

    def sample() -> None:
        while not stop.wait(REST):
            with lock:
                hashlib.sha256(BUSY)

    thread = threading.Thread(target=sample)
    thread.start()
    yield lock
    stop.set()
    thread.join()


def test_what_is_forked_off_finds_no_lock_held_by_a_thread_that_it_does_not_have(
    held: threading.Lock,
) -> None:
    for _ in range(20):
        pid = forks.fork_alone()
        if pid == 0:
            os._exit(0 if held.acquire(blocking=False) else 9)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_process_whose_threads_never_rest_forks_nothing_off_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "QUIET_SECONDS", 0.2)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            hashlib.sha256(BUSY)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with pytest.raises(OSError, match=r"ran all the time for 0\.2 s"):
            forks.fork_alone()
    finally:
        stop.set()
        thread.join()
