"""The worker's processes, forked off as in a pod, but from one that serves all tests of this process.

Five runs took 15 CPU seconds so, and not 26. Processes that a test starts otherwise load Paddle themselves.
And tables have a sixth of their shards: Paddle starts a shell and a gzip for each file of a save and a load.
"""

from __future__ import annotations

import atexit
import shutil
import signal
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from launcher.children import Child, ForkServer
from launcher.runtimes.base import ProcessSpec

LOAD_SECONDS = 120.0
SHARDS = 10
SERVE = f"""
import os, sys
from launcher.worker import __main__ as worker, forks, parts
parts.SHARDS = {SHARDS}
forks.serve(worker.load)
code = worker.main()
sys.stdout.flush()
os._exit(code)
"""


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fork-server-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_servers: list[ForkServer] = []
"""At most one: what Paddle reads of the environment when it is loaded is the same in all tests."""


def _server(spec: ProcessSpec) -> ForkServer:
    if not _servers:
        log = _folder() / "fork-server.log"
        _servers.append(ForkServer(replace(spec, argv=(spec.argv[0], "-c", SERVE), cwd=_folder(), log=log)))
        assert _servers[0].ready(LOAD_SECONDS), log.read_text()
    assert _servers[0].alive, "the process to fork from has ended"
    return _servers[0]


class Forked:
    """One of them, with as much of `subprocess.Popen` as the tests use."""

    def __init__(self, spec: ProcessSpec, server: ForkServer | None = None) -> None:
        self._child = Child(spec, lambda: None, server or _server(spec))
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def kill(self) -> None:
        self._child.signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self._child.returncode

    def wait(self) -> int:
        self._child.done.wait()
        assert self._child.returncode is not None
        return self._child.returncode
