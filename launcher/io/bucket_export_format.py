"""Names of the objects of an exported model in an S3 bucket (`training.exportTo`), for upload and download.

s3://bucket/prefix/<job name>/
├── latest.json          which run was exported last, and its folder
└── <run id>/            one folder per run id. Once _SUCCESS.json exists, only the training with the same outputId may
    │                    export to it: a training in another cluster may have the same job name and run id
    ├── started.json     written when the run starts, to check that its pods may write here. Nothing reads it
    ├── model/…          copy of output/model/; without that folder, as with runtime v1: pass-<NNNNN>/…, a copy of the
    │                    newest checkpoint
    ├── run.json, metrics.csv, curve.png, report.html
    └── _SUCCESS.json    written last: lists every object with its size and sha256. Without it the export is
                         incomplete
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from launcher.io import s3
from launcher.io.retry import Retry
from launcher.settings import TrainSettings

STARTED, MARKER, LATEST = "started.json", "_SUCCESS.json", "latest.json"
RUN_FILES = ("run.json", "metrics.csv", "curve.png", "report.html")
"""Files about the run that are exported next to the model. They may change after the export of the model."""
FILE_BYTES = 64 << 20
"""Limit for the size of the JSON files in an export, which are read into memory."""
T = TypeVar("T")


def run_folder_url(settings: TrainSettings) -> str:
    """Return the s3:// address of the folder to which this run's model is exported, with a slash at its end."""
    return f"{settings.export_to.rstrip('/')}/{settings.job_name}/{settings.run_id}/"


@dataclass(frozen=True)
class ExportFolder:
    """A folder in an S3 bucket. Temporary errors are retried; a rejection by S3 raises `s3.S3RejectedError`."""

    bucket: s3.Bucket
    prefix: str
    """The folder's name in the bucket (the start of all its keys), with a slash at the end."""
    retry: Retry

    @classmethod
    def open(cls, url: str, retry: Retry) -> ExportFolder:
        """Return the folder at the address `url` (s3://bucket/prefix); this sends no request."""
        name, prefix = s3.split_url(url.rstrip("/") + "/")
        return cls(s3.Bucket(name), prefix, retry)

    def with_prefix(self, prefix: str) -> ExportFolder:
        """Return the folder of the same bucket whose name is `prefix`."""
        return dataclasses.replace(self, prefix=prefix)

    def url(self, name: str) -> str:
        """Return the s3:// address of the object `name` in this folder."""
        return self.bucket.url(self.prefix + name)

    def request(self, name: str, send: Callable[[str], T]) -> T:
        """Call `send` with the object's key in the bucket, and return its result; retry temporary errors."""
        return self.retry.call(self.url(name), lambda: send(self.prefix + name))

    def find(self, name: str) -> s3.S3Object | None:
        """Return the object `name` in this folder, or None if there is no such object."""
        # This lists the objects, because a GET of an absent object gets the answer "access denied" without the right
        # to list.
        found, _ = self.request(name, lambda key: self.bucket.list_page(key, 1))
        return found[0] if found and found[0].key == self.prefix + name else None

    def read(self, name: str) -> bytes | None:
        """Return the content of the small object `name` in this folder, or None if there is no such object.

        Raises:
            s3.S3RejectedError: the object has more than FILE_BYTES bytes, or S3 rejects the request.
        """
        found = self.find(name)
        if found is None:
            return None
        if found.size > FILE_BYTES:
            raise s3.S3RejectedError(
                f"{self.url(name)} has more than {FILE_BYTES:,} bytes, so it is no {name}"
            )
        return self.request(name, self.bucket.read)
