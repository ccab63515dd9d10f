"""`training.exportTo`: what a complete run leaves behind, copied to a bucket. A process of its own.

s3://bucket/prefix/<job name>/
├── latest.json          the run that was exported last, and where it lies
└── <run id>/            one folder a run, which no other run writes to
    ├── started.json     put when the run starts: the place can be written, and whose it is
    ├── model/…          as output/model/ (runtime v1 leaves none: its last pass-<NNNNN>/ instead)
    ├── run.json, metrics.csv, curve.png, report.html
    └── _SUCCESS.json    put last: every object with its size and sha256; without it nothing here is whole

The launcher starts `python -m launcher.export REQUEST` and stays free of boto3 itself. REQUEST is a `Request`
as JSON. The answer, `{"done": …}` or `{"error": text}`, goes to a file that the request names.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from launcher import files, runtimes, s3
from launcher.errors import ExportError, LauncherError, StoppedError
from launcher.layout import Output
from launcher.reporting.log import begin, log
from launcher.retry import Retry
from launcher.settings import TrainSettings

STARTED, MARKER, LATEST = "started.json", "_SUCCESS.json", "latest.json"
RECORDS = ("run.json", "metrics.csv", "curve.png", "report.html")
"""Files about the run. A later start writes some anew: they do not decide what is exported already."""
_PARTS_AT_ONCE = 4  # of a large file, 8 MiB each
_MENDS = {
    "NoSuchBucket": "There is no such bucket. ",
    "AccessDenied": "The pods' role must allow s3:PutObject, s3:GetObject and s3:AbortMultipartUpload below "
    "the prefix, and s3:ListBucket of the bucket for it. ",
}
_REACH = "See whether S3 can be reached from the cluster's nodes."
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What the launcher asks for."""

    do: str
    """`reserve` at the start of a run, `copy` at its end."""
    output_id: str
    """run.json's `outputId`: tells two trainings apart that have the same run id."""
    answer: str
    """The file for the answer."""
    tries: int
    """In a row, for each object."""
    base: float
    """Seconds before the second try."""

    def text(self) -> str:
        """As the process's argument."""
        return json.dumps(asdict(self))


def folder(settings: TrainSettings) -> str:
    """The address of this run's folder, with a slash at its end."""
    return f"{settings.export_to.rstrip('/')}/{settings.job_name}/{settings.run_id}/"


