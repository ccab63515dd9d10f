"""Wait until the data Job has published the data of this run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import schema
from launcher.errors import DataError, make_again_fix
from launcher.io.files import UnreadableError, read_json
from launcher.io.stop_signals import raise_on_stop_signal
from launcher.log import log, start_logging
from launcher.schema import MANIFEST_VERSION, ManifestFile, describe_data
from launcher.settings import TrainSettings
from launcher.supervisor.timings import Timings


def wait_for_manifest(
    settings: TrainSettings,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    timings: Timings | None = None,
) -> dict[str, Any]:
    """Wait until the data of this run is complete (`.data/<dataDigest>.json` exists); return its manifest.

    Raises:
        DataError: one of these:
            - data-failed.json says that the data Job of this run failed;
            - the data Job showed no activity for `data.waitSeconds`;
            - the manifest is damaged, this function has waited for `timings.data_again` seconds, and now no data Job is
              at work, because the file that it touches is absent;
            - the manifest is intact, but `check_manifest` rejects it.
        StorageError, StorageFailedError: a file cannot be read.
    """
    timings = timings or Timings()
    layout = settings.layout
    path = layout.data_record(settings.data_digest)
    alive, damage = None, ""
    start = log_at = clock()
    deadline = start + settings.data_wait_seconds
    while True:
        try:
            manifest = read_json(path, pause)
            if manifest is not None:
                return check_manifest(manifest, path, settings)
        except UnreadableError as error:  # the data Job will write it again
            damage = str(error).rstrip(".")
        failed = _read_failure(layout.data_failed, pause)
        # The failure of an earlier Job may still be there when a new runId has just started another Job.
        ours = failed.get("runId") in (None, settings.chart_run_id)
        if ours and failed.get("dataDigest") == settings.data_digest:
            raise DataError(
                f"the data Job of this run failed: {failed.get('reason', 'no reason was given')} "
                f"(reported in {layout.data_failed}). When the reason is fixed, start the run again with another runId."
            )
        now = clock()
        activity = _activity(layout.data_alive(settings.data_digest))
        if activity != alive:
            alive, deadline = activity, now + settings.data_wait_seconds
        if damage and alive is None and now - start >= timings.data_again:
            raise DataError(f"{damage}. {make_again_fix(path)}")
        if now >= deadline:
            raise DataError(
                f"no data: the data Job showed no activity for {settings.data_wait_seconds} s (data.waitSeconds), and "
                f"{damage or f'there is no {path} yet'}. Fix: run `python -m launcher status` to see why the data "
                "Job's pod does not run, and correct that."
            )
        if now >= log_at:
            log.info(
                "waiting for data %s, for up to %.0f s more if the data Job shows no activity (data.waitSeconds)",
                settings.data_digest,
                deadline - now,
            )
            log_at = now + timings.log_again
        pause(min(timings.poll, deadline - now))


def _activity(path: Path) -> int | None:
    """Return a value that changes while the data Job works and touches the file `path`; None if the file is absent."""
    try:
        return path.stat().st_mtime_ns
    except OSError:  # only a hint; other code reports errors of the storage
        return None


def _read_failure(path: Path, pause: Callable[[float], None]) -> dict[str, Any]:
    """Return why the data Job failed; an empty object if data-failed.json is absent or damaged."""
    try:
        return read_json(path, pause, schema.DataFailure) or {}
    except UnreadableError as error:
        log.info("%s It is ignored.", error)
        return {}


def check_manifest(manifest: dict[str, Any], where: Path, settings: TrainSettings) -> dict[str, Any]:
    """Return `manifest`, read from `where`, if its version, shards and fields fit this run; else raise `DataError`."""
    if manifest.get("version") != MANIFEST_VERSION:
        raise DataError(
            f"{where} has version {manifest.get('version')!r}, but this launcher reads {MANIFEST_VERSION}: data and "
            "training use different images. Fix: use one image for both."
        )
    shards = 0 if manifest.get("format") == "files" else settings.shards
    if manifest.get("splitCount") != shards:
        raise DataError(
            f"{where} has {manifest.get('splitCount')!r} shards, but there are {settings.shards} trainers: "
            "each trainer reads one shard. Fix: remove data.splitCount, or set it to trainers."
        )
    if why := schema.mismatch(manifest, ManifestFile):
        raise DataError(f"{where} is damaged: {why}. {make_again_fix(where)}")
    if [shard["index"] for shard in manifest["shards"]] != list(range(shards)):
        raise DataError(
            f"{where} does not list the shards 0 to {settings.shards - 1} in order. {make_again_fix(where)}"
        )
    return manifest


def await_data(settings: TrainSettings) -> None:
    """Wait until the data of this run is published; this is the command `await-data` of the pods' init container.

    Raises:
        DataError: the data Job failed or is not active, or the data is damaged or does not fit this run.
        StorageError, StorageFailedError: a file cannot be read.
        StoppedError: this process received SIGTERM or SIGINT.
    """
    start_logging(f"await-data {settings.completion_index}", settings.log_format)
    with raise_on_stop_signal("the data Job has not published the data yet"):
        manifest = wait_for_manifest(settings)
    log.info("data %s is published: %s", settings.data_digest, describe_data(manifest))
