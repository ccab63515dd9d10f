"""The model of an export in a bucket, onto a disk of one's own."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from launcher import files, s3
from launcher.errors import DataError, GangError, SettingsError, setting
from launcher.retry import Retry

MARKER, LATEST = "_SUCCESS.json", "latest.json"  # as launcher/export.py puts them
TRIES, BASE_SECONDS = 5, 1.0


def model(url: str, into: Path, asked_by: str) -> Path:
    """The folder of the model, each file as long and with the sha256 that the export's marker says.

    `url`: a run's folder of an export, or the job's folder (its last run then). `asked_by`: the setting that
    has it, for messages. Raises `SettingsError` when there is no whole export, `DataError`, `GangError`.
    """
    retry = Retry(TRIES, BASE_SECONDS, doing="read", error=GangError, mend="See whether S3 can be reached.")
    name, prefix = s3.address(url.rstrip("/") + "/")

    def wrong(reason: str) -> SettingsError:
        limit = "s3://BUCKET/PREFIX of a whole export (training.exportTo)"
        return SettingsError(setting(asked_by, url, limit, reason, "Name the run's folder of an export"))

    try:
        bucket = s3.Bucket(name)

        def read(key: str) -> bytes | None:
            # A listing, since without the right to list S3 answers a get of what is absent with "denied".
            found, _ = retry.call(bucket.url(key), lambda: bucket.page(key, 1))
            if not found or found[0].key != key:
                return None
            return retry.call(bucket.url(key), lambda: bucket.read(key))

        marker = read(prefix + MARKER)
        if marker is None and (latest := read(prefix + LATEST)) is not None:
            prefix = s3.address(json.loads(latest)["to"])[1]
            marker = read(prefix + MARKER)
        if marker is None:
            raise wrong(f"there is no {MARKER} of a whole export")
        listed: list[dict[str, Any]] = json.loads(marker)["files"]
        entries = [entry for entry in listed if entry["name"].startswith("model/")]
        if not entries:
            raise wrong("the export has no model/")
        for entry in entries:
            path = into / entry["name"]
            with files.storage(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                key, target = prefix + entry["name"], str(path)
                get = functools.partial(bucket.call, "download_file", Key=key, Filename=target)
                retry.call(bucket.url(key), get)
            if files.sha256_file(path) != entry["sha256"]:
                where = bucket.url(prefix + entry["name"])
                raise DataError(f"{asked_by}: {where} has another sha256 than {MARKER} says.")
    except s3.RefusedError as error:
        raise wrong(str(error).rstrip(".")) from error
    return into / "model"
