"""One line of text per event on stderr, which is the pod's log."""

from __future__ import annotations

import logging

log = logging.getLogger("launcher")


def begin(who: str) -> None:
    """Sends the launcher's lines to stderr, each with the time (UTC) and who says it."""
    import time

    handler = logging.StreamHandler()
    formatter = logging.Formatter(f"%(asctime)sZ launcher {who}: %(message)s", "%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
