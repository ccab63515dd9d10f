"""The commands a person types, put together. Exit codes: `EXIT_CODES` of launcher/cli/problems.py."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from launcher.cli.commands import bringing, keeping, looking, modelling, stopping, training
from launcher.cli.options import say
from launcher.cli.problems import EXIT_CODES, EXIT_USAGE, CliError
from launcher.cli.words import INSTALLED, called
from launcher.errors import LauncherError
from launcher.tarstream import ReaderError

PARSER_USAGE = 2

typer_app = typer.Typer(
    no_args_is_help=True,
    add_completion=called() == INSTALLED,  # a shell completes programs, not modules of python
    pretty_exceptions_enable=False,
    help="Train with PaddlePaddle on Kubernetes, look at it, and use the model. Exit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ".",
)
for part in (training, looking, stopping, keeping, bringing, modelling):
    typer_app.add_typer(part.app)


def app(args: list[str] | None = None, prog_name: str | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    sys.exit(run(args, prog_name))


def run(args: list[str] | None = None, prog_name: str | None = None) -> int:
    """Run one command and return its exit code; every foreseeable trouble is one message on stderr."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        typer_app(args, prog_name=prog_name or called())
    except (
        SystemExit
    ) as end:  # 2 is the parser's own code for wrong usage, which is `wait`'s for its deadline here
        code = end.code if isinstance(end.code, int) else 0
        return EXIT_USAGE if code == PARSER_USAGE else code
    except LauncherError as error:
        say(f"error: {error}")
        return error.exit_code
    except ReaderError as error:
        say(f"error: {error}")
        return CliError.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return 128 + signal.SIGPIPE
    except OSError as error:
        say(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return CliError.exit_code
    return 0


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # the parser would end with 1, which means that the training failed
