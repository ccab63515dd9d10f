"""Tests of forking a process that has threads, none of which may hold a lock at that moment.

Each test runs in its own process, because pytest's process has threads of Paddle that never pause.
"""

from __future__ import annotations

import re

from .conftest import run_python

IMPORTS = """
import hashlib, os, threading, time
from launcher.trainer import fork_server

BUSY = bytes(1 << 21)  # some milliseconds to hash, without Python's own lock
"""


def test_a_forked_process_has_no_lock_held_by_a_thread_of_its_parent() -> None:
    script = """
lock = threading.Lock()

def sample():  # as bvar's sampler, only more often
    while True:
        time.sleep(0.01)
        with lock:
            hashlib.sha256(BUSY)

threading.Thread(target=sample, daemon=True).start()
held = 0
for _ in range(100):
    pid = fork_server.fork_while_alone()
    if pid == 0:
        os._exit(0 if lock.acquire(blocking=False) else 9)
    held += os.waitpid(pid, 0)[1] != 0
print("held in", held)
"""
    assert run_python(IMPORTS + script) == "held in 0\n"


def test_a_process_whose_threads_never_pause_does_not_fork_and_reports_it() -> None:
    script = """
def work():
    while True:
        hashlib.sha256(BUSY)

threading.Thread(target=work, daemon=True).start()
fork_server.QUIET_SECONDS = 0.2
try:
    fork_server.fork_while_alone()
except OSError as error:
    print(error)
"""
    message = run_python(IMPORTS + script)
    assert re.match(
        r"cannot fork process \d+: whenever it tried during 0\.2 s, another of its threads was .* Fix: ",
        message,
    )
