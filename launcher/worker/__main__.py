"""`python -m launcher.worker`: one pserver or one trainer, as launcher/runtimes/fleet.py starts it."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from launcher import files
from launcher.errors import EXIT_GANG, EXIT_OK, LauncherError, SettingsError
from launcher.layout import Output, Work
from launcher.worker import forks, store
from launcher.worker.books import Log, Progress
from launcher.worker.settings import WorkerSettings


def pserver(settings: WorkerSettings) -> None:
    """Serves until trainer 0 is done. The job's first pserver also keeps the trainers' meeting place."""
    meeting = (
        store.start(settings.store_host, settings.store_port, Output(settings.output_dir).checkpoint_request)
        if (settings.rank, settings.server) == (0, 0)
        else None
    )
    try:
        from launcher.worker import program, session

        path = settings.program_dir / settings.config_file
        loaded = program.load(path, settings.data_dir / "tables", settings.options)
        session.Session(settings, loaded).serve()
    finally:
        if meeting is not None:
            meeting.kill()
            meeting.wait()


def trainer(settings: WorkerSettings) -> None:
    """Trains all passes."""
    log = Log(settings.log_period, settings.dot_period)
    progress = Progress(Work(settings.work_dir).progress)
    progress.write()
    try:
        from launcher.worker import loop, program, scorer

        progress.mark("imported")
        apart = scorer.Scorer() if settings.rank == 0 else None  # before Paddle has threads
        path = settings.program_dir / settings.config_file
        loaded = program.load(path, settings.data_dir / "tables", settings.options)
        log.line(f"program {path.name} of {path.parent.name} loaded; options {dict(loaded.job.options)}")
        if settings.rank == 0:
            files.write_json(Output(settings.output_dir).program_json, loaded.record())
        loop.Loop(settings, loaded, log, progress, apart).run()
    except BaseException:
        progress.write()  # where it happened: the launcher compares the places of two failures
        raise


ROLES = {"PSERVER": pserver, "TRAINER": trainer}


def _role() -> Callable[[WorkerSettings], None]:
    name = os.environ.get("TRAINING_ROLE", "")
    if name not in ROLES:
        raise SettingsError(f"TRAINING_ROLE is {name!r}, but must be PSERVER or TRAINER")
    return ROLES[name]


def _show(settings: WorkerSettings) -> None:
    """The name in `ps` and `top`: the command line of a process that was forked off is the fork server's."""
    name = "trainer" if settings.server < 0 else f"pserver {settings.server}"
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def main() -> int:
    """Runs the role that Paddle's TRAINING_ROLE names; returns the exit code (launcher/errors.py)."""
    try:
        role, settings = _role(), WorkerSettings.from_environ()
        _show(settings)
        role(settings)
    except LauncherError as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)  # noqa: T201 (the process' log is its only voice)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return EXIT_GANG
    return EXIT_OK


def load() -> None:
    """Imports what both roles need: Paddle, which takes seconds, and the launcher's own."""
    from launcher.worker import loop, program, session  # noqa: F401


if __name__ == "__main__":
    if sys.argv[1:] == ["fork-server"]:
        forks.serve(load)
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        code
    )  # Paddle's threads do not end by themselves, and its teardown turns an exception into SIGSEGV
