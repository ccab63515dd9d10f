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
from launcher.io import files
from launcher.serving.paddle_served import Model, ServedError
from launcher.trainer.evaluation import evaluate_model
from launcher.trainer.fork_server import fork_while_alone
from launcher.trainer.program_loader import is_settable, load_program, with_fix
from launcher.trainer.records.record_files import INDEX, Records
from launcher.trainer.records.row_parsing import record_dtype

TIMEOUT_SECONDS = 1800.0


class ScoringProcess:
    """Scores exported models in a child process, which exits when the process that created it exits.

    Create the object before Paddle has threads, since creating it forks this process.
    """

    def __init__(self, test: Path) -> None:
        """Fork the process; `test` is the folder with the test set's records."""
        self._test = test
        self._pipe, theirs = multiprocessing.Pipe()
        self._pid = fork_while_alone()
        if self._pid == 0:
            self._pipe.close()
            try:
                _answer_requests(theirs, test)
            except BaseException:
                traceback.print_exc()
            os._exit(EXIT_GANG)
        theirs.close()

    def score(self, folder: Path) -> dict[str, float]:
        """Return metric → value of the model in `folder` on the test set, or raise `DataError`."""
        try:
            self._pipe.send(folder)
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
            text = f"cannot score the model in {folder} with {self._test}: {answer}"
            raise DataError(with_fix(text, "see the traceback before this line"))
        scores: dict[str, float] = answer
        return scores


def _answer_requests(requests: Connection, test: Path) -> None:
    """Score each model whose folder the parent process sends through the pipe, until the parent exits."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("scorer")
    for name in [name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP"))]:
        del os.environ[name]
    while True:
        try:
            folder = requests.recv()
        except EOFError:
            os._exit(EXIT_OK)
        try:
            requests.send(score_model(folder, test))
        except LauncherError as error:
            requests.send(str(error))
        except Exception as error:
            traceback.print_exc()
            requests.send(f"{type(error).__name__}: {error}")


def score_model(folder: Path, test: Path) -> dict[str, float]:
    """Return metric → value of the model in `folder`, from nothing but this folder and the records in `test`.

    Raises:
        DataError: the model or the test set cannot be read.
    """
    try:
        model = Model(folder)
    except ServedError as error:
        raise DataError(str(error)) from error
    given = model.about["options"].items()
    options = tuple(f"--{key}={value}" for key, value in given if is_settable(value))  # others are defaults
    program = load_program(folder / "program" / model.about["config"], folder / "tables", options)
    key = (files.read_json(test / INDEX) or {}).get("key", "")
    records = Records.open(test, record_dtype(program.inputs), key)
    if records is None:
        raise DataError(
            f"{test} has no complete records (parsed rows) of {program.path.name}. Fix: delete that folder; the next "
            "start parses the rows again"
        )
    return evaluate_model(program, model, records)
