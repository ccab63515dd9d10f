"""Score the exported model in a process without any server's address, forked before Paddle has threads.

A new process would have to import Paddle again, which takes half of the time that the end of a short run takes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from launcher.errors import EXIT_GANG, EXIT_OK, DataError, LauncherError
from launcher.trainer.fork_server import fork_while_alone
from launcher.trainer.program_loader import with_fix

TIMEOUT_SECONDS = 1800.0


class ScoringProcess:
    """Scores exported models in a child process, which exits when the process that created it exits.

    Create the object before Paddle has threads, since creating it forks this process.
    """

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._pid = fork_while_alone()
        if self._pid == 0:
            self._pipe.close()
            try:
                _answer_requests(theirs)
            except BaseException:
                traceback.print_exc()
            os._exit(EXIT_GANG)
        theirs.close()

    def score(self, folder: Path, test: Path) -> dict[str, float]:
        """Return metric → value of the model in `folder` on the records in `test`, or raise `DataError`."""
        try:
            self._pipe.send((folder, test))
            answer = (
                self._pipe.recv()
                if self._pipe.poll(TIMEOUT_SECONDS)
                else f"timed out after {TIMEOUT_SECONDS:g} s. Fix: use a smaller test set (data.testFraction)"
            )
        except (EOFError, OSError):  # the process exited, which closes its end of the pipe
            _, status = os.waitpid(self._pid, 0)
            answer = (
                f"its process exited with code {os.waitstatus_to_exitcode(status)}. Fix: for code -9 (killed) increase "
                "resources.limits.memory; else see the last lines before this one in the trainer's log"
            )
        if isinstance(answer, str):
            text = f"cannot score the model in {folder} with {test}: {answer}"
            raise DataError(with_fix(text, "see the traceback before this line"))
        scores: dict[str, float] = answer
        return scores


def _answer_requests(requests: Connection) -> None:
    """Score each model whose folder the parent process sends through the pipe, until the parent exits."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("scorer")
    for name in [name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP"))]:
        del os.environ[name]
    from launcher.trainer.export import model_scoring

    while True:
        try:
            folder, test = requests.recv()
        except EOFError:
            os._exit(EXIT_OK)
        try:
            requests.send(model_scoring.score_model(folder, test))
        except LauncherError as error:
            requests.send(str(error))
        except Exception as error:
            traceback.print_exc()
            requests.send(f"{type(error).__name__}: {error}")
