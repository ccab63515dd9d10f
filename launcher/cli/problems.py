"""What the command line ends with when it cannot do what was asked: one message on stderr, no traceback.

CliError              3   the cluster or the storage could not be asked, or refused
├── UsageError       64   an option or argument is wrong; nothing was done
├── RunFailed         1   the training itself failed (`wait`)
├── WaitedTooLong     2   `wait --timeout` passed
└── OtherRunError     4   another `run` or upgrade has the release, or has replaced the run that was followed

Other codes are those of launcher/errors.py: a program or a row that is wrong is a `DataError` here too.
"""

from __future__ import annotations

import json
import re
from typing import Any

from launcher.errors import EXIT_DATA, EXIT_GANG, EXIT_OK, EXIT_STORAGE, EXIT_UNFIT, LauncherError

EXIT_RUN_FAILED = 1
EXIT_TIMEOUT = 2
EXIT_UNKNOWN = 3
EXIT_OTHER_RUN = 4
EXIT_USAGE = 64

# Of a command that a person types; docs/contracts.md has them with those of the pods.
EXIT_CODES = {
    EXIT_OK: "done",
    EXIT_RUN_FAILED: "the training failed",
    EXIT_TIMEOUT: "--timeout passed",
    EXIT_UNKNOWN: "the cluster or the storage could not be asked",
    EXIT_OTHER_RUN: "another run has the release, or has replaced the one that was followed",
    EXIT_USAGE: "an option, an argument or a setting is wrong",
    EXIT_DATA: "the data, a row, the program or the model is wrong",
    EXIT_GANG: "anything else failed",
    EXIT_UNFIT: "the storage failed in a way that may pass",
    EXIT_STORAGE: "a disk or the storage is full or cannot be written",
}


class CliError(LauncherError):
    """The cluster or the storage could not be asked."""

    exit_code = EXIT_UNKNOWN


class UsageError(CliError):
    """An option or argument is wrong."""

    exit_code = EXIT_USAGE


class RunFailed(CliError):  # noqa: N818 - the training failed, not this program
    """The training that was followed failed."""

    exit_code = EXIT_RUN_FAILED


class WaitedTooLong(CliError):  # noqa: N818 - see above
    """The deadline of `wait` passed."""

    exit_code = EXIT_TIMEOUT


class OtherRunError(CliError):
    """Another `run` starts a training of the release, or has replaced the one that was followed."""

    exit_code = EXIT_OTHER_RUN


_DENIED = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"')


def api_problem(status: int, body: str, doing: str, context: str) -> CliError:
    """The message for an API call that was refused.

    `status` is the HTTP status, `body` the API server's answer (a Status object as JSON, or text), `doing`
    what was tried ("start the reader pod"), `context` names the cluster.
    """
    answer = _message(body)
    if status == 401:
        return CliError(
            f"cannot {doing}: {context} does not accept the credentials (401). They may have expired: "
            "log in again, or name another --kubeconfig or --context."
        )
    denied = _DENIED.search(answer)
    if status == 403 and denied:
        return CliError(
            f"cannot {doing}: {denied['user']} may not {denied['verb']} {denied['resource']} on "
            f"{context} (403). Ask for a role with verb {denied['verb']} on {denied['resource']}. "
            f"The server says: {answer}"
        )
    return CliError(f"cannot {doing}: {context} answered {status}: {answer}")


def _message(body: str) -> str:
    try:
        value: Any = json.loads(body)
    except ValueError:
        return body.strip()[:1000] or "nothing"
    if isinstance(value, dict) and value.get("message"):
        return str(value["message"])
    return str(value)


_HANDSHAKE = re.compile(r"Handshake status (?P<status>\d{3})")


def handshake(reason: str) -> tuple[int, str] | None:
    """(HTTP status, answer) of a refused websocket, which the client reports as text; None if it is none."""
    found = _HANDSHAKE.search(reason)
    if not found:
        return None
    answer = re.search(r"\{\"kind\":\"Status\".*\}", reason, re.DOTALL)
    return int(found["status"]), (answer[0] if answer else reason).replace('\\\\"', '"').replace('\\"', '"')
