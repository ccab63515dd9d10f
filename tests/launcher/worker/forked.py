"""The worker's processes, forked from one that has loaded Paddle: five runs took 15 CPU seconds, not 26.

What the forked process does is `python -m launcher.worker` from its first line on: environment, folder and
log are set as a waiting process of the launcher sets them. Processes that a test starts otherwise, and those
of the launcher's own tests, load Paddle themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from launcher.runtimes.base import ProcessSpec
from launcher.runtimes.fleet import THREADS, TRAINER

GROUP_SECONDS = 30.0
LOADED = ["launcher.worker.loop", "launcher.worker.program", "launcher.worker.session"]


@cache
def _server() -> ForkServerContext:
    """The process to fork from. It takes what Paddle reads of the environment when it is loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    before = dict(os.environ)
    os.environ.update(THREADS | {"GLOG_minloglevel": TRAINER["GLOG_minloglevel"]})
    try:
        from multiprocessing import forkserver

        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _become(spec: ProcessSpec) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(spec.env)
    sys.argv = list(spec.argv[2:])
    os.chdir(spec.cwd)
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - as PYTHONUNBUFFERED has it
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    from launcher.worker.__main__ import main

    code = main()
    sys.stdout.flush()
    os._exit(code)


class Forked:
    """One of them, with as much of `subprocess.Popen` as the tests use."""

    def __init__(self, spec: ProcessSpec) -> None:
        self._process: BaseProcess = _server().Process(target=_become, args=(spec,), daemon=True)
        spec.log.write_bytes(b"")
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        deadline = time.monotonic() + GROUP_SECONDS  # from then on its group can be killed
        while self._process.is_alive() and os.getpgid(self.pid) != self.pid and time.monotonic() < deadline:
            time.sleep(0.005)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode
