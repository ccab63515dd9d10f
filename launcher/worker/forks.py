"""`python -m launcher.worker fork-server`: loads Paddle once a pod, and forks its other processes off.

launcher/children.py, `ForkServer`, is the other side. A process is forked off by one between that ends at
once, so that the launcher becomes its parent:

    launcher ── line ──▶ fork server ── fork ──▶ between ── fork ──▶ the process, in its own session
        ◀── its id, once `between` has ended ──┘      ◀── its id ──────┘
                                               └── go, or an end ──▶ becomes what the line says, or ends

What the launcher could not be told of ends by itself. Of the import of Paddle 2.6.2 one thread is left,
bvar's sampler. It starts itself anew in a forked process, but what it had locked stays locked there: a
trainer was seen to wait for that for ever when it left the servers. Hence `fork_alone`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import EXIT_GANG, EXIT_OK

QUIET_SECONDS = 5.0
_WATCHED = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


def fork_alone() -> int:
    """`os.fork()` while no other thread of this process runs: what one holds, nobody frees in the child.

    Whether one ran meanwhile is only known afterwards; then the child is ended and it is tried again. Raises
    `OSError` when that takes longer than QUIET_SECONDS.
    """
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        before = _others()
        if all(state[0].split()[1] == "S" for state in before.values()):
            judged, judge = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(judge)
                if not os.read(judged, 1):
                    os._exit(EXIT_GANG)
                os.close(judged)
                return 0
            os.close(judged)
            alone = _others() == before
            if alone:
                os.write(judge, b"!")
            os.close(judge)
            if alone:
                return pid
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        time.sleep(0.001)
    raise OSError(f"other threads of this process ran all the time for {QUIET_SECONDS:g} s")


def _others() -> dict[str, list[str]]:
    """What the kernel tells of each other thread: its state, and how often it was taken off a processor."""
    own = str(threading.get_native_id())
    told = {}
    for task in Path("/proc/self/task").iterdir():
        if task.name != own:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                lines = (task / "status").read_text().splitlines()
                told[task.name] = [line for line in lines if line.startswith(_WATCHED)]
    return told


def serve(load: Callable[[], object]) -> None:
    """Loads all, forks off what each line of stdin says, and ends with it. Returns in what it forked off."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints while it is loaded is no answer
    load()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, the memory that all share
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        ours, theirs = socket.socketpair()
        try:
            between = fork_alone()
        except OSError:
            between = -1
        if between == 0:
            ours.close()
            os.close(answers)
            _fork_again(theirs)
            _become(json.loads(line))
            return
        theirs.close()
        pid = ours.recv(20) or b"0"
        if between > 0:
            os.waitpid(between, 0)
        os.write(answers, pid + b"\n")
        with ours, contextlib.suppress(OSError):  # it may have died
            ours.send(b"go")
    os._exit(EXIT_OK)


def _fork_again(server: socket.socket) -> None:
    """Returns in the second process, once the launcher was told of it."""
    try:
        if fork_alone():
            os._exit(EXIT_OK)
    except OSError:
        os._exit(EXIT_GANG)
    os.setsid()
    with server:
        server.send(str(os.getpid()).encode())
        if not server.recv(2):
            os._exit(EXIT_GANG)


def _become(told: Mapping[str, Any]) -> None:
    import numpy as np

    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for one, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(one, stream)
    os.close(log)
    os.close(nothing)
    np.random.seed()  # or all that are forked off would draw the same
