"""Run one pserver or one trainer: `python -m launcher.trainer`. launcher/runtimes/fleet.py describes the process.

With the argument `fork-server`, run the fork server, which forks such processes (fork_server.py).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from pathlib import Path

from launcher.errors import EXIT_GANG, EXIT_OK, LauncherError
from launcher.io import files, stop_signals
from launcher.io.progress_file import ProgressFile
from launcher.paths import OutputPaths, WorkPaths
from launcher.trainer import fork_server
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.training_log import TrainerLog


def run_pserver(settings: ProcessSettings) -> None:
    """Run as pserver until trainer 0 stops all servers."""
    from launcher.trainer import fleet_trainer, program_loader

    loaded = program_loader.load_program(settings.program_file, settings.work.tables, settings.args)
    fleet_trainer.run_pserver(settings, loaded)


def run_trainer(settings: ProcessSettings) -> None:
    """Load the user's program, train all its passes, and export the model."""
    log = TrainerLog(settings.log_period, settings.dot_period)
    progress = ProgressFile(WorkPaths(settings.work_dir).progress)
    progress.write()
    try:
        from launcher.trainer import program_loader, training_loop

        progress.mark("imported")
        path = settings.program_file
        loaded = program_loader.load_program(path, settings.work.tables, settings.args)
        log.line(f"program {path.name} of {path.parent.name} loaded; options {dict(loaded.job.options)}")
        if settings.rank == 0:
            files.write_json(OutputPaths(settings.layout.output).program_json, loaded.record())
        training_loop.TrainingLoop(settings, loaded, log, progress).run()
    except BaseException:
        progress.write()  # the launcher compares the position of this failure with that of the next one
        raise


def _set_process_name(settings: ProcessSettings) -> None:
    """Set this process' name in `ps` and `top`.

    Without a name, these tools show the command line of the fork server for each process that it has forked.
    """
    name = "trainer" if settings.server < 0 else f"pserver {settings.server}"
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def main() -> int:
    """Run as pserver or as trainer; the setting `ProcessSettings.server` decides this. Return the exit code."""
    try:
        settings = ProcessSettings.from_environ()
        _set_process_name(settings)
        (run_trainer if settings.server < 0 else run_pserver)(settings)
    except LauncherError as error:
        print(f"\nerror: {error}", file=sys.stderr, flush=True)  # noqa: T201 (this is the process' log)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return EXIT_GANG
    return EXIT_OK


def import_all() -> None:
    """Import Paddle and the modules of pservers and trainers, which takes seconds. Forked processes need not repeat it.

    Also let the module `inspect` find the files of all modules, which takes 0.05 s. Otherwise each forked process would
    need this time: operators such as `+` between two variables of Paddle ask `inspect` which line calls them.
    """
    from launcher.trainer import training_loop  # noqa: F401

    inspect.getmodule(inspect.currentframe())
    stop_signals.restore_handlers()


if __name__ == "__main__":
    if sys.argv[1:] == ["fork-server"]:
        fork_server.serve(import_all)
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Paddle's threads never exit, and Paddle's teardown turns an exception into SIGSEGV