class Export:
    """One run's folder in the bucket. Raises `ExportError` with the reason alone; the caller adds its own."""

    def __init__(self, settings: TrainSettings, output_id: str, retry: Retry) -> None:
        self._settings, self._output_id, self._retry = settings, output_id, retry
        self._output = Output(settings.layout.output)
        self.to = folder(settings)
        name, self._key = s3.address(self.to)
        try:
            self._bucket = s3.Bucket(name)
        except s3.RefusedError as error:
            raise ExportError(f"{self.to}: {error}") from error

    def _ask(self, key: str, request: Callable[[], T]) -> T:
        where = self._bucket.url(key)
        try:
            return self._retry.call(where, request)
        except s3.RefusedError as error:
            reason = str(error).rstrip(".")
            raise ExportError(f"{where}: {reason}. {_MENDS.get(error.code, '')}".strip()) from error

    def _put(self, key: str, value: Mapping[str, Any]) -> None:
        body = (json.dumps(value, indent=2) + "\n").encode()
        kind = "application/json"
        self._ask(key, lambda: self._bucket.call("put_object", Key=key, Body=body, ContentType=kind))

    def _about(self) -> dict[str, Any]:
        s = self._settings
        about = {"version": 1, "runId": s.run_id, "jobName": s.job_name, "namespace": s.namespace}
        return {**about, "release": s.release, "outputId": self._output_id}

    def _marker(self) -> dict[str, Any] | None:
        """This run's marker, if it was exported before; `ExportError` when it is another training's."""
        key = self._key + MARKER
        # A listing, since without the right to list S3 answers a get of what is absent with "denied".
        found, _ = self._ask(key, lambda: self._bucket.page(key, 1))
        if not found or found[0].key != key:
            return None
        try:
            marker = json.loads(self._ask(key, lambda: self._bucket.read(key)))
            owner = marker["outputId"]
        except (ValueError, TypeError, KeyError):
            marker, owner = {}, None
        if owner != self._output_id:
            raise ExportError(
                f"{self.to} holds the model of another training (its {MARKER} says outputId {owner}, this "
                f"one's is {self._output_id}): one of the same values, in another cluster or before the "
                "shared storage was emptied. It is not overwritten"
            )
        return dict(marker)

    def reserve(self) -> dict[str, Any]:
        """Sees that the place is free or ours, and can be written."""
        self._marker()
        self._put(self._key + STARTED, {**self._about(), "started": time.time()})
        return {"to": self.to}

    def copy(self) -> dict[str, Any]:
        """Copies everything, the marker last; nothing when the marker of this very model is there."""
        marker = self._marker()
        listed = self._listed()
        if marker is not None and _model(marker.get("files")) == _model(listed):
            log.info("%s holds this model already: nothing to upload", self.to)
            return self._summary(marker)
        for entry in listed:
            self._upload(str(entry["name"]), int(entry["bytes"]))
        marker = {**self._about(), "finished": time.time(), "files": listed}
        self._put(self._key + MARKER, marker)
        self._point_here(marker)
        return self._summary(marker)

    def _listed(self) -> list[dict[str, Any]]:
        """Name below the output folder, bytes and sha256 of each file."""
        root = self._output.root
        model = self._output.model
        newest = None if model.is_dir() else runtimes.load(self._settings.runtime).newest_save(root)
        if newest is not None:
            model = self._output.save(newest)
        found = files.folder_files(model) if model.is_dir() else []
        if not found:
            raise ExportError(f"there is nothing to export: {self._output.model} has no files")
        found += [root / name for name in RECORDS if (root / name).is_file()]
        return [
            {
                "name": path.relative_to(root).as_posix(),
                "bytes": path.stat().st_size,
                "sha256": files.sha256_file(path),
            }
            for path in found
        ]

    def _upload(self, name: str, size: int) -> None:
        from boto3.s3.transfer import TransferConfig

        key, path = self._key + name, str(self._output.root / name)
        config = TransferConfig(max_concurrency=_PARTS_AT_ONCE)
        self._ask(key, lambda: self._bucket.call("upload_file", Key=key, Filename=path, Config=config))
        log.info("exported %s (%s bytes)", self._bucket.url(key), f"{size:,}")

    def _point_here(self, marker: Mapping[str, Any]) -> None:
        """latest.json. It only helps a person to find the folder, so its failure is none of the export."""
        key = self._key.removesuffix(f"{self._settings.run_id}/") + LATEST
        try:
            self._put(key, {**self._about(), "finished": marker["finished"], "to": self.to})
        except ExportError as error:
            log.warning("%s still names an earlier run: %s", self._bucket.url(key), error)

    def _summary(self, marker: Mapping[str, Any]) -> dict[str, Any]:
        entries = marker["files"]
        size = sum(int(entry["bytes"]) for entry in entries)
        return {"to": self.to, "finished": marker.get("finished"), "objects": len(entries), "bytes": size}


def _model(entries: Any) -> list[Any]:
    """The entries without those of RECORDS."""
    return [entry for entry in entries or [] if entry.get("name") not in RECORDS]


def main(arguments: list[str]) -> int:
    """Does what the one argument asks for; the exit code is 0 when that was done."""
    settings = TrainSettings.from_environ()
    begin("export", settings.log_format)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _stop)
    request = Request(**json.loads(arguments[0]))
    try:
        export = Export(
            settings,
            request.output_id,
            Retry(request.tries, request.base, doing="written", error=ExportError, mend=_REACH),
        )
        done = export.reserve() if request.do == "reserve" else export.copy()
    except StoppedError as error:
        return error.exit_code
    except (LauncherError, OSError) as error:
        files.write_json(Path(request.answer), {"error": str(error)})
        # 71 (a pod without keys) is no refusal of the bucket: another pod may export.
        return getattr(error, "exit_code", ExportError.exit_code)
    files.write_json(Path(request.answer), {"done": done})
    return 0


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)  # a second one must not break the clean-up of a multipart upload
    raise StoppedError(f"told to stop ({signal.Signals(number).name})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
