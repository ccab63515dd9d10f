"""Ask rank 0's launcher whether to save a checkpoint now, because a user requested one.

Every trainer asks; launcher/supervisor/peers/peer_server.py gives all of them the same answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time

from launcher.errors import DeadlineError
from launcher.io.rank_exchange import ask_launcher

POLL_SECONDS = 0.5  # between two attempts
ANSWER_SECONDS = 5.0  # timeout of one attempt
HOLD = "_hold"
"""End of the path of the value by which the launcher lets trainers wait after a checkpoint."""
HOLD_SECONDS = 60.0  # the order to stop takes about one second
ASK_SECONDS = 600.0  # deadline: without the decision a trainer cannot know where the others save


def ask_checkpoint_decision(address: str, proposed: int) -> tuple[bool, int]:
    """Ask the launcher of rank 0 whether to save a checkpoint now, and ask again until the launcher answers.

    The launcher answers yes after a user has requested a checkpoint. All trainers ask at the same step, which is a
    number of trained batches, and all of them get the same answer.

    Args:
        address: `host:port/path` of rank 0's launcher; the path contains the attempt's secret and the current step.
        proposed: the step at which this trainer proposes to ask the next time. The launcher takes the proposal of the
            trainer that asks first.

    Returns:
        (whether to save now, the step at which all trainers must ask the next time).

    Raises:
        DeadlineError: no answer within ASK_SECONDS.
    """
    deadline = time.monotonic() + ASK_SECONDS
    while True:
        try:
            return ask_once(address, proposed)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank 0's launcher ({address.partition('/')[0]}) did not answer within {ASK_SECONDS:.0f} s "
                    f"whether to save a checkpoint: {error or type(error).__name__}. Fix: see why in rank 0's log "
                    "(python -m launcher logs --rank 0), and check that no network policy blocks this port (peerPort)"
                ) from error
            time.sleep(POLL_SECONDS)


def ask_once(address: str, proposed: int) -> tuple[bool, int]:
    """Ask once what `ask_checkpoint_decision` asks; do not ask again after an error.

    The arguments and the result are those of `ask_checkpoint_decision`.

    Raises:
        OSError, http.client.HTTPException, ValueError: there was no answer within ANSWER_SECONDS, or an invalid one.
    """
    status, body = ask_launcher("POST", address, str(proposed), seconds=ANSWER_SECONDS)
    if status != 200:
        raise OSError(f"HTTP status {status}")
    save, following = json.loads(body)
    return bool(save), int(following)


def wait_while_held(store: str) -> None:
    """Wait after a checkpoint if the launcher is about to stop all trainers.

    The batches that a trainer trained after the checkpoint would be lost. Normally the launcher stops this process
    while it waits here. This function returns if the launcher does not intend to stop the trainers, if it has not done
    so within HOLD_SECONDS, or if it does not answer.

    Args:
        store: the beginning of the addresses of all requests: `host:port/path`, with the attempt's secret.
    """
    deadline = time.monotonic() + HOLD_SECONDS
    while time.monotonic() < deadline and is_held(store):
        time.sleep(POLL_SECONDS)


def is_held(store: str) -> bool:
    """Return whether the launcher stops all trainers after the next checkpoint; False if it does not answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask_launcher("GET", f"{store}{HOLD}", seconds=ANSWER_SECONDS)[0] == 200
    return False
