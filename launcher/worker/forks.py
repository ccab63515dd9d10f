"""`python -m launcher.worker fork-server`: loads Paddle once a pod, and forks its other processes off.

launcher/children.py, `ForkServer`, is the other side. A process is forked off by one between that ends at
once, so that the launcher becomes its parent:

    launcher ── line ──▶ fork server ── fork ──▶ between ── fork ──▶ the process, in its own session
        ◀── its id, once `between` has ended ──┘      ◀── its id ──────┘
                                               └── go, or an end ──▶ becomes what the line says, or ends

What the launcher could not be told of ends by itself. Of the import of Paddle 2.6.2 one thread is left,
bvar's sampler, and that starts itself anew in a forked process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from launcher.errors import EXIT_GANG, EXIT_OK


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
            between = os.fork()
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
        if os.fork():
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
