"""Waiting for the data that this run is made for, and no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher import schema
from launcher.errors import DataError
from launcher.files import UnreadableError, read_json
from launcher.reporting.log import log
from launcher.settings import TrainSettings
from launcher.timings import Timings

VERSION = 2
AGAIN = "Fix: delete it, then start the run again with another runId, which makes its data again."


def await_manifest(
    settings: TrainSettings,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    timings: Timings | None = None,
) -> dict[str, Any]:
    """The manifest of this run's digest.

    Raises `DataError` when its data Job failed, or gave no sign of life for data.waitSeconds, and after
    `timings.data_again` seconds without one when another release has replaced this run's data, or the
    manifest is damaged.
    """
    timings = timings or Timings()
    layout = settings.layout
    deadline = clock() + settings.data_wait_seconds
    say_at = clock()
    alive = None
    began = clock()
    while True:
        manifest, seen = _look(layout.manifest, pause)
        if manifest is not None and manifest.get("dataDigest") == settings.data_digest:
            return checked(manifest, settings)
        failed, _ = _look(layout.data_failed, pause)
        # An earlier Job's record may still be there when another runId has just made a new one to try again.
        ours = failed is not None and failed.get("runId") in (None, settings.chart_run_id)
        if failed is not None and ours and failed.get("dataDigest") == settings.data_digest:
            raise DataError(
                f"the data Job of this run failed: {failed.get('reason', 'no reason was given')} "
                f"(told by {layout.data_failed})"
            )
        now = clock()
        sign = _sign(layout.data_alive(settings.data_digest))
        if sign != alive:
            alive, deadline = sign, now + settings.data_wait_seconds
        if alive is None and now - began >= timings.data_again and _is_replaced(manifest, settings):
            raise DataError(_conflict(manifest or {}, settings))
        if alive is None and now - began >= timings.data_again and manifest == {}:
            raise DataError(f"{seen}. {AGAIN}")
        if now >= deadline:
            raise DataError(
                f"no data after {settings.data_wait_seconds} s (data.waitSeconds) without a sign of life of "
                f"the data Job: waited for {layout.manifest} with dataDigest {settings.data_digest}, but "
                f"{seen}. "
                "See the data Job's pod (kubectl logs, or `python -m launcher status`)."
            )
        if now >= say_at:
            log.info("waiting for data %s, up to %.0f s more: %s", settings.data_digest, deadline - now, seen)
            say_at = now + timings.say_again
        pause(min(timings.poll, deadline - now))


def _is_replaced(manifest: dict[str, Any] | None, settings: TrainSettings) -> bool:
    """Whether this run's data was here before that of `manifest`.

    A run with another `runId` has a new data Job, which is waited for.
    """
    return any(
        lost.get("dataDigest") == settings.data_digest and lost.get("runId") in (None, settings.chart_run_id)
        for lost in (manifest or {}).get("replaced", ())
    )


def _conflict(manifest: dict[str, Any], settings: TrainSettings) -> str:
    theirs = maker(manifest)
    return (
        f"jobName is {settings.job_name!r} in two releases on one storage: {theirs} has replaced the data of "
        f"release {settings.release} in namespace {settings.namespace} in {settings.layout.job}, which holds "
        f"the data of one. Fix: give one of them another jobName; or uninstall {theirs}, then start this one "
        "again with another runId, which makes its data again."
    )


def _sign(path: Path) -> int | None:
    """What changes while the data Job works; None when it does not."""
    try:
        return path.stat().st_mtime_ns
    except OSError:  # it is only a sign; what is wrong with the storage shows elsewhere
        return None


def _look(path: Path, pause: Callable[[float], None]) -> tuple[dict[str, Any] | None, str]:
    """What is at `path` ({}: it is damaged), and in words what that is.

    A read that fails is no absence: it raises in the end.
    """
    try:
        found = read_json(path, pause)
    except UnreadableError as error:  # the data Job that is waited for makes it again
        return {}, str(error).rstrip(".")
    if found is None:
        return None, f"there is no {path} yet"
    return found, f"the manifest there is of other data ({found.get('dataDigest')}, made by {maker(found)})"


def maker(manifest: Mapping[str, Any]) -> str:
    """Return who made the data, as messages name it; an older launcher's manifest does not say."""
    made_by = manifest.get("madeBy") or {}
    if not made_by.get("release"):
        return "an unknown release"
    return f"release {made_by['release']} in namespace {made_by.get('namespace')}"


def checked(manifest: dict[str, Any], settings: TrainSettings) -> dict[str, Any]:
    """The manifest, if it fits this run; else `DataError`."""
    where = settings.layout.manifest
    if manifest.get("version") != VERSION:
        raise DataError(
            f"{where} has version {manifest.get('version')!r}, this launcher reads {VERSION}: data and "
            "training come from different images. Use one image for both."
        )
    if manifest.get("splitCount") != settings.trainers:
        raise DataError(
            f"{where} has {manifest.get('splitCount')!r} shards, but there are {settings.trainers} trainers: "
            "each trainer reads one shard. Set data.splitCount to trainers (or leave it out)."
        )
    if why := schema.mismatch(manifest, schema.Manifest):
        raise DataError(f"{where} is damaged: {why}. {AGAIN}")
    if [shard["index"] for shard in manifest["shards"]] != list(range(settings.trainers)):
        raise DataError(f"{where} does not list the shards 0 to {settings.trainers - 1} in order")
    return manifest


def await_data(settings: TrainSettings) -> None:
    """The init container: returns once the data is there. Raises `StoppedError` on SIGTERM or SIGINT."""
    import signal
    import threading

    from launcher.errors import StoppedError
    from launcher.reporting.log import begin

    begin(f"await-data {settings.completion_index}", settings.log_format)
    told = threading.Event()

    # The handler only sets a flag: an exception out of it could land, and be swallowed, anywhere.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: told.set())

    def pause(seconds: float) -> None:
        if told.wait(seconds):
            raise StoppedError("told to stop while waiting for data")

    manifest = await_manifest(settings, pause)
    log.info(
        "data %s is there: %s lines, %s shards",
        settings.data_digest,
        manifest.get("lines"),
        settings.trainers,
    )
