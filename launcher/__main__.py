"""Entry point `python -m launcher <command>`: runs a command of the pods (POD_COMMANDS) or one for users."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not os.path.isdir(f"{sys.path[0]}/launcher"):  # noqa: PTH112 - pathlib may be the user's
    del sys.path[0]  # the current folder: its modules must not replace those that the launcher imports

from launcher import errors

POD_COMMANDS = ("prepare", "await-data", "train", "reader", "serve")


def _pod_command(command: str, arguments: list[str]) -> int:
    """Run one of POD_COMMANDS and return its exit code.

    Each command imports only the modules that it needs, so that pods start fast.
    """
    if command == "prepare":
        from launcher.dataprep import data_job
        from launcher.settings import DataSettings

        return data_job.main(DataSettings.from_environ())
    if command == "reader":
        from launcher.cli import reader_commands

        return int(reader_commands.main(arguments) or 0)
    if command == "serve":
        from launcher.serving import serve

        return serve.main(arguments)
    from launcher.settings import TrainSettings

    settings = TrainSettings.from_environ()
    if command == "await-data":
        from launcher.supervisor.shared_storage.wait_for_data import await_data

        await_data(settings)
        return errors.EXIT_OK
    from launcher.supervisor.agent import run_rank

    return run_rank(settings)


def main(argv: list[str] | None = None) -> int:
    """Run the command `argv` (None: this process's arguments), and return the exit code of the process."""
    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[0] if arguments else ""
    if command not in POD_COMMANDS:
        try:
            from launcher.cli.main import run_command
        except ModuleNotFoundError as error:
            from launcher.cli.errors import missing_package

            failure = missing_package(error)
            print(f"error: {failure}", file=sys.stderr)  # noqa: T201
            return failure.exit_code
        return run_command(arguments)
    try:
        return _pod_command(command, arguments[1:])
    except errors.LauncherError as error:
        from launcher.reporting.failure_messages import report_failure
        from launcher.settings import termination_log

        report_failure(error, command, termination_log())
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
