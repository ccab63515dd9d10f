"""Import Paddle once per pod, and fork the pod's processes: `python -m launcher.trainer fork-server`.

The launcher's side is `ForkServer` in launcher/supervisor/child_processes.py. For each new process the fork server
forks an intermediate process, and this process forks the new process. The intermediate process exits at once, so that
the launcher becomes the parent of the new process:

    launcher ── line ──▶ fork server ── fork ──▶ intermediate ── fork ──▶ new process, in its own session
        ◀── its id, after the exit of the intermediate process ──┘      ◀── its id ──┘
                                    └── "go" ──▶ the new process runs; at end of file it exits

If the id of a new process cannot be sent to the launcher, the new process exits.

After the import of Paddle 2.6.2 one thread keeps running: the sampler of bvar, a library of counters in Paddle. In a
forked process this thread starts again, but a lock that it held at the time of the fork stays locked. A trainer was
seen to wait for such a lock for ever when it disconnected from the servers. So `fork_while_alone` forks only while no
other thread runs.
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


def fork_while_alone() -> int:
    """Fork this process like `os.fork()`, but at a moment when all its other threads sleep.

    The child has only the thread that forks. If another thread held a lock at that moment, the lock would stay locked
    in the child for ever. So this function forks only when all other threads sleep. After the fork it compares the
    number of context switches of each thread with the number before the fork. If a thread ran during the fork, the
    function kills the child and tries again, for up to QUIET_SECONDS.

    Returns:
        The child's process id; 0 in the child.

    Raises:
        OSError: at each try within QUIET_SECONDS another thread was running.
    """
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        before = _other_threads()
        if all(state[0].split()[1] == "S" for state in before.values()):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(writer)
                if not os.read(reader, 1):
                    os._exit(EXIT_GANG)
                os.close(reader)
                return 0
            os.close(reader)
            alone = _other_threads() == before
            if alone:
                os.write(writer, b"!")
            os.close(writer)
            if alone:
                return pid
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        time.sleep(0.001)
    raise OSError(
        f"cannot fork process {os.getpid()}: whenever it tried during {QUIET_SECONDS:g} s, another of its threads was "
        "running, and a lock of that thread would stay locked in the new process. Fix: if this happens again, increase "
        "resources.requests.cpu, so that the threads become idle sooner"
    )


def _other_threads() -> dict[str, list[str]]:
    """Return the state and the numbers of context switches of all threads except the current one, by thread id."""
    own = str(threading.get_native_id())
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if task.name != own:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has exited
                lines = (task / "status").read_text().splitlines()
                found[task.name] = [line for line in lines if line.startswith(_WATCHED)]
    return found


def serve(import_all: Callable[[], object]) -> None:
    """Call `import_all`, then fork a new process for each line of stdin. Exit at the end of stdin.

    Each line is JSON with the environment, working folder and log file of the new process. After the import the
    function writes `ready` to stdout, and for each new process a line with the process id; 0 if the fork failed. The
    function returns only in the new processes.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # a library may print something when it is imported, which must not reach the launcher
    import_all()
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # a garbage collection in a child would write to shared memory, so the kernel would copy it
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        ours, theirs = socket.socketpair()
        try:
            intermediate = fork_while_alone()
        except OSError:
            intermediate = -1
        if intermediate == 0:
            ours.close()
            os.close(answers)
            _fork_again(theirs)
            _become_process(json.loads(line))
            return
        theirs.close()
        pid = ours.recv(20) or b"0"
        if intermediate > 0:
            os.waitpid(intermediate, 0)
        os.write(answers, pid + b"\n")
        with ours, contextlib.suppress(OSError):  # the new process may have been killed
            ours.send(b"go")
    os._exit(EXIT_OK)


def _fork_again(server: socket.socket) -> None:
    """Fork the new process, and exit from this intermediate process. The function returns only in the new process.

    Before that, the new process sends its pid to the fork server through the socket `server`, and waits until the fork
    server has sent the pid to the launcher.
    """
    try:
        if fork_while_alone():
            os._exit(EXIT_OK)
    except OSError:
        os._exit(EXIT_GANG)
    os.setsid()
    with server:
        server.send(str(os.getpid()).encode())
        if not server.recv(2):
            os._exit(EXIT_GANG)


def _become_process(task: Mapping[str, Any]) -> None:
    """Give this forked process the environment, the working folder and the log file that `task` contains."""
    import numpy as np

    os.environ.clear()
    os.environ.update(task["env"])
    os.chdir(task["cwd"])
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for one, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(one, stream)
    os.close(log)
    os.close(nothing)
    np.random.seed()  # otherwise all forked processes would draw the same numbers
