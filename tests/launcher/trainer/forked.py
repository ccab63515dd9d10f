"""Run a fork server that all tests of one process share, instead of one per pod.

Paddle is imported only once: five runs take 15 CPU seconds instead of 26. The tables of these processes
have a sixth of the shards, since Paddle starts a shell and a gzip for each file of a checkpoint.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from launcher.runtimes.runtime_protocol import ProcessSpec
from launcher.supervisor.child_processes import ForkServer
from local.trainer_processes import ForkedProcess

LOAD_SECONDS = 120.0
SHARDS = 10
SERVE = f"""
import os, sys
from launcher.trainer import __main__ as worker
from launcher.trainer import fork_server as forks
from launcher.trainer.checkpoint import table_files as parts
parts.DEFAULT_SHARDS = {SHARDS}
forks.serve(worker.import_all)
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
"""At most one. Paddle reads some variables while it is imported; they are the same in all tests."""


def _server(spec: ProcessSpec) -> ForkServer:
    sys.audit("tests.slow_start", "Paddle")  # for `pytest --fast`
    if not _servers:
        log = _folder() / "fork-server.log"
        _servers.append(ForkServer(replace(spec, argv=(spec.argv[0], "-c", SERVE), cwd=_folder(), log=log)))
        assert _servers[0].ready(LOAD_SECONDS), log.read_text()
    assert _servers[0].alive, "the process to fork from has ended"
    return _servers[0]


def forked_process(spec: ProcessSpec) -> ForkedProcess:
    """Start a process from this test process' fork server."""
    return ForkedProcess(spec, _server(spec))
