"""Prepare data in one pod of the data Job, or in a training pod: `python -m launcher prepare`.

Every pod divides the source into the same parts. One pod reads a part, and splits it into one file for each shard. The
last pod to finish renames the complete data to its final name and writes the manifest. Each pod takes parts that no
other pod has locked, so any number of running pods completes the data, and a pod that cannot be scheduled delays
nothing. An evicted pod loses only the part that it was reading. No file gets its final name before the complete source
was read, and the result does not depend on the number of pods.

The name of the data is a digest of everything that determines its bytes. Pods of several data Jobs with equal data work
in one folder, if they run as the same user. If the data exists already, the pods use it and do not read the source
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from launcher.dataprep import data_files, prepared_data, sources
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.split_part import PartSplitter, assemble_shards, shard_file_name
from launcher.errors import RUN_ENDS, DeadlineError, LauncherError
from launcher.io import files as storage
from launcher.io.files import require_space
from launcher.io.retry import Retry
from launcher.io.stop_signals import raise_on_stop_signal
from launcher.log import log, start_logging
from launcher.paths import DataPaths
from launcher.schema import MANIFEST_VERSION, describe_data
from launcher.settings import DataSettings

_SWITCH_SECONDS = 0.0005  # the default of 5 ms makes a thread that returns from hashing wait for the GIL
_POLL_SECONDS = 1.0  # between two checks of what other pods have finished


def main(settings: DataSettings, retry: Retry | None = None) -> int:
    """Prepare the data, unless it is already published, and return exit code 0.

    `retry` retries temporary errors of the source; only tests pass it.

    Raises:
        LauncherError: the data cannot be prepared. If a retry cannot help, `data-failed.json` has the reason.
    """
    start_logging("prepare", settings.log_format)
    progress = DataProgress(settings.deadline_seconds)
    sys.setswitchinterval(_SWITCH_SECONDS)
    prepared_data.make_job_folder(settings.layout)
    with raise_on_stop_signal("nothing was published"):
        try:
            prepared_data.make_data_folder(settings.layout)
            DataPod(settings, progress, retry or Retry()).run()
        except LauncherError as error:
            if error.exit_code in RUN_ENDS:
                _write_failure(settings, str(error))
            raise
        except Exception as error:
            log.exception(
                "preparing the data failed with an unexpected error, a bug of the launcher. Fix: report this traceback"
            )
            reason = f"unexpected error while preparing the data ({type(error).__name__}: {error})"
            _write_failure(settings, reason)
            raise LauncherError(f"{reason}. Fix: report it with the traceback in the pod's log.") from error
    return 0


def _write_failure(settings: DataSettings, reason: str) -> None:
    """Write `data-failed.json`, so that waiting training pods fail at once with this reason."""
    failed = {
        "dataDigest": settings.data_digest,
        "job": settings.k8s_job_uid,
        "runId": settings.chart_run_id,
        "reason": reason,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        storage.write_json(settings.layout.data_failed, failed)
    except (LauncherError, OSError) as error:
        log.info(
            "could not write the reason of the failure to %s (%s), so the training pods wait until data.waitSeconds "
            "have passed. Fix: correct the error that follows, then start the run again with another runId",
            *(settings.layout.data_failed, error),
        )


class DataPod:
    """Prepares the data in one pod, together with other pods of the same Job and of other Jobs with equal data."""

    def __init__(self, settings: DataSettings, progress: DataProgress, retry: Retry) -> None:
        self._settings, self._progress, self._retry = settings, progress, retry
        self._layout = settings.layout
        self._alive = self._layout.data_alive(settings.data_digest)
        self._data = self._work = DataPaths(self._layout.all_data)
        """The folder of the complete data (`_data`) and the work folder (`_work`). Both are set once the source was
        listed."""
        self._parts: list[sources.PlannedPart] = []
        """All parts of the data. They are set, and their sources are open, while `run` prepares the data."""

    def run(self) -> None:
        """Prepare parts of the data; return once all data is complete and published for this pod's job.

        Raises:
            LauncherError: the data cannot be prepared.
        """
        record = prepared_data.read_record(self._settings)
        if record is not None and self._give(record):
            log.info("the data with digest %s is already prepared: nothing to do", self._settings.data_digest)
            return
        with contextlib.ExitStack() as opened:
            self._parts = self._plan(opened)
            content = content_digest(self._settings, self._parts)
            self._data, self._work = self._layout.data(content), DataPaths(self._layout.data_tmp(content))
            for folder in (self._data.root, self._work.root):
                prepared_data.refuse_link(self._layout, folder)
            self._prepare()

    def _prepare(self) -> None:
        """Read and split parts that no other pod has locked until the data is complete, then publish the data.

        The work folder is removed when the data is complete, and also after an error that would happen again in another
        attempt. After all other errors the work folder stays, so that the next pod can use the finished parts.

        Raises:
            DeadlineError: the data Job took longer than data.deadlineSeconds.
            LauncherError: the source or the storage failed, or the data is invalid.
        """
        size = sum(part.bytes for part in self._parts)
        extra = data_files.FILE_COST * sum(len(part.ranges) for part in self._parts) if size else 0
        self._progress.set_deadline((size + extra) or None, self._settings.workers)
        self._progress.touch = self._touch
        self._touch()
        prepared_data.remove_leftovers(self._layout, self._alive)
        try:
            while (manifest := self._read_complete()) is None or not self._give(manifest):
                if self._make_work_folder(size):
                    continue  # another pod may have completed the data and renamed its work folder just before
                missing = [part for part in self._parts if self._read_marker(part) is None]
                if not (self._make_one(missing) if missing else self._publish()):
                    self._progress.report(
                        f"waiting for other pods, which have {len(missing)} unfinished parts"
                    )
                    time.sleep(_POLL_SECONDS)
        except LauncherError as error:
            # After other errors the folder stays: the next pod continues with the finished parts.
            if error.exit_code in RUN_ENDS and not isinstance(error, DeadlineError):
                prepared_data.remove_folder(self._work.root)
            raise
        finally:
            with contextlib.suppress(OSError):
                self._alive.unlink()
        prepared_data.remove_folder(self._work.root)  # a pod that looked for work may have created it again

    def _open(self, opened: contextlib.ExitStack, settings: DataSettings, key: str) -> sources.Source:
        source = sources.open_source(settings, self._progress, self._retry, key)
        return opened.enter_context(contextlib.closing(source))

    def _plan(self, opened: contextlib.ExitStack) -> list[sources.PlannedPart]:
        """Open the sources, and return the parts of the data.

        Every pod gets the same list, since the parts follow from the source and the settings alone.
        """
        s = self._settings
        source = self._open(opened, s, "data.sourceSecret" if s.source_secret else "data.source")
        objects = source.objects()
        if s.format == "files":
            in_order = sorted(objects, key=source.below)
            ranges = sources.plan_parts(in_order, sources.part_size(1), cost=data_files.FILE_COST)
        elif source.is_single:
            ranges = [sources.complete_objects(objects)]
        else:
            # data.sha256 is a checksum of the complete source, so one pod must read everything.
            size = sys.maxsize if s.sha256 else sources.part_size(s.split_count)
            # A csv object is not divided, because a field may contain newlines. A Parquet file in a bucket is not
            # divided, because it is copied completely before it is read.
            in_file = s.format == "parquet" and s.source.startswith("file://")
            divisible = in_file or (s.format == "lines" and "\n".encode(s.encoding) == b"\n")
            ranges = sources.plan_parts(objects, size, divisible=divisible)
        weights = [sum(one.end - one.begin for one in part) for part in ranges]
        rows = [0] * len(ranges) if s.test_source else sources.distribute(s.test_rows, weights)
        parts = [
            sources.PlannedPart(f"{number:05d}", source, tuple(part), test_rows)
            for number, (part, test_rows) in enumerate(zip(ranges, rows, strict=True))
        ]
        if s.test_source:
            test = replace(s, source=s.test_source, source_secret="", member="", tables=(), sha256="")
            source = self._open(opened, test, "data.testSource")
            of_test = tuple(sources.complete_objects(source.objects()))
            parts.append(sources.PlannedPart("test", source, of_test, s.test_rows))
        return parts

    def _touch(self) -> None:
        """Set the times of the alive file and of the two data folders to now.

        So training pods see that this data Job works, and other data Jobs do not remove the folders as unused.
        """
        with contextlib.suppress(OSError):  # a missed touch is repeated with the next log line
            self._alive.touch()
        for folder in (self._work.root, self._data.root):
            with contextlib.suppress(OSError):
                os.utime(folder)

    def _read_complete(self) -> dict[str, Any] | None:
        """Return the manifest of the prepared data if this data is complete, else None."""
        return prepared_data.read_complete(self._layout, self._data.manifest, self._settings.split_count)

    def _make_work_folder(self, size: int) -> bool:
        """Create the work folder with a folder for each shard; return False if the work folder exists already.

        With data.format files, the work folder gets the folder files/ instead of those of the shards.
        `size` is the size of the source in bytes. Raise `StorageError` if fewer bytes are free on the storage.
        """
        if self._work.parts.is_dir():
            return False
        is_files = self._settings.format == "files"
        require_space(self._work.root, size, "the files" if is_files else "the shards and the test set")
        shards = map(self._work.shard, range(self._settings.split_count))
        with storage.storage_errors(self._work.root):
            for folder in (*([self._work.files] if is_files else shards), self._work.parts):
                folder.mkdir(parents=True, exist_ok=True)
        return True

    def _lock(self, name: str) -> AbstractContextManager[bool]:
        """Lock a part for a `with` block (`prepared_data.lock_file`).

        `name` is the part's key, or `publish` for the work of `_publish`.
        """
        return prepared_data.lock_file(self._work.parts / f"{name}.lock", self._settings)

    def _make_one(self, missing: list[sources.PlannedPart]) -> bool:
        """Read and split the first part of `missing` that no other pod has locked.

        Return False if each part is locked, or was finished by another pod meanwhile.
        """
        for part in missing:
            with self._lock(part.key) as locked:
                if not locked or self._read_marker(part) is not None:
                    continue
                text = "preparing part %s; %d of %d parts are not finished"
                log.info(text, part.key, len(missing), len(self._parts))
                self._make(part)
                return True
        return False

    def _marker(self, part: sources.PlannedPart) -> Path:
        return self._work.parts / f"{part.key}.json"

    def _read_marker(self, part: sources.PlannedPart) -> dict[str, Any] | None:
        """Return the content of a finished part's marker file; None if the file is absent or damaged."""
        try:
            return storage.read_json(self._marker(part))
        except storage.UnreadableError as error:
            log.info("%s The part is prepared again.", error)
            return None

    def _make(self, part: sources.PlannedPart) -> None:
        """Read and split a part, or fetch its files, and write its marker file.

        The files are written to a temporary folder and moved to the shards. Then the marker file (`<key>.json`) records
        that the part is finished. If another pod has renamed or removed the work folder meanwhile, this method returns
        without a marker file.
        """
        self._progress.start_part(part.bytes or None)
        folder = self._work.parts / f"work-{part.key}-{time.monotonic_ns():x}"
        try:
            with storage.storage_errors(folder):
                folder.mkdir()
            if part.source.keeps_files:
                made = data_files.FileFetcher(part, folder, self._work).run()
            else:
                made = self._split(part, folder)
            name = part.source.display_name(part.ranges[0].object)
            storage.write_json(self._marker(part), storage.with_checksum({**made, "name": name}))
        except FileNotFoundError:
            if folder.exists():
                raise
            log.info("another pod has completed or given up the work folder: looking for work again")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _split(self, part: sources.PlannedPart, folder: Path) -> dict[str, Any]:
        """Split a part into files in `folder`, and move them to the shards; return the part's marker."""
        made = PartSplitter(part, folder).run()
        train_parts = len(self._parts) - bool(self._settings.test_source)
        with storage.storage_errors(folder):
            for index in range(len(made["files"])):
                name = shard_file_name(part.number or 0, train_parts)
                (folder / str(index) / "train.txt").replace(self._work.shard(index) / name)
            (folder / "test.txt").replace(self._work.parts / f"{part.key}.test")
            if (folder / "tables").is_dir():
                storage.remove_path(self._work.tables)
                (folder / "tables").rename(self._work.tables)
            storage.fsync_dir(self._work.root)
        return made

    def _publish(self) -> bool:
        """Combine the parts, write the manifest, and rename the work folder to its final name.

        Return False if another pod holds the lock for this work, or if a part is not finished any more.
        """
        with self._lock("publish") as locked:
            markers = [marker for part in self._parts if (marker := self._read_marker(part)) is not None]
            if not locked or len(markers) < len(self._parts):
                return False
            is_files = self._settings.format == "files"
            assemble, end = (data_files.assemble_files, "list") if is_files else (assemble_shards, "test")
            paths = [self._work.parts / f"{part.key}.{end}" for part in self._parts]
            s = self._settings
            manifest = {
                **{"version": MANIFEST_VERSION, "source": sources.source_name(s), "format": s.format},
                **assemble(s, self._work, markers, paths, self._progress),
            }
            manifest |= {"content": self._data.root.name, "madeBy": prepared_data.describe_maker(s)}
            storage.write_json(self._work.manifest, storage.with_checksum(manifest))
            if self._read_complete() is not None:
                return True  # pods of another user, which work in another folder, were faster
            with storage.storage_errors(self._data.root):
                if self._data.root.exists():
                    prepared_data.remove_folder(self._data.root)  # its data was incomplete
                self._work.root.rename(self._data.root)
                storage.fsync_dir(self._layout.all_data)
                shutil.rmtree(self._data.parts, ignore_errors=True)
        log.info(
            "done in %.1f s: %s, sha256 %s",
            *(self._progress.clock() - self._progress.started, describe_data(manifest)),
            manifest["sha256"],
        )
        return True

    def _give(self, manifest: Mapping[str, Any]) -> bool:
        """Wait until no other data Job publishes, then publish complete data for this pod's job.

        Return False if the data was removed meanwhile (`prepared_data.give_to_job`).

        Raises:
            DeadlineError: data.deadlineSeconds have passed during the wait.
        """
        while True:
            with prepared_data.lock_file(self._layout.all_data / ".lock", self._settings) as locked:
                if locked:
                    return prepared_data.give_to_job(self._settings, manifest)
            self._progress.report("waiting for another data Job that publishes")
            time.sleep(_POLL_SECONDS / 10)


