"""Rank 0's side of `training.exportTo`: starts `launcher.export` and waits, while it handles events."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import ExportError, SettingsError, setting
from launcher.export import Request, folder
from launcher.gang import children
from launcher.gang.children import Child
from launcher.gang.ending import describe_exit, last_lines
from launcher.gang.events import Events
from launcher.gang.log import log
from launcher.gang.timings import Timings
from launcher.runtimes.base import ProcessSpec
from launcher.settings import TrainSettings

PACKAGES = Path(__file__).parents[2]


class Exporter:
    """The export of one run. `take(seconds)` is the agent's: it handles one event, and may end the run."""

    def __init__(
        self, settings: TrainSettings, timings: Timings, events: Events, take: Callable[[float], None]
    ) -> None:
        self._settings, self._timings, self._events, self._take = settings, timings, events, take
        self._child: Child | None = None
        self.to = folder(settings)

    def pids(self) -> set[int]:
        """Of the process, while there may be one."""
        return set() if self._child is None else {self._child.pid}

    def reserve(self, output_id: str) -> None:
        """Before hours of training: sees that the place can be written.

        Raises `SettingsError` when it cannot, or is another training's.
        """
        try:
            self._run("reserve", output_id, self._timings.reach)
        except ExportError as error:
            raise SettingsError(
                setting(
                    "training.exportTo (PADDLE_LAUNCHER_EXPORT_TO)",
                    self._settings.export_to,
                    "a bucket and prefix that the pods can reach and write to, free for this run",
                    str(error).rstrip("."),
                    "Mend that, set another training.exportTo (empty: no export), or runId to another text",
                )
            ) from error
        log.info("the model will be exported to %s", self.to)

    def copy(self, output_id: str) -> dict[str, Any]:
        """Copies the complete output. Raises `ExportError`, which says that nothing is lost."""
        log.info("exporting to %s", self.to)
        try:
            done = self._run("copy", output_id, self._timings.export)
        except ExportError as error:
            raise ExportError(
                "the training is complete and its model is whole in output/ on the shared storage; only its "
                f"export to {self.to} failed: {str(error).rstrip('.')}. Then start the run again (helm "
                "upgrade with --reset-then-reuse-values --set-string runId=… makes a new Job of it): nothing "
                "is trained again, only the export is repeated."
            ) from error
        log.info("exported %d objects, %s bytes, to %s", done["objects"], f"{done['bytes']:,}", done["to"])
        return done

    def _run(self, do: str, output_id: str, seconds: float) -> dict[str, Any]:
        work, t = self._settings.work, self._timings
        answer, log_file = work.export_answer, work.export_log(do)
        for path in (answer, log_file):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        request = Request(do, output_id, str(answer), t.export_tries, t.export_base)
        spec = ProcessSpec(
            name="export",
            role="export",
            argv=(sys.executable, "-m", "launcher.export", request.text()),
            env=self._settings.environ,
            cwd=PACKAGES,
            log=log_file,
        )
        self._child = child = Child(spec, self._events)
        echo = children.Echo(spec.log)
        deadline = time.monotonic() + seconds
        try:
            while not child.done.is_set():
                self._take(t.poll)
                if time.monotonic() >= deadline:
                    raise ExportError(
                        f"it did not end within {seconds:.0f} s. See how fast S3 can be reached"
                    )
        finally:
            children.stop([child], t.stop)
            echo.close()
        told = files.read_json(answer) or {}
        if isinstance(told.get("done"), dict):
            return dict(told["done"])
        ended = describe_exit(child.returncode or 0)
        raise ExportError(
            str(
                told.get("error")
                or f"its process ended with {ended}; its last lines:\n{last_lines(log_file)}"
            )
        )
