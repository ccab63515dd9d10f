"""Progress that a script prints: epoch, step and loss in the newest lines of its log, for `status` only.

It never decides anything: whether a run hangs, restarts or is complete does not depend on it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_BYTES = 8192
"""How much of the end of a log is read at most, every few seconds."""
_OF = r"\W{0,3}(\d{1,12})(?:\s?/\s?(\d{1,12}))?"
_PATTERNS = (
    ("epoch", re.compile(rf"\bepoch{_OF}", re.IGNORECASE)),
    ("step", re.compile(rf"\b(?:global[ _])?(?:steps?|iter(?:ation)?s?|batch){_OF}", re.IGNORECASE)),
    ("step", re.compile(r"\d{1,3}%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})")),  # tqdm
)
_LOSS = re.compile(
    r"\bloss\b['\"]?\s*[:=]\s*([-+]?[0-9][0-9.]{0,15}(?:e[-+]?[0-9]{1,3})?|nan|inf)", re.IGNORECASE
)


def find_log_progress(text: str) -> str:
    """Return the newest epoch, step and loss in the lines of a log, such as `epoch 2/3, step 10/40, loss 0.69`.

    The forms are those of tqdm, paddle.Model, PaddleClas, PaddleSeg, PaddleNLP and many loops; empty: none was found.
    """
    found: dict[str, str] = {}
    for line in reversed(re.split(r"[\r\n]+", text)):
        for name, pattern in _PATTERNS:
            if name not in found and (match := pattern.search(line)):
                found[name] = f"{name} {match[1]}" + (f"/{match[2]}" if match[2] else "")
        if "loss" not in found and (match := _LOSS.search(line)):
            found["loss"] = f"loss {match[1]}"
    return ", ".join(found[name] for name in ("epoch", "step", "loss") if name in found)


def read_log_progress(log: Path) -> str:
    """Return the progress in the last TAIL_BYTES of a log file; empty if there is none, or no such file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return find_log_progress(file.read(TAIL_BYTES).decode(errors="replace"))
    except OSError:
        return ""
