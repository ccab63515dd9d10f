"""Ask rank 0's launcher whether to save a checkpoint now, because a user requested one.

Every trainer asks; launcher/supervisor/peers/peer_server.py gives all of them the same answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time

from launcher.errors import DeadlineError

POLL_SECONDS = 0.5  # between two attempts
ANSWER_SECONDS = 5.0  # timeout of one attempt
ASK_SECONDS = 600.0  # deadline: without the decision a trainer cannot know where the others save


def ask_checkpoint_decision(host: str, port: int, path: str, proposed: int) -> tuple[bool, int]:
    """Ask rank 0 whether to save a checkpoint that a user may have requested, until it answers.

    Args:
        host: address of rank 0.
        port: `peerPort`.
        path: contains the attempt's secret and the present step (number of trained batches).
        proposed: the step at which this trainer proposes that all trainers ask the next time.

    Returns:
        (whether to save now, the step at which all trainers ask the next time): the same on every rank.

    Raises:
        DeadlineError: no answer within ASK_SECONDS.
    """
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        try:
            return ask_once(host, port, path, proposed)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank 0's launcher ({host}:{port}) did not answer within {ASK_SECONDS:.0f} s whether to "
                    f"save a checkpoint: {error or type(error).__name__}. Fix: see why in rank 0's log "
                    "(python -m launcher logs --rank 0), and check that no network policy blocks this port (peerPort)"
                ) from error
            time.sleep(POLL_SECONDS)


def ask_once(host: str, port: int, path: str, proposed: int) -> tuple[bool, int]:
    """Ask as `ask_checkpoint_decision` does, but only once.

    Raises:
        OSError, http.client.HTTPException, ValueError: no answer within ANSWER_SECONDS, or a wrong one.
    """
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)) as connection:
        connection.request("POST", path, str(proposed))
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"HTTP status {answer.status}")
        save, following = json.loads(answer.read())
    return bool(save), int(following)
