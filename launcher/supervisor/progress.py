"""Read progress.json, in which each trainer (or a user's own program) writes how far it has trained."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError
from launcher.io import files
from launcher.settings import TrainSettings

MAX_BYTES = 1 << 14
"""A longer progress.json is not read: a rank's state contains it, and is sent to rank 0 several times a second."""


def read_progress(settings: TrainSettings) -> dict[str, Any]:
    """Return the progress of this rank's trainers, combined; {} if none has a readable progress.json.

    docs/reference/file-formats.md describes its keys: pass, batch, state, loss and others.
    """
    found = [_read(settings.work.trainer_progress(number)) for number in range(settings.processes_per_pod)]
    return combine_progress([progress for progress in found if progress])


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(LauncherError, OSError):  # a user's own program may write anything there
        if path.stat().st_size <= MAX_BYTES:
            return files.read_json(path) or {}
    return {}


def combine_progress(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the progress of the trainers of one pod: that of the slowest one, with the speed of all together."""
    if len(found) <= 1:
        return found[0] if found else {}
    slowest = min(
        found, key=lambda one: (whole_number(one.get("pass")) or 0, whole_number(one.get("batch")) or 0)
    )
    sums = {
        key: sum(numbers)
        for key in ("samples_per_second", "batch_size")
        if (numbers := [number for one in found if (number := finite_number(one.get(key))) is not None])
    }
    losses = [loss for one in found if (loss := finite_number(one.get("loss"))) is not None]
    saved = {key: one[key] for one in reversed(found) for key in ("saved", "bytes") if one.get(key)}
    return {**slowest, **sums, **saved, "loss": sum(losses) / len(losses) if losses else None}


def finite_number(value: object) -> float | None:
    """Return `value` as a finite float, or None if it is not a finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return number if math.isfinite(number) else None


def whole_number(value: object) -> int | None:
    """Return `value` rounded towards 0, or None if it is not a finite number."""
    found = finite_number(value)
    return None if found is None else int(found)
