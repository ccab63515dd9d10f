"""Sources of newer models for the server: the exports of a job in a bucket, or a folder of a mounted volume."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import StorageFailedError
from launcher.io import files, s3
from launcher.serving.download import ExportedModels

Require = Callable[[int], None]
"""Called with the size of a model in bytes before it is copied; raises if there is no room for it."""


@dataclass(frozen=True)
class FoundModel:
    """Describes a complete model that a source has found; nothing is copied yet."""

    identity: str
    """Text that differs from that of every other model of the source."""
    address: str
    """Address of the model, for messages."""
    copy: Callable[[Path, Require], Path]
    """`copy(into, require)` copies the model to the folder `into`, verifies it, and returns the model's folder.

    Raises DataError or ModelError if the model is damaged; another LauncherError may be temporary.
    """


class BucketSource:
    """Source in a bucket: reads latest.json in the folder of a job's exports, and finds the export named there."""

    def __init__(self, exports: ExportedModels) -> None:
        self._exports = exports

    def newest(self) -> FoundModel | None:
        """Return the newest complete model, or None if there is none. A `LauncherError` may be temporary."""
        latest = self._exports.latest()
        if latest is None:
            return None
        run = self._exports.run_folder(latest)
        identity = f"{run.prefix} {latest.get('finished')}"
        return FoundModel(identity, run.url(""), functools.partial(self._exports.download, run))


class FolderSource:
    """Source on a volume: finds the model in a folder that each training replaces, such as `output/model`.

    A new `model.json` means a new model. The model is copied, because on NFS the files of a model can no longer be
    read after it was replaced.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest(self) -> FoundModel | None:
        """Return the newest complete model, or None if there is none. A `LauncherError` may be temporary."""
        identity = self._identity()
        if identity is None:
            return None
        return FoundModel(identity, str(self._folder), functools.partial(self._copy, identity))

    def _identity(self) -> str | None:
        description = self._folder / "model.json"
        content = files.read_bytes(description)
        return None if content is None else hashlib.sha256(content).hexdigest()

    def _copy(self, identity: str, into: Path, require: Require) -> Path:
        copy = into / "model"
        try:
            require(sum(path.stat().st_size for path in files.folder_files(self._folder)))
            files.copy_folder(self._folder, copy)
            if self._identity() != identity:
                raise FileNotFoundError
        except files.NOT_FOUND as error:
            raise StorageFailedError(
                f"{self._folder} was replaced or removed while it was copied. Fix: none is needed if a newer model "
                "is there, which is copied next; else export the model again"
            ) from error
        return copy


ModelSource = BucketSource | FolderSource


def open_source(address: str) -> ModelSource:
    """Return the source at `address`: the folder of a model, or s3://BUCKET/PREFIX of a job's exports."""
    if address.startswith(s3.SCHEME):
        return BucketSource(ExportedModels(address, "--model"))
    return FolderSource(Path(address))
