"""The command line that users type: its commands, and how errors become messages and exit codes.

`EXIT_CODES` of launcher/cli/errors.py lists the exit codes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from launcher.cli.commands import (
    clean,
    dashboard,
    logs,
    predict,
    push,
    results,
    run,
    status,
    stop,
    sweep,
    try_,
)
from launcher.cli.errors import EXIT_CODES, EXIT_USAGE, describe_os_error, missing_package
from launcher.cli.terminal import INSTALLED, program_name, report
from launcher.errors import LauncherError
from launcher.io.open_below import ReaderError

_PARSER_USAGE = 2  # the option parser's exit code for wrong usage; here 2 is that of `wait --timeout`

typer_app = typer.Typer(
    no_args_is_help=True,
    add_completion=program_name() == INSTALLED,  # a shell completes programs, not modules of python
    pretty_exceptions_enable=False,
    help="Train with PaddlePaddle on Kubernetes, follow the training, and use the model. Exit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ".",
)
for command in (
    run.run,
    sweep.sweep,
    status.status,
    logs.logs,
    status.wait,
    results.results,
    stop.stop,
    stop.resume,
    stop.scale,
    results.runs,
    results.compare,
    dashboard.dashboard,
    clean.clean,
    push.push,
    run.base,
):
    typer_app.command()(command)
typer_app.command("try")(try_.try_program)
typer_app.command()(predict.predict)
typer_app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False
)(predict.serve)


def run_command(args: list[str]) -> int:
    """Run one command and return its exit code; every expected error is one message on stderr."""
    signal.signal(signal.SIGINT, _exit_on_signal)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, _exit_on_signal)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - it may be closed (>&-)
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - so may this (2>&-)
    try:
        return _call_command(args)
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except (LauncherError, ReaderError, OSError) as error:
        failure = describe_os_error(error)
        with contextlib.suppress(OSError):  # stderr may be on a full disk, too
            report(f"error: {failure}")
        if isinstance(error, OSError):
            _discard_output()
        return failure.exit_code


def _call_command(args: list[str]) -> int:
    try:
        typer_app(args, prog_name=program_name())
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich replace it by exit code 1
            raise end.__context__ from None
        sys.stdout.flush()
        code = end.code if isinstance(end.code, int) else 0
        return EXIT_USAGE if code == _PARSER_USAGE else code
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    return 0


def _discard_output() -> None:
    """Discard what stdout still has to write, so that Python does not report the same error again at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that leases and reader pods are deleted. Without a handler, typer's exit code for Ctrl-C is 1.
    raise SystemExit(128 + number)
