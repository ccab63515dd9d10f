"""Download a model from an export in an S3 bucket (training.exportTo)."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from launcher.errors import DataError, GangError, SettingsError, setting_error
from launcher.io import files, s3
from launcher.io.bucket_export_format import LATEST, MARKER, ExportFolder
from launcher.io.retry import Retry
from launcher.paths import is_safe_name
from launcher.schema import ExportedFile, ExportMarker, from_json

TRIES, BASE_SECONDS = 5, 1.0
_FIXES = {
    "AccessDenied": "Allow the role or key that is used here s3:GetObject below the prefix, and s3:ListBucket",
    "NoSuchBucket": "Correct the name of the bucket",
}
"""S3's error code → the fix in the message."""
_ENLARGE = "use a larger disk, or a smaller model."
_SET_RUN = "Set the folder of an exported run, s3://BUCKET/PREFIX/JOB/RUN"


class ExportedModels:
    """Reads and downloads the exports of a job, or of one run, in a bucket.

    The URL is the folder of a run's export, or of a job, which has a folder for each run. Every method raises
    these errors.

    Raises:
        SettingsError: there is no complete export at the address.
        DataError: the export is damaged.
        GangError: S3 cannot be reached.
    """

    def __init__(self, url: str, asked_by: str) -> None:
        """Create the client; this sends no request. `asked_by` is the setting with `url`, for messages."""
        self._url, self._asked_by = url, asked_by
        retry = Retry(TRIES, BASE_SECONDS, doing="read", error=GangError, fix="check that S3 can be reached.")
        with self._rejections():
            self._folder = ExportFolder.open(url, retry)

    def latest(self) -> dict[str, Any] | None:
        """Return the content of latest.json, which has the address of the job's newest export; None if absent."""
        with self._rejections():
            content = self._folder.read(LATEST)
        return None if content is None else files.parse_json_object(self._folder.url(LATEST), content)

    def newest(self) -> ExportFolder:
        """Return this folder if it has an export (_SUCCESS.json), else the run's folder to which latest.json refers.

        With neither file return this folder, whose `download` then fails with the reason.
        """
        with self._rejections():
            if self._folder.read(MARKER) is None and (latest := self.latest()) is not None:
                return self.run_folder(latest)
        return self._folder

    def run_folder(self, latest: dict[str, Any]) -> ExportFolder:
        """Return the folder, next to latest.json, of the run that `latest`, the content of that file, refers to."""
        to = latest.get("to")
        name = to.rstrip("/").rpartition("/")[2] if isinstance(to, str) else ""
        if not is_safe_name(name):
            raise DataError(
                f"{self._folder.url(LATEST)} has no address in `to`. Fix: export the model again."
            )
        return self._folder.with_prefix(f"{self._folder.prefix}{name}/")

    def download(self, folder: ExportFolder, into: Path, require: Callable[[int], None]) -> Path:
        """Download a run's model to the folder `model` in `into`, and return it. An earlier folder is replaced.

        The folder gets its name when size and sha256 of all files are verified. Before the download, `require` is
        called with the model's size in bytes; it raises if there is no room.
        """
        model = into / "model"
        temporary = model.with_name(".model.tmp")
        files.remove_path(temporary)  # of a process that was killed: the disk need not have room for both
        with self._rejections(), contextlib.ExitStack() as undo:
            marker = folder.read(MARKER)
            if marker is None:
                raise self._invalid(
                    f"the folder has no {MARKER}, which an export writes last, so no export to it has finished"
                )
            where = folder.url(MARKER)
            try:
                listed = from_json(ExportMarker, files.parse_json_object(where, marker, ExportMarker)).files
            except files.UnreadableError as error:
                raise self._damaged(str(error).rstrip(".")) from error
            entries = {e.name.removeprefix("model/"): e for e in listed if e.name.startswith("model/")}
            if not entries:
                raise self._invalid(
                    "the export has no folder model/: a run with runtime v1 made it, which exports its last checkpoint "
                    "instead of a model",
                    "Serve the export of a run with runtime fleet",
                )
            folders = {str(parent) for name in entries for parent in PurePosixPath(name).parents}
            if both := entries.keys() & folders:
                raise self._damaged(f"{where} lists {min(both)!r} as a file and as a folder")
            require(sum(entry.bytes for entry in entries.values()))
            undo.callback(shutil.rmtree, temporary, ignore_errors=True)
            for name, entry in entries.items():
                self._fetch(folder, entry, temporary / name)
            with files.storage_errors(model):
                files.remove_path(model)
                temporary.rename(model)
        return model

    def _fetch(self, folder: ExportFolder, entry: ExportedFile, path: Path) -> None:
        """Download an object to the file `path`; raise `DataError` if its size or sha256 differs from `entry`."""
        found = folder.find(entry.name)
        is_intact = found is not None and found.size == entry.bytes
        with files.storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_intact:  # else the disk may have no room for it
                fetch = functools.partial(folder.bucket.call, "download_file", Filename=str(path))
                folder.request(entry.name, lambda key: fetch(Key=key))
                is_intact = files.sha256_file(path) == entry.sha256
        if not is_intact:
            raise self._damaged(
                f"{folder.url(entry.name)} does not have the sha256 in {MARKER}, or not the size"
            )

    def _damaged(self, reason: str) -> DataError:
        return DataError(f"{self._asked_by}: {reason}. Fix: export the model again.")

    def _invalid(self, reason: str, fix: str = _SET_RUN) -> SettingsError:
        """Return the error that says why no model can be downloaded from this address, and a fix."""
        limit = "s3://BUCKET/PREFIX of a complete export (training.exportTo)"
        return setting_error(self._asked_by, self._url, limit, reason, fix)

    @contextlib.contextmanager
    def _rejections(self) -> Iterator[None]:
        try:
            yield
        except s3.S3RejectedError as error:
            reason, _, fix = str(error).partition("Fix: ")
            fix = fix.rstrip(".") or _FIXES.get(error.code, _SET_RUN)
            raise self._invalid(reason.rstrip(". "), fix) from error


def download_model(url: str, into: Path, asked_by: str) -> Path:
    """Download the model of one run, or the newest one of a job, to `into`.

    `asked_by` is what needs the model, for messages. Raise the errors of `ExportedModels`.
    """
    exports = ExportedModels(url, asked_by)
    require = functools.partial(files.require_space, into, what="the model", fix=_ENLARGE)
    return exports.download(exports.newest(), into, require)
