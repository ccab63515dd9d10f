"""The launcher's log: one line of text or JSON per event, written to stderr, which `kubectl logs` shows."""

from __future__ import annotations

import json
import logging
import sys
import time

from launcher.errors import StoppedError

log = logging.getLogger("launcher")


class _JsonFormatter(logging.Formatter):
    """Formats each log record as a JSON object with the keys that most log collectors know."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """Return a JSON object with time, level, who and message, and with the traceback if there is an exception."""
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


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log records to stderr, and lets the exception of a stop signal pass."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a name of logging
        """Raise the `StoppedError` of a signal that arrived while the record was written.

        `logging` prints every other exception and continues. If it did the same with `StoppedError`, the process would
        ignore the signal, and would run until it is killed.
        """
        if isinstance(sys.exc_info()[1], StoppedError):
            raise  # noqa: PLE0704 - logging calls this in an except block
        super().handleError(record)


def start_logging(who: str, form: str = "text") -> None:
    """Begin to write the launcher's log lines to stderr, each with the time in UTC and with `who`.

    `who` is the process that logs, such as `rank 1`; `form` is `text` or `json`.
    """
    handler = _StderrHandler()
    if form == "json":
        handler.setFormatter(_JsonFormatter(who))
    else:
        formatter = logging.Formatter(f"%(asctime)sZ launcher {who}: %(message)s", "%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
