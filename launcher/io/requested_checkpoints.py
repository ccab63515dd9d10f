"""Ask rank 0's launcher whether to save a checkpoint now, because a user or the launcher has requested a checkpoint.

With runtime fleet every trainer asks, and launcher/supervisor/peers/peer_server.py gives all of them the same answer.
Of a user's script only process 0 asks.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time

from launcher.errors import DeadlineError
from launcher.io.rank_exchange import ask_launcher

POLL_SECONDS = 0.5  # between two requests
ANSWER_SECONDS = 5.0  # timeout of one request
HOLD = "_hold"
"""End of the path of a value in the launcher's store. While this value exists, trainers wait after a checkpoint."""
HOLD_SECONDS = 60.0  # longest wait; normally the launcher stops the trainers after about one second
ASK_SECONDS = 600.0  # then the trainer fails: without an answer it cannot know whether the others save


def ask_checkpoint_decision(address: str, proposed: int) -> tuple[bool, int]:
    """Ask rank 0's launcher whether the trainers must save a checkpoint now, and at which step to ask again.

    A step is a number of trained batches. All trainers call this function at the same steps, and all of them get the
    same answer at the same step. The answer is "save" if a user or the launcher has requested a checkpoint. If the
    launcher does not answer, this function repeats the request every POLL_SECONDS.

    Args:
        address: `host:port/path` of rank 0's launcher. The path contains the attempt's secret and the current step.
        proposed: the step at which this trainer proposes to ask the next time. The launcher accepts the proposal of the
            first trainer that asks at the current step.

    Returns:
        (whether to save now, the step at which all trainers must ask the next time).

    Raises:
        DeadlineError: the launcher has not answered within ASK_SECONDS.
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
    """Send one request for `ask_checkpoint_decision`, without a retry.

    The arguments and the result are those of `ask_checkpoint_decision`.

    Raises:
        OSError, http.client.HTTPException, ValueError: the launcher did not answer within ANSWER_SECONDS, or its answer
            is invalid.
    """
    status, body = ask_launcher("POST", address, str(proposed), seconds=ANSWER_SECONDS)
    if status != 200:
        raise OSError(f"HTTP status {status}")
    save, following = json.loads(body)
    return bool(save), int(following)


def wait_while_held(store: str) -> None:
    """Wait after a checkpoint if the launcher is about to stop all trainers.

    Without this wait, the trainer would train further batches, which would be lost. Normally the launcher stops this
    process while this function waits. The function returns if the launcher does not intend to stop the trainers, if
    HOLD_SECONDS have passed, or if the launcher does not answer.

    Args:
        store: the beginning of the addresses of all requests: `host:port/path`, with the attempt's secret.
    """
    deadline = time.monotonic() + HOLD_SECONDS
    while time.monotonic() < deadline and is_held(store):
        time.sleep(POLL_SECONDS)


def is_held(store: str) -> bool:
    """Return whether the launcher is about to stop all trainers after a checkpoint; False if it does not answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask_launcher("GET", f"{store}{HOLD}", seconds=ANSWER_SECONDS)[0] == 200
    return False
