"""Download a model from its export in an S3 bucket (training.exportTo)."""

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
"""Error code of S3 → text after `Fix:` in the message."""
_ENLARGE = "use a larger disk, or a smaller model."
_SET_RUN = "Set the folder of an exported run, s3://BUCKET/PREFIX/JOB/RUN"


class ExportedModels:
    """Reads and downloads exported models in an S3 bucket.

    The URL is the folder of one run's export, or the folder of a job, which has a folder for the export of each run.
    Every method can raise the errors below.

    Raises:
        SettingsError: there is no complete export at the URL, or S3 rejected a request.
        DataError: the export is damaged.
        GangError: S3 cannot be reached.
        UnfitError: this pod has no credentials for S3.
    """

    def __init__(self, url: str, asked_by: str) -> None:
        """Create the client without sending a request to S3.

        `asked_by` is the setting that contains `url`, for messages.
        """
        self._url, self._asked_by = url, asked_by
        retry = Retry(TRIES, BASE_SECONDS, doing="read", error=GangError, fix="check that S3 can be reached.")
        with self._rejections():
            self._folder = ExportFolder.open(url, retry)

    def latest(self) -> dict[str, Any] | None:
        """Return the content of the job's latest.json, which refers to the newest export; None without this file."""
        with self._rejections():
            content = self._folder.read(LATEST)
        return None if content is None else files.parse_json_object(self._folder.url(LATEST), content)

    def newest(self) -> ExportFolder:
        """Return the folder of the newest export.

        If the folder of the URL has an export (_SUCCESS.json), it is that folder. Else it is the folder of the run that
        latest.json refers to. If neither file exists, return the folder of the URL; `download` then fails with the
        reason.
        """
        with self._rejections():
            if self._folder.read(MARKER) is None and (latest := self.latest()) is not None:
                return self.run_folder(latest)
        return self._folder

    def run_folder(self, latest: dict[str, Any]) -> ExportFolder:
        """Return the folder of the run that `latest` refers to.

        `latest` is the content of latest.json. The folder is next to this file.
        """
        to = latest.get("to")
        name = to.rstrip("/").rpartition("/")[2] if isinstance(to, str) else ""
        if not is_safe_name(name):
            raise DataError(
                f"{self._folder.url(LATEST)} has no address in `to`. Fix: export the model again."
            )
        return self._folder.with_prefix(f"{self._folder.prefix}{name}/")

    def download(self, folder: ExportFolder, into: Path, require: Callable[[int], None]) -> Path:
        """Download the model in the export `folder` to the folder `into`/model, and return the path of this folder.

        A model that is already there is replaced.

        The download goes to a temporary folder, which is renamed when size and sha256 of all files are verified. Before
        the download, the function `require` is called with the model's size in bytes. It must raise an error if there
        is not enough space.

        Raises:
            StorageError, StorageFailedError: the disk cannot be written. For other errors see the class.
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
        """Download an object to the file `path`. Raise `DataError` if its size or sha256 differs from `entry`."""
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
        """Return the error for an address without a model. `reason` says what is wrong, and `fix` what to do."""
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
    """Download the model of one run, or the newest model of a job, to the folder `into`/model; return its path.

    `url` is the folder of the run's export or of the job. `asked_by` is the setting that contains `url`, for messages.
    The errors are those of `ExportedModels`, and `StorageError` or `StorageFailedError` if the folder has too little
    free space or cannot be written.
    """
    exports = ExportedModels(url, asked_by)
    require = functools.partial(files.require_space, into, what="the model", fix=_ENLARGE)
    return exports.download(exports.newest(), into, require)