def content_digest(s: DataSettings, parts: list[sources.PlannedPart]) -> str:
    """Return the name of the data's folder: a digest of everything that determines the bytes of the shards.

    Jobs with different names can have the same digest. The source is identified by data.sha256, or by the names, sizes
    and versions of its objects. The data of data.testSource is always identified by its objects. If the version of an
    object is needed but unknown, the digest also includes the data digest of this job, so that jobs with another data
    digest do not use this data.
    """
    shape = [s.format, s.delimiter, s.header, s.columns, s.quoting, s.encoding, s.seed, s.split_count]
    name = sources.source_name(s) if s.source_secret else s.source
    source = [name, s.sha256, s.member, s.tables, s.test_source, s.test_fraction, s.test_rows]
    read = [part for part in parts if part.number is None or not s.sha256]
    identified = all(one.object.version for part in read for one in part.ranges)
    plan: Iterable[Any] = (
        [part.key, part.test_rows, [[*astuple(one.object), one.begin, one.end] for one in part.ranges]]
        for part in read
    )
    if s.format == "files":
        shape, source, digest = [s.format], [name, s.sha256], hashlib.sha256()
        for part in plan:  # a list of a million files would need much memory
            digest.update(json.dumps(part).encode())
        plan = [digest.hexdigest()]
    own = [] if identified else [s.data_digest]
    return hashlib.sha256(
        json.dumps([MANIFEST_VERSION, shape, source, list(plan), *own]).encode()
    ).hexdigest()
