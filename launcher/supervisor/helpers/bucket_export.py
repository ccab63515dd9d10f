"""Export of the model to an S3 bucket (`training.exportTo`): rank 0 starts bucket_export_process.py for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.errors import EXIT_UNFIT, ExportError, UnfitError, setting_error
from launcher.io.bucket_export_format import run_folder_url
from launcher.io.helper_protocol import HelperSpec, python_environ
from launcher.log import log
from launcher.settings import TrainSettings
from launcher.supervisor.helpers.helper_process import HelperError, run_helper
from launcher.supervisor.timings import Timings


class BucketExport:
    """Checks the bucket before a training, and uploads the model after it, each with a helper process.

    `output_id` is `outputId` of run.json, which identifies the training.
    """

    def __init__(self, settings: TrainSettings, timings: Timings, pause: Callable[[float], None]) -> None:
        self._settings, self._timings, self._pause = settings, timings, pause
        self.url = run_folder_url(settings)

    def reserve(self, output_id: str) -> dict[str, str] | None:
        """Check before the training that the run's folder in the bucket can be written, and mark it as used.

        Returns:
            With training.initModelPath `previous`: `to` (address) and `program` (sha256) of the job's newest
            export, or None if it has none.

        Raises:
            SettingsError: the folder cannot be written, or belongs to another training.
            UnfitError: this pod has no credentials, but another pod may get some.
        """
        try:
            done = self._run("reserve", output_id, self._timings.reach)
        except ExportError as error:
            reason, fix = _split_fix(error)
            raise setting_error(
                "training.exportTo (PADDLE_LAUNCHER_EXPORT_TO)",
                self._settings.export_to,
                "a bucket and prefix that the pods can reach and write to, and that no other training uses",
                reason,
                f"{fix or 'Correct that'}; or set another training.exportTo (empty: none), or set another runId",
            ) from error
        log.info("the model will be exported to %s", self.url)
        latest: dict[str, str] | None = done.get("latest")
        return latest

    def copy(self, output_id: str) -> dict[str, Any]:
        """Upload the model and the files about the run.

        Returns:
            to (address), finished (Unix seconds), objects (how many), bytes.

        Raises:
            ExportError: the upload failed; the model in output/ is not affected.
            UnfitError: this pod has no credentials, but another pod may get some.
        """
        log.info("exporting to %s", self.url)
        try:
            done = self._run("copy", output_id, self._timings.export)
        except ExportError as error:
            reason, fix = _split_fix(error)
            raise ExportError(
                "the training is complete and its model is in output/ on the shared storage; only the export to "
                f"{self.url} failed: {reason}. Fix: {fix or 'correct that'}, then start the run again (helm upgrade "
                "with --reset-then-reuse-values --set-string runId=… creates a new Job): it repeats only the export."
            ) from error
        log.info("exported %d objects, %s bytes, to %s", done["objects"], f"{done['bytes']:,}", done["to"])
        return done

    def _run(self, operation: str, output_id: str, seconds: float) -> dict[str, Any]:
        t = self._timings
        spec = HelperSpec(
            name=f"export-{operation}",
            module="launcher.supervisor.helpers.bucket_export_process",
            request={
                "operation": operation,
                "outputId": output_id,
                "tries": t.export_tries,
                "base": t.export_base,
            },
            environ=python_environ(self._settings.environ),
        )
        try:
            return run_helper(spec, self._settings.work, t, self._pause, seconds=seconds)
        except HelperError as error:
            if error.returncode == EXIT_UNFIT:
                raise UnfitError(f"this pod cannot export to {self.url}: {error}") from error
            slow = " (the bandwidth from the node to S3 may be too low)" if error.returncode is None else ""
            raise ExportError(f"{error}{error.log_lines}{slow}") from error


def _split_fix(error: ExportError) -> tuple[str, str]:
    """Return the reason and the fix (empty without one) in the text of `error`, without full stops at their ends."""
    text = str(error).rstrip(" .\n")
    reason, found, fix = text.rpartition("Fix: ")
    if not found or "\n" in fix:  # a fix in the quoted lines of a log is not that of the error
        return text, ""
    return reason.rstrip(" ."), fix
