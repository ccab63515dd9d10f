"""Download a model from an export in an S3 bucket (training.exportTo)."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.errors import DataError, GangError, SettingsError, setting_error
from launcher.io import files, s3
from launcher.io.bucket_export_format import LATEST, MARKER, ExportFolder
from launcher.io.retry import Retry

TRIES, BASE_SECONDS = 5, 1.0
_FIXES = {
    "AccessDenied": "Allow the role or key that is used here s3:GetObject below the prefix, and s3:ListBucket",
    "NoSuchBucket": "Correct the name of the bucket",
}
"""S3's error code → the fix in the message."""
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
        """Return this folder if it has an export (_SUCCESS.json), else that of the run to which latest.json refers.

        With neither file return this folder, whose `download` then fails with the reason.
        """
        with self._rejections():
            if self._folder.read(MARKER) is None and (latest := self.latest()) is not None:
                return self.run_folder(latest)
        return self._folder

    def run_folder(self, latest: dict[str, Any]) -> ExportFolder:
        """Return the folder of the run to which the content of latest.json refers."""
        try:
            return self._folder.with_prefix(s3.split_url(latest["to"])[1])
        except (KeyError, AttributeError) as error:
            raise DataError(
                f"{self._folder.url(LATEST)} has no address in `to`. Fix: export the model again."
            ) from error

    def download(self, folder: ExportFolder, into: Path, require: Callable[[int], None]) -> Path:
        """Download a run's model, verify the sha256 of its files, and return its folder.

        Before the download, `require` is called with the model's size in bytes; it raises if there is no room.
        """
        with self._rejections():
            marker = folder.read(MARKER)
            if marker is None:
                raise self._invalid(
                    f"the folder has no {MARKER}, which an export writes last, so no export to it has finished"
                )
            listed: list[dict[str, Any]] = json.loads(marker)["files"]
            entries = [entry for entry in listed if entry["name"].startswith("model/")]
            if not entries:
                raise self._invalid(
                    "the export has no folder model/: a run with runtime v1 made it, which exports its last checkpoint "
                    "instead of a model",
                    "Serve the export of a run with runtime fleet",
                )
            require(sum(int(entry["bytes"]) for entry in entries))
            for entry in entries:
                name, path = entry["name"], into / entry["name"]
                with files.storage_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    download = functools.partial(folder.bucket.call, "download_file", Filename=str(path))
                    folder.request(name, lambda key: download(Key=key))  # noqa: B023 - called here
                if files.sha256_file(path) != entry["sha256"]:
                    raise DataError(
                        f"{self._asked_by}: {folder.url(name)} does not have the sha256 in {MARKER}. Fix: export "
                        "the model again."
                    )
        return into / "model"

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
    """Download the newest model of a job, or that of one run, to `into`. Raise the errors of `ExportedModels`."""
    exports = ExportedModels(url, asked_by)
    return exports.download(exports.newest(), into, lambda _: None)
