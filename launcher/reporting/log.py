"""One line per event on stderr, which is the pod's log: text for people, or JSON when asked."""

from __future__ import annotations

import json
import logging
import time

log = logging.getLogger("launcher")


class _Json(logging.Formatter):
    """One object a line; its keys are those of most collectors."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """`{"time", "level", "who", "message"}`, and `exception` where there is one."""
        value = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "who": self._who,
            "message": record.getMessage(),
        }
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value, ensure_ascii=False)


def begin(who: str, form: str = "text") -> None:
    """Sends the launcher's lines to stderr, each with the time (UTC) and who says it; `form`: text or
    json."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(_Json(who))
    else:
        formatter = logging.Formatter(f"%(asctime)sZ launcher {who}: %(message)s", "%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
