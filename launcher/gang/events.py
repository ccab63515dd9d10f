"""What the gang's threads tell the launcher's main thread, which alone decides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

Kind = Literal["stop", "joined", "message", "lost", "exit", "error"]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    stop: a signal came (body: signum). joined, message, lost: of rank `rank` (body: the message, or why).
    exit: a child ended (body: name, returncode). error: a thread failed (body: error, a LauncherError).
    """

    kind: Kind
    rank: int = -1
    body: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)


Events = SimpleQueue[Event]
