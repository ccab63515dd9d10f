"""Export of the model to an S3 bucket (`training.exportTo`).

Rank 0's launcher uses `BucketExport`, which starts this module as a helper process. The helper process uses
`ModelUpload` and loads boto3, so the launcher itself does not load boto3. launcher/io/bucket_export_format.py describes
the files in the bucket.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher import runtimes
from launcher.errors import EXIT_UNFIT, ExportError, UnfitError, setting_error
from launcher.io import files, run_record, s3
from launcher.io.bucket_export_format import (
    LATEST,
    MARKER,
    RUN_FILES,
    STARTED,
    ExportFolder,
    run_folder_url,
)
from launcher.io.helper_protocol import HelperSpec, main, python_environ
from launcher.io.retry import Retry
from launcher.log import log, start_logging
from launcher.paths import OutputPaths, is_safe_name
from launcher.schema import ExportMarker, RunFile, read_fields
from launcher.settings import PREVIOUS, TrainSettings
from launcher.supervisor.helper_processes import HelperError, run_helper
from launcher.supervisor.timings import Timings


class BucketExport:
    """Checks the bucket before training, and uploads the model after training, each with a helper process.

    The argument `output_id` of its methods is `outputId` of run.json, which identifies the training.
    """

    def __init__(self, settings: TrainSettings, timings: Timings, pause: Callable[[float], None]) -> None:
        self._settings, self._timings, self._pause = settings, timings, pause
        self.url = run_folder_url(settings)

    def reserve(self, output_id: str) -> dict[str, str] | None:
        """Check before training that the run's folder in the bucket can be written, and mark the folder as used.

        Returns:
            {"to": address of the export, "program": sha256 of the program} for the newest export of this job by another
            run. None if there is no such export, or if training.initModelPath is not `previous`.

        Raises:
            SettingsError: the folder cannot be written, or belongs to another training.
            UnfitError: this pod has no credentials, but another pod may get some.
        """
        try:
            done = self._run("reserve", output_id, self._timings.reach)
        except ExportError as error:
            reason, fix = _split_fix(error)
            raise setting_error(
                "training.exportTo",
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
            {"to": address of the folder, "finished": time of the upload in Unix seconds, "objects": number of files of
            the export, "bytes": sum of their sizes}. If an earlier start has uploaded the same model, these are the
            values of that upload.

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
            module="launcher.supervisor.bucket_export",
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
            raise ExportError(f"{error}{slow}") from error


def _split_fix(error: ExportError) -> tuple[str, str]:
    """Return (reason, fix) in the text of `error`, each without a full stop at its end; the fix may be empty."""
    text = str(error).rstrip(" .\n")
    reason, found, fix = text.rpartition("Fix: ")
    if not found or "\n" in fix:  # a fix in the quoted lines of a log is not the error's own
        return text, ""
    return reason.rstrip(" ."), fix


_PARTS_AT_ONCE = 4  # of a large file, 8 MiB each
_FIXES = {
    "NoSuchBucket": "There is no such bucket. ",
    "AccessDenied": "The pods' role must allow s3:PutObject, s3:GetObject and s3:AbortMultipartUpload below "
    "the prefix, and s3:ListBucket of the bucket for it. ",
}
_CHECK_S3 = "check that S3 can be reached from the cluster's nodes."


class ModelUpload:
    """Uploads one run's model to its folder in the bucket.

    Its methods raise `ExportError` with the reason, and often with a fix; BucketExport adds the consequence, and a fix
    if there is none. They raise `UnfitError` if this pod has no credentials.
    """

    def __init__(self, settings: TrainSettings, output_id: str, retry: Retry) -> None:
        self._settings, self._output_id = settings, output_id
        self._output = OutputPaths(settings.layout.output)
        self.url = run_folder_url(settings)
        try:
            self._folder = ExportFolder.open(self.url, retry)
        except s3.S3RejectedError as error:
            raise ExportError(f"{self.url}: {error}") from error
        self._job = self._folder.with_prefix(self._folder.prefix.removesuffix(f"{settings.run_id}/"))
        """The folder of the job in the bucket. It contains one folder for each run, and latest.json."""

    def reserve(self) -> dict[str, Any]:
        """Check that no other training has exported to this run's folder, then write started.json to it.

        Only `outputId` in _SUCCESS.json is compared: a folder without that file counts as free, whatever is in it.
        The write of started.json shows that this pod may write to the folder.

        Returns:
            {"to": address of the folder, "latest": the result of `_find_latest()`}. `latest` is None unless
            training.initModelPath is `previous`.

        Raises:
            ExportError: _SUCCESS.json has another `outputId` or is damaged, or S3 rejects a request.
        """
        self._read_marker()
        latest = self._find_latest() if self._settings.init_model == PREVIOUS else None
        self._write_json(self._folder, STARTED, {**self._about_run(), "started": time.time()})
        return {"to": self.url, "latest": latest}

    def copy(self) -> dict[str, Any]:
        """Upload all files, then the marker _SUCCESS.json, then latest.json.

        If _SUCCESS.json lists the same model files already, only latest.json is written.

        Returns:
            {"to": address of the folder, "finished": time of the upload in Unix seconds, "objects": number of files in
            _SUCCESS.json, "bytes": sum of their sizes}.

        Raises:
            ExportError: _SUCCESS.json belongs to another training or is damaged, there is no model, a file has an
                unsafe name, or S3 rejects a request.
        """
        marker = self._read_marker()
        listed = self._list_files()
        if marker is not None and _model_files(marker.get("files")) == _model_files(listed):
            log.info("%s contains this model already: nothing to upload", self.url)
        else:
            for entry in listed:
                self._upload(str(entry["name"]), int(entry["bytes"]))
            trained = read_fields(RunFile, run_record.read(self._output)[0] or {}).finished
            finished = time.time()
            about = {**self._about_run(), "trained": trained or finished, "finished": finished}
            marker = {**about, "files": listed}
            self._write_json(self._folder, MARKER, marker)
        self._write_latest(marker)  # an earlier start may have failed to write it
        entries = marker["files"]
        size = sum(int(entry["bytes"]) for entry in entries)
        return {"to": self.url, "finished": marker.get("finished"), "objects": len(entries), "bytes": size}

    @contextlib.contextmanager
    def _export_errors(self, where: str) -> Iterator[None]:
        try:
            yield
        except s3.S3RejectedError as error:
            reason = str(error).rstrip(".")
            raise ExportError(f"{where}: {reason}. {_FIXES.get(error.code, '')}".strip()) from error

    def _write_json(self, folder: ExportFolder, name: str, value: Mapping[str, Any]) -> None:
        body = (json.dumps(value, indent=2) + "\n").encode()
        kind = "application/json"
        put = functools.partial(folder.bucket.call, "put_object", Body=body, ContentType=kind)
        with self._export_errors(folder.url(name)):
            folder.request(name, lambda key: put(Key=key))

    def _about_run(self) -> dict[str, Any]:
        s = self._settings
        about = {"version": 1, "runId": s.run_id, "jobName": s.job_name, "namespace": s.namespace}
        return {**about, "release": s.release, "outputId": self._output_id}

    def _read_marker(self) -> dict[str, Any] | None:
        """Return the content of _SUCCESS.json in this run's folder, or None if there is no such file.

        Raises:
            ExportError: the file has another `outputId`, because another training wrote it; or the file is damaged; or
                S3 rejects the request.
        """
        with self._export_errors(self._folder.url(MARKER)):
            content = self._folder.read(MARKER)
        if content is None:
            return None
        marker: dict[str, Any] = {}
        with contextlib.suppress(files.UnreadableError):
            marker = files.parse_json_object(MARKER, content, ExportMarker)
        if (owner := marker.get("outputId")) != self._output_id:
            raise ExportError(
                f"{self.url} contains the model of another training (outputId {owner} in its {MARKER}, this "
                f"run has {self._output_id}). That training may have the same values in another cluster, or have run "
                "before the shared storage was emptied. Its model is not overwritten: export to another address, "
                "or remove the files there if that model is no longer needed"
            )
        return marker

    def _list_files(self) -> list[dict[str, Any]]:
        """Return {"name", "bytes", "sha256"} of each file to upload; the name is relative to output/."""
        root = self._output.root
        model = self._output.model
        if not model.is_dir():
            newest = runtimes.load_runtime(self._settings.runtime).newest_checkpoint(root)
            model = model if newest is None else self._output.checkpoint(newest)
        found = files.folder_files(model) if model.is_dir() else []
        if not found:
            raise ExportError(
                f"no files to export: {model} is missing or empty, because its files were removed after the training "
                "or the program saved none. Restore them, or train again with any new text in `startFromScratch`"
            )
        found += [root / name for name in RUN_FILES if (root / name).is_file()]
        names = {path.relative_to(root).as_posix(): path for path in found}
        if wrong := [name for name in names if not is_safe_name(name)]:
            raise ExportError(f"the file {wrong[0]!r} has a name that a download would reject. Rename it")
        return [
            {"name": name, "bytes": path.stat().st_size, "sha256": files.sha256_file(path)}
            for name, path in names.items()
        ]

    def _upload(self, name: str, size: int) -> None:
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(max_concurrency=_PARTS_AT_ONCE)
        file = str(self._output.root / name)
        upload = functools.partial(self._folder.bucket.call, "upload_file", Filename=file, Config=config)
        with self._export_errors(self._folder.url(name)):
            self._folder.request(name, lambda key: upload(Key=key))
        log.info("exported %s (%s bytes)", self._folder.url(name), f"{size:,}")

    def _read_object(self, folder: ExportFolder, name: str) -> dict[str, Any] | None:
        """Return the JSON object `name` in `folder`; None if it is absent or damaged."""
        with self._export_errors(folder.url(name)):
            content = folder.read(name)
        try:
            return None if content is None else files.parse_json_object(name, content)
        except files.UnreadableError:
            log.warning(
                "%s is damaged (no JSON object) and is treated as missing, so `training.initModelPath: previous` "
                "may start from scratch. Fix: export that run again, or set training.initModelPath to its address",
                folder.url(name),
            )
            return None

    def _find_latest(self) -> dict[str, Any] | None:
        """Read latest.json in the job's folder of the bucket; return the newest complete export by another run.

        Returns:
            {"to": address of that run's folder, "program": sha256 of its program}; None if latest.json is absent or
            damaged, or refers to this run, to another folder, or to a run without _SUCCESS.json.
        """
        to = str((self._read_object(self._job, LATEST) or {}).get("to"))
        name = to.removeprefix(self._job.url("")).removesuffix("/")
        if to in (self.url, name) or "/" in name or not is_safe_name(name):
            return None
        run = self._job.with_prefix(s3.split_url(to)[1])
        if self._read_object(run, MARKER) is None:
            return None
        record = read_fields(RunFile, self._read_object(run, "run.json") or {})
        return {"to": to, "program": record.fingerprint.get("program")}

    def _write_latest(self, marker: Mapping[str, Any]) -> None:
        """Let the job's latest.json refer to this run's model, unless it refers to a model that was trained later.

        If it refers to such a model, this is logged, and the file is not changed. An `ExportError` is only logged,
        because latest.json is not needed to load the model.

        Args:
            marker: content of the file _SUCCESS.json of this run's export.
        """
        trained = marker.get("trained") or marker["finished"]
        try:
            present = self._read_object(self._job, LATEST) or {}
            if present.get("to") == self.url and present.get("finished") == marker["finished"]:
                return
            if present.get("to") != self.url and present.get("trained", 0.0) > trained:
                log.info(
                    "%s keeps the model of %s, which was trained later",
                    self._job.url(LATEST),
                    present.get("to"),
                )
                return
            value = {**self._about_run(), "trained": trained, "finished": marker["finished"], "to": self.url}
            self._write_json(self._job, LATEST, value)
        except ExportError as error:
            log.warning(
                "the export to %s is complete, but %s was not updated, so servers that read it do not find this "
                "model: %s. Fix: let them read the first address; or correct the cause, then start the run again with "
                "another runId, which exports the model again",
                self.url,
                self._job.url(LATEST),
                str(error).rstrip("."),
            )


def _model_files(entries: Any) -> list[Any]:
    """Return the entries of model files only, from the result of `_list_files` or from `files` in _SUCCESS.json."""
    return [entry for entry in entries or [] if entry.get("name") not in RUN_FILES]


def export(request: Mapping[str, Any]) -> dict[str, Any]:
    """Reserve the run's folder in the bucket, or copy the model to it (methods of `ModelUpload`).

    Args:
        request: `operation` (`reserve` at the start of a run, `copy` at its end); `outputId` of run.json; `tries` (how
            often the upload of each object is tried) and `base` (seconds before the second try).

    Raises:
        ExportError: the bucket cannot be written, the folder belongs to another training, or there is no model to copy.
        UnfitError: this pod has no credentials; another pod may get them.
    """
    settings = TrainSettings.from_environ()
    start_logging("export", settings.log_format)
    retry = Retry(request["tries"], request["base"], doing="written", error=ExportError, fix=_CHECK_S3)
    upload = ModelUpload(settings, request["outputId"], retry)
    return upload.reserve() if request["operation"] == "reserve" else upload.copy()


if __name__ == "__main__":
    main(export)
