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
    """Ask rank 0 whether to save a checkpoint that a user may have requested, until it answers.

    Args:
        address: `host:port/path` of rank 0's launcher; the path contains the attempt's secret and the present step
            (number of trained batches).
        proposed: the step at which this trainer proposes that all trainers ask the next time.

    Returns:
        (whether to save now, the step at which all trainers ask the next time): the same on every rank.

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
    """Ask as `ask_checkpoint_decision` does and return the same, but do not try again after an error.

    Raises:
        OSError, http.client.HTTPException, ValueError: no answer within ANSWER_SECONDS, or a wrong one.
    """
    status, body = ask_launcher("POST", address, str(proposed), seconds=ANSWER_SECONDS)
    if status != 200:
        raise OSError(f"HTTP status {status}")
    save, following = json.loads(body)
    return bool(save), int(following)


def wait_while_held(store: str) -> None:
    """Wait after a checkpoint if the launcher is about to stop all trainers: what they trained on would be lost.

    The launcher stops a waiting trainer; this returns if it does not within HOLD_SECONDS, or cannot be asked. `store`
    is the beginning of the addresses of all requests: `host:port/path`, with the attempt's secret.
    """
    deadline = time.monotonic() + HOLD_SECONDS
    while time.monotonic() < deadline and is_held(store):
        time.sleep(POLL_SECONDS)


def is_held(store: str) -> bool:
    """Return whether the launcher stops all trainers after the next checkpoint; False if it cannot be asked."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask_launcher("GET", f"{store}{HOLD}", seconds=ANSWER_SECONDS)[0] == 200
    return False
