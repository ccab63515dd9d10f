"""`python -m launcher <command>`: the pods' commands, which load little, and a person's command line."""

from __future__ import annotations

import sys

from launcher import errors

POD_COMMANDS = ("prepare", "await-data", "train", "reader", "serve")


def _pod_command(command: str, arguments: list[str]) -> int:
    """Runs one of the pods' commands and returns its exit code; raises `LauncherError`."""
    if command == "prepare":
        from launcher.data import prepare
        from launcher.settings import DataSettings

        return int(prepare.main(DataSettings.from_environ()) or 0)
    if command == "reader":
        from launcher import reader

        return int(reader.main(arguments) or 0)
    if command == "serve":
        from launcher import serve

        return serve.main(arguments)
    from launcher.settings import TrainSettings

    settings = TrainSettings.from_environ()
    if command == "await-data":
        from launcher.storage.manifest import await_data

        await_data(settings)
        return errors.EXIT_OK
    from launcher.gang.agent import train

    return train(settings)


def main(argv: list[str] | None = None) -> int:
    """The exit code of the command in `argv` (default: the process's arguments)."""
    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[0] if arguments else ""
    if command not in POD_COMMANDS:
        from launcher.cli.main import app

        app(arguments)
        return errors.EXIT_OK
    try:
        return _pod_command(command, arguments[1:])
    except errors.LauncherError as error:
        from launcher.reporting.ending import report_failure
        from launcher.settings import termination_log

        report_failure(error, command, termination_log())
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
