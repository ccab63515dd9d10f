"""`training.initFrom`: the parameters of an earlier run, from its folder or from its export in a bucket."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files, s3
from launcher.errors import DataError, GangError, SettingsError, setting
from launcher.layout import Output
from launcher.retry import Retry
from launcher.worker import checkpoint, outputs, parts
from launcher.worker.network import Network
from launcher.worker.settings import WorkerSettings

MARKER, LATEST = "_SUCCESS.json", "latest.json"  # as launcher/export.py puts them
TRIES, BASE_SECONDS = 5, 1.0


@dataclass(frozen=True)
class Initial:
    """All trained parameters by name, embedding tables whole. Rows of 0 were never trained."""

    values: dict[str, NDArray[np.float32]]
    source: str

    @classmethod
    def find(cls, settings: WorkerSettings) -> Initial:
        """Reads what `init_from` names. Raises `SettingsError` when nothing whole is there; `DataError`."""
        given = settings.init_from
        if given.startswith(s3.SCHEME):
            folder = _fetch(given, settings.work_dir / "init")
            try:
                return cls(_model(folder), given)
            finally:
                shutil.rmtree(folder.parent, ignore_errors=True)
        path = PurePosixPath(given)
        if path.is_absolute() or ".." in path.parts:
            raise _wrong(given, "a run's folder is named from JOB_PATH on, without ..")
        output = Output(settings.job_path / path)
        if outputs.model_whole(output.model):
            return cls(_model(output.model), f"{given}/model")
        newest = outputs.newest_save(output.root)
        if newest is None:
            raise _wrong(given, f"there is neither a whole model nor a whole save in {output.root}")
        return cls(_save(output.save(newest)), f"{given}/{newest.folder}")

    def check(self, network: Network) -> None:
        """Raises `SettingsError` when this is another network than the program's."""
        wanted = {table.name: (table.rows, table.width) for table in network.tables}
        for name in network.dense():
            wanted[name] = tuple(network.main.global_block().var(name).shape)
        found = {name: values.shape for name, values in self.values.items()}
        faults = [
            f"{name} is {found.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
            for name in sorted({*wanted, *found})
            if found.get(name) != wanted.get(name)
        ]
        if faults:
            raise _wrong(self.source, f"it is another network: {'; '.join(faults)}")


def _wrong(value: str, reason: str) -> SettingsError:
    return SettingsError(
        setting(
            "training.initFrom (PADDLE_LAUNCHER_INIT_FROM)",
            value,
            "an earlier run of the same network: its folder below JOB_PATH (such as other-job/output or "
            "other-job/runs/ID), or s3://BUCKET/PREFIX of its export",
            reason,
            "Name such a run, or leave training.initFrom out",
        )
    )


def _model(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The parameters of an exported model."""
    import paddle

    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        exe = paddle.static.Executor(paddle.CPUPlace())
        try:
            program, *_ = paddle.static.load_inference_model(str(folder / "network"), exe)
        except (ValueError, RuntimeError, OSError) as error:
            raise DataError(f"training.initFrom: the model in {folder} cannot be read: {error}") from error
        names = [p.name for p in program.list_vars() if p.persistable and p.name not in ("feed", "fetch")]
        return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def _save(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The parameters of a save inside a run."""
    contents = outputs.contents(folder)
    if reason := checkpoint.check_files(
        folder, [n for n, e in contents["files"].items() if "sha256" in e], contents
    ):
        raise DataError(f"training.initFrom: {folder}: {reason}. Name another run.")
    values = checkpoint.load_arrays(folder / checkpoint.PARAMETERS)
    for name, about in contents["tables"].items():
        if name not in values:  # geo keeps tables with the dense parameters
            place = folder / checkpoint.TABLES / about["folder"]
            values[name] = parts.read_table(place, about["rows"], about["width"])
    return values


def _fetch(url: str, into: Path) -> Path:
    """The model of an export, each file as long and with the sha256 that the export's marker says."""
    retry = Retry(TRIES, BASE_SECONDS, doing="read", error=GangError, mend="See whether S3 can be reached.")
    name, prefix = s3.address(url.rstrip("/") + "/")
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
            raise _wrong(url, f"there is no {MARKER} of a whole export")
        entries: list[dict[str, Any]] = [
            e for e in json.loads(marker)["files"] if e["name"].startswith("model/")
        ]
        if not entries:
            raise _wrong(url, "the export has no model/")
        for entry in entries:
            path = into / entry["name"]
            with files.storage(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                key, target = prefix + entry["name"], str(path)
                get = functools.partial(bucket.call, "download_file", Key=key, Filename=target)
                retry.call(bucket.url(key), get)
            if files.sha256_file(path) != entry["sha256"]:
                where = bucket.url(prefix + entry["name"])
                raise DataError(f"training.initFrom: {where} has another sha256 than {MARKER} says.")
    except s3.RefusedError as error:
        raise _wrong(url, str(error).rstrip(".")) from error
    return into / "model"
