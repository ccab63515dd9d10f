"""Write progress.json, in which a trainer or a user's script tells the launcher how far it has trained."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

from launcher.io import files
from launcher.schema import to_json

WRITE_SECONDS = 0.5
"""Shortest time in seconds between two calls of `ProgressFile.set` that write progress.json without a change of `state`
or `saved`."""


class ProgressFile:
    """Writes the progress.json of a process at most twice a second, and at once after an important change.

    Important changes are a new `state`, a new checkpoint (`saved`), and an event (`mark`).

    The file is replaced atomically but not synced: training must not wait for a disk, and the file is of no
    use after its pod is gone.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, *, saves: bool = True
    ) -> None:
        """Set the initial fields, but write no file.

        `saves` says whether this process saves checkpoints. If it does not, progress.json has no field `saved` until
        `start_saving` is called.
        """
        self._path = path
        self._temp = path.with_name(f".{path.name}.tmp")
        self._clock = clock
        self._written = float("-inf")
        self._marks: dict[str, float] = {}
        self._values: dict[str, object] = {
            "pass": 0,
            "batch": 0,
            "batches": 0,
            "samples_per_second": 0.0,
            "loss": None,
            "step_seconds": None,
            "state": "starting",
            "saved": None,
            "bytes": 0,
            "marks": self._marks,
        }
        if not saves:
            del self._values["saved"]

    def note(self, **values: object) -> None:
        """Set fields (docs/reference/files.md) for the next write of progress.json.

        NaN and infinity become null, since JSON has neither.
        """
        for key, value in values.items():
            self._values[key] = None if isinstance(value, float) and not math.isfinite(value) else value

    def set(self, **values: object) -> None:
        """Set fields, and write the file if WRITE_SECONDS have passed or `state` or `saved` changed."""
        changed = any(
            key in ("state", "saved") and self._values.get(key) != new for key, new in values.items()
        )
        self.note(**values)
        if changed or self._clock() - self._written >= WRITE_SECONDS:
            self.write()

    def mark(self, name: str, **values: object) -> None:
        """Record the Unix time at which event `name` (such as `imported`, `joined`) first occurred; write the file."""
        self._marks.setdefault(name, time.time())
        self.note(**values)
        self.write()

    def stepped(self, **values: object) -> None:
        """Set fields after a trained batch; the first batch also sets the state `training`."""
        if "first_batch" not in self._marks:
            self.mark("first_batch", state="training", **values)
        else:
            self.set(**values)

    def resume_training(self) -> None:
        """Set the state `training` before more batches are trained.

        In this state the launcher expects a batch within training.progressDeadlineSeconds. Before the first batch of
        this process, this method does nothing, because the first batch may take longer.
        """
        if "first_batch" in self._marks:
            self.set(state="training")

    def start_saving(self) -> None:
        """Add the field `saved` with the value null if it is absent: from now on this process saves checkpoints."""
        if "saved" not in self._values:
            self._values["saved"] = None
            self.write()

    def write(self) -> None:
        """Replace progress.json by the current fields now, without waiting for WRITE_SECONDS.

        Raises:
            StorageError, StorageFailedError: the file cannot be written, for example because the pod's disk is full.
        """
        self._written = self._clock()
        with files.storage_errors(self._path):
            self._temp.write_text(json.dumps(to_json(self._values)), "utf-8")
            self._temp.replace(self._path)
