"""Rank 0's side of `training.exportTo`: starts `launcher.export` and waits for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import files
from launcher.children import attend
from launcher.errors import EXIT_UNFIT, ExportError, SettingsError, UnfitError, setting
from launcher.export import Request, folder
from launcher.reporting.ending import describe_exit, last_lines
from launcher.reporting.log import log
from launcher.runtimes.base import ProcessSpec
from launcher.settings import TrainSettings
from launcher.timings import Timings

PACKAGES = Path(__file__).parents[2]


class Exporter:
    """The export of one run. `pause(seconds)` and `wake()` are the agent's: the former may raise to end
    it."""

    def __init__(
        self,
        settings: TrainSettings,
        timings: Timings,
        wake: Callable[[], None],
        pause: Callable[[float], None],
    ) -> None:
        self._settings, self._timings, self._wake, self._pause = settings, timings, wake, pause
        self.to = folder(settings)

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
        code = attend(spec, wake=self._wake, pause=self._pause, timings=t, seconds=seconds)
        if code is None:
            raise ExportError(f"it did not end within {seconds:.0f} s. See how fast S3 can be reached")
        told = files.read_json(answer) or {}
        if isinstance(told.get("done"), dict):
            return dict(told["done"])
        if code == EXIT_UNFIT:
            raise UnfitError(f"export to {self.to}: {told.get('error')}")
        ended = describe_exit(code)
        raise ExportError(
            str(
                told.get("error")
                or f"its process ended with {ended}; its last lines:\n{last_lines(log_file)}"
            )
        )
