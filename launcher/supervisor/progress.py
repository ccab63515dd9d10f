"""Read progress.json, in which the trainer (or a user's own program) writes how far it has trained."""

from __future__ import annotations

import math
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files
from launcher.settings import TrainSettings


def read_progress(settings: TrainSettings) -> dict[str, Any]:
    """Return the content of this rank's progress.json; {} if the file is missing or unreadable.

    docs/reference/file-formats.md describes its keys: pass, batch, state, loss and others.
    """
    try:
        return files.read_json(settings.work.progress) or {}
    except LauncherError:  # a user's own program may write anything there
        return {}


def finite_number(value: object) -> float | None:
    """Return `value` as a finite float, or None if it is not a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def whole_number(value: object) -> int | None:
    """Return `value` rounded towards 0, or None if it is not a finite number."""
    found = finite_number(value)
    return None if found is None else int(found)
