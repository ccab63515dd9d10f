"""Prepare data in one pod of the data Job, or in a training pod: `python -m launcher prepare`.

The source is planned as parts; each part is read by one pod and split into one file for each shard; the last
pod to finish publishes the shards under their final names and writes the manifest. Every pod makes the same
plan and takes parts that no other pod has locked, so that any number of running pods completes the data: a
pod that cannot be scheduled delays nothing. A finished part stays finished: an evicted pod loses only the
part that it was reading. No file gets its final name before the complete source was read, and the result does
not depend on the number of pods.

If this job has data of the same source and settings, only the manifest is written again. If another job on the
storage has it, its files are linked (hard links).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.dataprep import publish_data, source_parts
from launcher.dataprep import source as sources
from launcher.dataprep.job_lock import DataJobLock
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.split_part import PartSplitter, assemble_shards, shard_file_name
from launcher.dataprep.text_lines import warn_of_quotes
from launcher.errors import RUN_ENDS, DataError, DeadlineError, LauncherError, StoppedError
from launcher.io import files as storage
from launcher.io.disk_space import require_space
from launcher.io.retry import Retry
from launcher.io.stop_signals import raise_on_stop_signal
from launcher.log import log, start_logging
from launcher.paths import JobPaths
from launcher.schema import MANIFEST_VERSION, ManifestFile, ManifestOrigin, Publication
from launcher.settings import DataSettings

_SWITCH_SECONDS = 0.0005  # the default of 5 ms makes a thread that returns from hashing wait for the GIL
_POLL_SECONDS = 1.0  # between two looks at what other pods have finished


def main(settings: DataSettings, retry: Retry | None = None) -> int:
    """Prepare the data, unless it is already published, and return exit code 0. Tests give a `retry` of their own.

    Raises:
        LauncherError: the data cannot be prepared. If a retry cannot help, `data-failed.json` has the reason.
    """
    start_logging("prepare", settings.log_format)
    progress = DataProgress(settings.deadline_seconds)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        # The lock is held until the reason of a failure is written: a new Job must not take that for its own.
        with raise_on_stop_signal("nothing was published"), contextlib.ExitStack() as locked:
            try:
                publish_data.make_job_folder(settings.layout)
                lock = locked.enter_context(DataJobLock(settings, progress))
                DataPod(settings, lock, progress, retry or Retry()).run()
            except LauncherError as error:
                if error.exit_code in RUN_ENDS:
                    _write_failure(settings, str(error))
                raise
            except Exception as error:
                log.exception(
                    "preparing the data failed with an unexpected error, a bug of the launcher. Fix: report this "
                    "traceback"
                )
                reason = f"unexpected error while preparing the data ({type(error).__name__}: {error})"
                _write_failure(settings, reason)
                raise LauncherError(
                    f"{reason}. Fix: report it with the traceback in the pod's log."
                ) from error
    finally:
        sys.setswitchinterval(before)
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
    """Prepares the data together with the other pods of its Job."""

    def __init__(
        self, settings: DataSettings, lock: DataJobLock, progress: DataProgress, retry: Retry
    ) -> None:
        self._settings, self._lock, self._progress, self._retry = settings, lock, progress, retry
        self._layout = settings.layout
        self._tmp = settings.layout.data_tmp(settings.data_digest)
        self._content = ""
        self._test = replace(
            settings, source=settings.test_source, source_secret="", member="", tables=(), sha256=""
        )

    def run(self) -> None:
        """Prepare parts of the data; return once all data is published, by this pod or another one.

        Raises:
            LauncherError: the data cannot be prepared.
        """
        if publish_data.is_published(self._settings):
            self._finish()
            return
        self._check_conflict()
        sources.check_secret_address(self._settings)
        source, test = self._open(self._settings), None
        try:
            test = self._open(self._test) if self._settings.test_source else None
            parts = self._plan(source, test)
            plan, size = [part.to_json() for part in parts], sum(part.bytes for part in parts)
            identified = (source is not None or bool(self._settings.sha256)) and (
                test is not None or not self._settings.test_source
            )
            self._content = content_digest(self._settings, plan) if identified else ""
            self._progress.set_deadline(size or None, self._settings.workers)
            if not self._start_or_join(plan, size):
                self._finish()
                return
            self._progress.alive = self._layout.data_alive(self._settings.data_digest)
            try:
                self._make_parts(parts, source, test)
            except storage.UnreadableError as error:
                self._remove_tmp()
                raise DataError(f"{error} Fix: start the run again with another runId.") from error
            except LauncherError as error:
                if error.exit_code in RUN_ENDS:
                    self._remove_tmp()  # after other errors the next pod continues with the finished parts
                raise
            self._remove_tmp()  # a pod that was looking for work may have made it again
        finally:
            for each in (source, test):
                if each is not None:
                    each.close()

    def _remove_tmp(self) -> None:
        if self._lock.try_exclusive():
            publish_data.remove_folder(self._tmp)

    def _finish(self) -> None:
        log.info("the data with digest %s is already published: nothing to do", self._settings.data_digest)
        with storage.storage_errors(self._layout.data_failed):
            self._layout.data_failed.unlink(missing_ok=True)
        if self._lock.try_exclusive():
            publish_data.remove_leftover_folders(self._layout)

    def _check_conflict(self) -> None:
        """Raise `DataError` if another release has replaced the data of this training pod's release.

        A data Job that is complete does not run again, but a training pod is replaced when it is lost: the pods of
        the two releases would replace each other's data.
        """
        if not self._settings.in_training_pod:
            return
        with contextlib.suppress(storage.UnreadableError):
            manifest = storage.read_json(self._layout.manifest, shape=ManifestOrigin) or {}
            if publish_data.is_replaced(manifest, self._settings):
                raise DataError(publish_data.describe_conflict(manifest, self._settings))

    def _context(self, settings: DataSettings) -> source_parts.SourceContext:
        given = "data.sourceSecret" if settings.source_secret else "data.source"
        key = "data.testSource" if settings is self._test else given
        return source_parts.SourceContext(settings, self._tmp, self._progress, self._retry, key)

    def _open(self, settings: DataSettings) -> sources.MultiFileSource | None:
        return sources.open_multi_file_source(self._context(settings))

    def _plan(
        self, source: sources.MultiFileSource | None, test: sources.MultiFileSource | None
    ) -> list[source_parts.PlannedPart]:
        """Return the parts: the same list in every pod, since it follows from the source and the settings."""
        s = self._settings
        divisible = s.format == "lines" and "\n".encode(s.encoding) == b"\n"
        ranges: list[list[source_parts.ByteRange]] = [[]]
        if source is not None:
            # One checksum over everything needs one reader, and a csv field may contain newlines.
            size = sys.maxsize if s.sha256 else source_parts.part_size(s.split_count)
            ranges = source_parts.plan_parts(source.objects(), size, divisible)
        weights = [sum(one.end - one.begin for one in part) for part in ranges]
        rows = [0] * len(ranges) if s.test_source else source_parts.distribute(s.test_rows, weights)
        parts = [
            source_parts.PlannedPart(f"{number:05d}", tuple(part), test_rows)
            for number, (part, test_rows) in enumerate(zip(ranges, rows, strict=True))
        ]
        if s.test_source:
            objects = test.objects() if test is not None else []
            own = source_parts.plan_parts(objects, sys.maxsize, divisible)[0] if objects else []
            parts.append(source_parts.PlannedPart("test", tuple(own), s.test_rows))
        return parts

    def _start_or_join(self, plan: list[Any], size: int) -> bool:
        """Write plan.json if this pod is the first one; else check that it has the plan of this pod.

        `size` is the source's, in bytes; 0 if it is unknown. Return whether there are parts to read: if not, the data
        is already published, or was linked from another job.

        Raises:
            DataError: another pod of this Job failed, or the plans of two pods differ.
        """
        path = self._tmp / "plan.json"
        wanted = json.loads(json.dumps({"parts": plan}))
        while True:
            alone = self._lock.try_exclusive()
            if not alone and not self._lock.try_shared():
                self._progress.report("waiting for the pod that writes plan.json")
                time.sleep(_POLL_SECONDS / 10)
                continue
            if publish_data.is_published(self._settings):
                return False
            failed = self._failure()
            if failed is not None and failed.get("job") == self._settings.k8s_job_uid != "":
                raise DataError(str(failed.get("reason")))
            if failed is not None and failed.get("job") != self._settings.k8s_job_uid and not alone:
                # The new Job must not join the work of the failed one, nor take its failure for its own.
                self._lock.unlock()
                self._progress.report("waiting for the pods of an earlier Job, which failed, to exit")
                time.sleep(_POLL_SECONDS / 10)
                continue
            try:
                same = storage.read_json(path) == wanted
            except storage.UnreadableError:
                same = False
            if alone:
                if not same or failed is not None:
                    publish_data.remove_folder(self._tmp)
                publish_data.remove_leftover_folders(self._layout, keep=self._tmp)
                if not self._tmp.exists() and self._reuse():
                    return False
                self._make_folders(size)
                storage.write_json(path, wanted)
                self._lock.try_shared()
                return True
            if same:
                return True
            test = sources.display_name(self._settings.test_source)
            names = [("data.source", sources.source_name(self._settings)), ("data.testSource", test)]
            listed = " or ".join(f"{key} {name}" for key, name in names if name)
            raise DataError(
                f"{listed} changed while the pods of this Job listed it: this pod sees other objects than the first "
                "one. Fix: wait until nothing writes there, then start the run again with another runId."
            )

    def _make_folders(self, size: int) -> None:
        if not self._tmp.exists():
            require_space(self._tmp, size, "the shards and the test set")
        with storage.storage_errors(self._tmp):
            self._layout.data_failed.unlink(missing_ok=True)
            if (self._tmp / publish_data.PUBLICATION).exists():
                return  # the shards are being moved to their final names
            for index in range(self._settings.split_count):
                (self._tmp / "shards" / str(index)).mkdir(parents=True, exist_ok=True)

    def _reuse(self) -> bool:
        """Publish this job's present data again, or another job's by hard links. Return False without such data."""
        if keep_unchanged_data(self._settings, self._content):
            return True
        self._progress.alive = self._layout.data_alive(self._settings.data_digest)
        check = partial(self._progress.report, "comparing another job's data with its manifest")
        manifest = link_from_other_job(self._layout, self._content, self._tmp, check)
        if manifest is None:
            publish_data.remove_folder(self._tmp)
            return False
        manifest |= {"dataDigest": self._settings.data_digest, **publish_data.origin(self._settings)}
        publish_data.publish(self._tmp, self._layout, manifest)
        return True

    def _failure(self) -> dict[str, Any] | None:
        """Return the content of `data-failed.json`; None if there is none, or it is about other data."""
        try:
            found = storage.read_json(self._layout.data_failed)
        except storage.UnreadableError:
            return None
        mine = found is not None and found.get("dataDigest") == self._settings.data_digest
        return found if mine else None

    def _make_parts(
        self,
        parts: list[source_parts.PlannedPart],
        source: sources.MultiFileSource | None,
        test: sources.MultiFileSource | None,
    ) -> None:
        """Read and split parts that no other pod has locked, until all parts exist; then one pod publishes.

        Raises:
            DataError: another pod failed.
            DeadlineError: the data Job took longer than data.deadlineSeconds.
        """
        logged = False
        while not publish_data.is_published(self._settings):
            finished = set(storage.list_names(self._tmp))  # one request for all parts
            missing = [part for part in parts if self._marker(part).name not in finished]
            if not missing:
                with self._lock.of("publish") as locked:
                    if locked and not publish_data.is_published(self._settings):
                        self._publish(parts)
                        return
            made = False
            for part in missing:
                with self._lock.of(part.key) as locked:
                    # After a publication the markers are gone; the manifest was written before that.
                    if (
                        locked
                        and not self._marker(part).is_file()
                        and not publish_data.is_published(self._settings)
                    ):
                        made = True
                        text = "preparing part %s; %d of %d parts are not finished"
                        log.info(text, part.key, len(missing), len(parts))
                        self._make(part, len(parts), test if part.key == "test" else source)
                        break
            if not made:
                if not logged:
                    log.info("waiting for %d parts that other pods are making", len(missing))
                    logged = True
                self._progress.report("waiting for other pods to finish their parts")
                time.sleep(_POLL_SECONDS)
            failed = self._failure()
            if failed is not None:
                raise DataError(str(failed.get("reason")))

    def _marker(self, part: source_parts.PlannedPart) -> Path:
        return self._tmp / f"{part.key}.json"

    def _make(
        self, part: source_parts.PlannedPart, count: int, files: sources.MultiFileSource | None
    ) -> None:
        """Read and split `part`, one of `count` parts; `files` opens the source's objects (None: it is one stream).

        The files are written to a temporary folder and moved to their final names; then a marker file
        (`<key>.json`) records that the part is finished.
        """
        settings = self._test if part.key == "test" else self._settings
        self._progress.start_part(part.bytes or None)  # a source that is one stream sets the number of bytes
        folder = self._tmp / f"work-{part.key}-{time.monotonic_ns():x}"
        source: sources.SingleFileSource | sources.PartSource
        if files is not None:
            source = sources.PartSource(files, part.ranges)
        else:
            with storage.storage_errors(folder):
                folder.mkdir()
            source = sources.open_single_file(replace(self._context(settings), tmp=folder))
        try:
            splitter = PartSplitter(settings, folder, self._progress, source)
            number = None if part.key == "test" else int(part.key)
            made = splitter.run(number, part.test_rows)
            train_parts = count - bool(self._settings.test_source)
            with storage.storage_errors(self._tmp):
                for index in range(len(made["files"])):
                    name = shard_file_name(number or 0, train_parts)
                    (folder / str(index) / "train.txt").replace(self._tmp / "shards" / str(index) / name)
                (folder / "test.txt").replace(self._tmp / f"{part.key}.test")
                if (folder / "tables").is_dir():
                    shutil.rmtree(self._tmp / "tables", ignore_errors=True)
                    (folder / "tables").rename(self._tmp / "tables")
                storage.fsync_dir(self._tmp)
            name = sources.source_name(settings)
            if part.ranges and files is not None:
                name = files.display_name(part.ranges[0].object)
            storage.write_json(self._marker(part), {**made, "name": name})
        finally:
            source.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, parts: list[source_parts.PlannedPart]) -> None:
        # Of a pod that was killed while it published.
        manifest = storage.read_json(self._tmp / publish_data.PUBLICATION, shape=Publication)
        if manifest is None or manifest.get("splitCount") != self._settings.split_count:
            markers = [storage.read_json(self._marker(part)) or {} for part in parts]
            spanning = [marker.get("spanning") or (0, "") for marker in markers]
            warn_of_quotes(sum(n for n, _ in spanning), next((first for n, first in spanning if n), ""))
            tests = [f"{part.key}.test" for part in parts]
            manifest = assemble_shards(self._settings, self._tmp, markers, tests, self._progress)
            manifest |= {"content": self._content, **publish_data.origin(self._settings)}
        publish_data.publish(self._tmp, self._layout, manifest)
        log.info(
            "done in %.1f s: %d train lines in %d shards, %d test lines, sha256 %s",
            *(self._progress.clock() - self._progress.started, manifest["lines"], self._settings.split_count),
            *(manifest["test"].get("lines"), manifest["sha256"]),
        )


def content_digest(s: DataSettings, plan: list[Any]) -> str:
    """Return a digest of everything that determines the shards' bytes; the job's name does not.

    `plan` is the parts as JSON, with name, size and version of each object.
    """
    shape = [s.format, s.delimiter, s.header, s.columns, s.quoting, s.encoding, s.seed, s.split_count]
    name = sources.source_name(s) if s.source_secret else s.source
    source = [name, s.sha256, s.member, s.tables, s.test_source, s.test_fraction, s.test_rows]
    return hashlib.sha256(json.dumps([MANIFEST_VERSION, shape, source, plan]).encode()).hexdigest()


def keep_unchanged_data(settings: DataSettings, content: str) -> bool:
    """Publish this job's data again for this Job if its source has not changed since it was read.

    Only the manifest is written: with this Job's data digest, and with `reusedFrom`. The pod must hold the exclusive
    lock. `content` is the data's `content_digest`; empty if it is unknown, and then no data is reused.

    Returns:
        False when the present data is incomplete or has other content.
    """
    layout = settings.layout
    try:
        manifest = storage.read_json(layout.manifest, shape=ManifestFile) if content else None
    except storage.UnreadableError:
        return False
    if not manifest or manifest.get("content") != content or not publish_data.is_complete(settings, manifest):
        return False
    reader = _reader(manifest)
    log.info("the source has not changed since Job %s read it: its data is used again", reader)
    manifest |= {"dataDigest": settings.data_digest, "reusedFrom": reader, **publish_data.origin(settings)}
    with storage.storage_errors(layout.manifest):
        storage.write_json(layout.manifest, storage.with_checksum(manifest))
        layout.data_failed.unlink(missing_ok=True)
    return True


def _reader(manifest: dict[str, Any]) -> str:
    """Return the name of the Job that read the source."""
    return str(manifest.get("reusedFrom") or (manifest.get("madeBy") or {}).get("job") or "unknown")


def link_from_other_job(
    layout: JobPaths, content: str, tmp: Path, check: Callable[[], None]
) -> dict[str, Any] | None:
    """Hard-link the data files of another job with the same content into `tmp`.

    Removing or replacing the other job's data leaves these files as they are. If one of them does not have the sha256
    that the manifest lists for it, that job's data is not used.
    `content` is as in `keep_unchanged_data`. `check` is called while files are read; it may raise `DeadlineError`.

    Returns:
        The other job's manifest, with `reusedFrom`; None when no job has such data.
    """
    for path in sorted(layout.job_path.glob("*/manifest.json")) if content else ():
        other = JobPaths(layout.job_path, path.parent.name)
        if other.job in {layout.job, layout.sources}:
            continue
        try:
            manifest = storage.read_json(path, shape=ManifestFile)
            if not manifest or manifest.get("content") != content:
                continue
            _link_files(other, manifest, tmp, check)
            # A data Job that replaces data removes the manifest first.
            if storage.read_json(path) == manifest:
                log.info("linked the data of job %s, which has the same content", other.job_name)
                manifest.pop("rows", None)  # a file of older launchers, which is not linked
                return manifest | {"reusedFrom": _reader(manifest)}
        except (DeadlineError, StoppedError):
            raise
        except (LauncherError, OSError, KeyError, TypeError, ValueError) as error:
            log.info(
                "not using the data of job %s (%s); trying other jobs, then the source", other.job_name, error
            )
    return None


def _link_files(other: JobPaths, manifest: dict[str, Any], tmp: Path, check: Callable[[], None]) -> None:
    (tmp / "shards").mkdir(parents=True, exist_ok=True)  # `check` touches a file there
    for path, entry in publish_data.files_of_manifest(manifest, other).items():
        # The size first, since it costs nothing. Staging would reject wrong bytes in each job that links them.
        if path.stat().st_size != entry["bytes"] or storage.sha256_file(path, check) != entry["sha256"]:
            raise ValueError(f"{path} does not have the sha256 of its manifest")
    targets = {other.tables: tmp / "tables"} if manifest["tables"] else {}
    for shard in manifest["shards"]:
        targets[other.shard(shard["index"])] = tmp / "shards" / str(shard["index"])
    os.link(other.test, tmp / other.test.name)
    for source, target in targets.items():
        target.mkdir(parents=True)
        for file in source.iterdir():
            os.link(file, target / file.name)
        storage.fsync_dir(target)
