"""Find the progress that a script prints: epoch, step and loss in the newest lines of its log.

The progress is written to status.json, and the command `status` and the dashboard show it. Nothing else depends on it,
such as whether a run hangs, restarts or is complete.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

TAIL_BYTES = 8192
"""At most this many bytes at the end of a log are read, every few seconds."""
_NUMBER = r"(\d{1,3}(?:,\d{3}){1,4}|\d{1,12})"
_OF = rf"\W{{0,3}}{_NUMBER}(?:\s?/\s?{_NUMBER})?"
_FLAGS = re.ASCII | re.IGNORECASE  # ASCII: a Chinese character before "epoch" ends a word
_PATTERNS = (
    ("epoch", re.compile(rf"\bepoch{_OF}", _FLAGS)),
    ("step", re.compile(rf"\b(?:global[ _])?(?:steps?|iter(?:ation)?s?|batch(?:_id)?){_OF}", _FLAGS)),
    ("step", re.compile(rf"\bepoch\W{{0,3}}\d{{1,12}}\W{{0,3}}\[\s{{0,9}}{_NUMBER}/{_NUMBER}", _FLAGS)),
    ("step", re.compile(rf"\d{{1,3}}%\|[^|]{{0,200}}\|\s*{_NUMBER}/{_NUMBER}")),  # tqdm
    (
        "loss",
        re.compile(
            r"(?<![a-z0-9_])(?:(?:train|avg|total)[_ ])?loss['\"]?(?:\s?is)?[\s:=\uff1a]{0,3}\[?"
            r"([-+]?[0-9][0-9.]{0,15}(?:e[-+]?[0-9]{1,3})?|nan\b|inf\b)",
            _FLAGS,
        ),
    ),
)
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


def find_log_progress(text: str) -> str:
    """Return the newest epoch, step and loss in the lines of a log, such as `epoch 2/3, step 10/40, loss 0.69`.

    The result is empty if none of them was found. The function recognizes the lines of tqdm, paddle.Model, PaddleClas,
    PaddleDetection, PaddleNLP, PaddleOCR and PaddleSeg, of the examples in Paddle's documentation, and of many training
    loops.
    """
    found: dict[str, str] = {}
    for line in reversed(re.split(r"[\r\n]+", _COLOURS.sub("", text))):
        for name, pattern in _PATTERNS:
            if name not in found and (match := pattern.search(line)):
                found[name] = f"{name} " + "/".join(filter(None, match.groups()))
    return ", ".join(found[name] for name in ("epoch", "step", "loss") if name in found)


def read_log_progress(log: Path) -> str:
    """Return the progress in the last TAIL_BYTES of a log file, as `find_log_progress` does.

    The result is empty if the log shows no progress or cannot be read.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return find_log_progress(file.read(TAIL_BYTES).decode(errors="replace"))
    except OSError:
        return ""
