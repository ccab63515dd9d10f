"""Scores the exported model in a process that knows of no server, and that was forked before this one did.

A new process would import Paddle again: half of what the end of a short run takes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from launcher.errors import EXIT_GANG, EXIT_OK, DataError, LauncherError
from launcher.worker.forks import fork_alone

SECONDS = 1800.0


class Scorer:
    """Made before Paddle has threads. It ends with the process that made it."""

    def __init__(self) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._pid = fork_alone()
        if self._pid == 0:
            self._ours.close()
            try:
                _work(theirs)
            except BaseException:
                traceback.print_exc()
            os._exit(EXIT_GANG)
        theirs.close()

    def score(self, folder: Path, test: Path) -> dict[str, float]:
        """The metrics of the model in `folder`, by name. `test`: text, or records. Raises `DataError`."""
        try:
            self._ours.send((folder, test))
            answer = self._ours.recv() if self._ours.poll(SECONDS) else f"not done after {SECONDS:g} s"
        except (EOFError, OSError):  # only its end closes the pipe's other end
            _, status = os.waitpid(self._pid, 0)
            answer = f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"
        if isinstance(answer, str):
            raise DataError(f"the model in {folder} cannot be scored with {test}: {answer}")
        scores: dict[str, float] = answer
        return scores


def _work(requests: Connection) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("scorer")
    for name in [name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP"))]:
        del os.environ[name]
    from launcher.worker import model

    while True:
        try:
            folder, test = requests.recv()
        except EOFError:
            os._exit(EXIT_OK)
        try:
            requests.send(model.score(folder, test))
        except LauncherError as error:
            requests.send(str(error))
        except Exception as error:
            traceback.print_exc()
            requests.send(f"{type(error).__name__}: {error}")
