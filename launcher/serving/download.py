"""Download a model from an export in an S3 bucket (training.exportTo)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from launcher.errors import DataError, GangError, SettingsError, setting_message
from launcher.io import files, s3
from launcher.io.bucket_export_format import LATEST, MARKER, ExportFolder
from launcher.io.retry import Retry

TRIES, BASE_SECONDS = 5, 1.0


def download_model(url: str, into: Path, asked_by: str) -> Path:
    """Download a model, verify the sha256 of its files, and return its folder.

    Args:
        url: folder of a run's export in a bucket, or of a job, which means its newest run.
        into: folder to download to.
        asked_by: the setting or option with the URL, for messages.

    Raises:
        SettingsError: there is no complete export at the URL.
        DataError: a file has another sha256 than the export's marker file.
        GangError: S3 cannot be reached.
    """
    retry = Retry(TRIES, BASE_SECONDS, doing="read", error=GangError, fix="check that S3 can be reached.")

    def wrong(reason: str) -> SettingsError:
        limit = "s3://BUCKET/PREFIX of a complete export (training.exportTo)"
        return SettingsError(
            setting_message(asked_by, url, limit, reason, "Give the address of a run's folder of an export")
        )

    try:
        folder = ExportFolder.open(url, retry)
        marker = folder.read(MARKER)
        if marker is None and (latest := folder.read(LATEST)) is not None:
            folder = folder.with_prefix(s3.split_url(json.loads(latest)["to"])[1])
            marker = folder.read(MARKER)
        if marker is None:
            raise wrong(
                f"the folder has no {MARKER}, which an export writes last, so no export to it has finished"
            )
        listed: list[dict[str, Any]] = json.loads(marker)["files"]
        entries = [entry for entry in listed if entry["name"].startswith("model/")]
        if not entries:
            raise wrong(
                "the export has no folder model/: it is of a run with runtime v1, which uploads its last checkpoint "
                "instead of a model"
            )
        for entry in entries:
            name, path = entry["name"], into / entry["name"]
            with files.storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                download = functools.partial(folder.bucket.call, "download_file", Filename=str(path))
                folder.request(name, lambda key: download(Key=key))  # noqa: B023 - called here
            if files.sha256_file(path) != entry["sha256"]:
                raise DataError(
                    f"{asked_by}: {folder.url(name)} does not have the sha256 in {MARKER}. Fix: export the "
                    "model again."
                )
    except s3.S3RejectedError as error:
        raise wrong(str(error).rstrip(".")) from error
    return into / "model"
