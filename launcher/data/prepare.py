"""`python -m launcher prepare`: one pod of the data Job.

Source → parts → (each by one pod) runs of lines → a file a shard → final names → manifest. All pods make the
same plan; each takes parts that nobody else has, and whoever finds all of them done publishes. A part that is
done stays done: an evicted pod costs the part that it was at. Nothing gets its final name before the whole
source was read. The result does not depend on the number of pods.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.data import plan, reuse, stores, text
from launcher.data import source as sources
from launcher.data.claims import Claims
from launcher.data.finish import assemble, piece_name
from launcher.data.part import PartJob
from launcher.data.progress import Progress
from launcher.data.publish import (
    is_published,
    make_job_folder,
    origin,
    publish,
    remove,
    remove_leftovers,
)
from launcher.data.space import require_space
from launcher.errors import EXIT_GANG, FINAL, DataError, LauncherError, StoppedError
from launcher.files import UnreadableError, fsync_dir, names, read_json, storage, write_json
from launcher.reporting.log import begin, log
from launcher.retry import Retry
from launcher.settings import DataSettings

_SWITCH_SECONDS = 0.0005  # else a thread that comes back from a hash waits 5 ms for the interpreter's lock
_PAUSE = 1.0  # seconds between two looks at what other pods do


def main(
    settings: DataSettings,
    *,
    retry: Retry | None = None,
    chunk: int = text.CHUNK,
    part_bytes: int | None = None,
) -> int:
    """Prepares the data, or finds that it was done; returns 0.

    Raises a `LauncherError`, whose reason is also in `data-failed.json` when no other try may do better.
    `retry`, `chunk` (bytes read at once) and `part_bytes` are for tests; the shards depend on the last alone.
    """
    begin("prepare", settings.log_format)
    progress = Progress(settings.deadline_seconds)
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with _signals():
            make_job_folder(settings.layout)
            sources.check(settings)
            with Claims(settings.layout, settings.data_digest, progress, settings.workers) as claims:
                size = part_bytes or plan.part_bytes(settings.split_count)
                Pod(settings, claims, progress, retry or Retry(), chunk).run(size)
    except StoppedError:
        raise
    except LauncherError as error:
        if error.exit_code in (*FINAL, EXIT_GANG):
            _leave_reason(settings, str(error))
        raise
    except Exception as error:
        log.exception("a fault of the launcher itself")
        reason = f"the preparation met what it does not know ({type(error).__name__}: {error})"
        _leave_reason(settings, reason)
        raise LauncherError(f"{reason}; the pod's log has the whole trace.") from error
    finally:
        sys.setswitchinterval(before)
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise `StoppedError` here, once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)  # a second one must not break the clean-up
        raise StoppedError(f"told to stop ({signal.Signals(number).name}); nothing was published")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _leave_reason(settings: DataSettings, reason: str) -> None:
    failed = {
        "dataDigest": settings.data_digest,
        "job": settings.k8s_job_uid,
        "runId": settings.chart_run_id,
        "reason": reason,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    try:
        write_json(settings.layout.data_failed, failed)
    except (LauncherError, OSError) as error:
        log.info("the reason could not be left in %s: %s", settings.layout.data_failed, error)


@dataclass(frozen=True)
class Item:
    """One part of the plan."""

    key: str
    """A number of five digits, or `test` for data.testSource."""
    stretches: tuple[plan.Stretch, ...]
    """Empty: the source is one stream."""
    test_rows: int

    @property
    def bytes(self) -> int:
        return sum(stretch.end - stretch.begin for stretch in self.stretches)

    def to_json(self) -> list[Any]:
        return [self.key, self.test_rows, [stretch.to_json() for stretch in self.stretches]]


class Pod:
    """What one pod does."""

    def __init__(
        self, settings: DataSettings, claims: Claims, progress: Progress, retry: Retry, chunk: int
    ) -> None:
        self._settings, self._claims, self._progress = settings, claims, progress
        self._chunk, self._retry = chunk, retry
        self._layout = settings.layout
        self._tmp = settings.layout.data_tmp(settings.data_digest)
        self._content = ""
        self._test = replace(settings, source=settings.test_source, member="", tables=(), sha256="")

    def run(self, part_bytes: int) -> None:
        """Returns once the data is published, by whichever pod."""
        if is_published(self._settings):
            self._end()
            return
        store, test = self._store(self._settings), None
        try:
            test = self._store(self._test) if self._settings.test_source else None
            items = self._plan(store, test, part_bytes)
            named = store is not None or bool(self._settings.sha256)
            named &= test is not None or not self._settings.test_source
            self._content = reuse.content_of(self._settings, [item.to_json() for item in items], named)
            self._progress.fit(sum(item.bytes for item in items) or None, self._settings.workers)
            if not self._enter(items):
                self._end()
                return
            self._progress.alive = self._layout.data_alive(self._settings.data_digest)
            try:
                self._work(items, store, test)
                if self._claims.alone():
                    remove(self._tmp)  # what a pod left that looked for work meanwhile
            except StoppedError:
                raise
            except LauncherError:
                if self._claims.alone():
                    remove(self._tmp)
                raise
        finally:
            for each in (store, test):
                if each is not None:
                    each.close()

    def _end(self) -> None:
        log.info("the data %s is there already: nothing to do", self._settings.data_digest)
        with storage(self._layout.data_failed):
            self._layout.data_failed.unlink(missing_ok=True)
        if self._claims.alone():
            remove_leftovers(self._layout)

    def _tools(self, settings: DataSettings) -> sources.Tools:
        return sources.Tools(settings, self._tmp, self._progress, self._retry, require_space)

    def _store(self, settings: DataSettings) -> stores.Store | None:
        return stores.open_store(self._tools(settings))

    def _plan(self, store: stores.Store | None, test: stores.Store | None, part_bytes: int) -> list[Item]:
        s = self._settings
        cuttable = s.format == "lines" and "\n".encode(s.encoding) == b"\n"
        parts: list[list[plan.Stretch]] = [[]]
        if store is not None:
            # One checksum over all is made in one go; a csv field may hold newlines.
            parts = plan.cut(store.objects(), sys.maxsize if s.sha256 else part_bytes, cuttable)
        weights = [sum(stretch.end - stretch.begin for stretch in part) for part in parts]
        rows = [0] * len(parts) if s.test_source else plan.shares(s.test_rows, weights)
        items = [
            Item(f"{number:05d}", tuple(part), share)
            for number, (part, share) in enumerate(zip(parts, rows, strict=True))
        ]
        if s.test_source:
            stretches = plan.cut(test.objects(), sys.maxsize, cuttable)[0] if test is not None else []
            items.append(Item("test", tuple(stretches), s.test_rows))
        return items

    def _enter(self, items: list[Item]) -> bool:
        """Begins the common work, or joins it. False: it is published meanwhile."""
        wanted = {"parts": [item.to_json() for item in items]}
        path = self._tmp / "plan.json"
        while True:
            alone = self._claims.alone()
            if not alone and not self._claims.together():
                self._progress.tick("waiting for the pod that plans")
                time.sleep(_PAUSE / 10)
                continue
            if is_published(self._settings):
                return False
            failed = self._failed()
            if failed is not None and failed.get("job") == self._settings.k8s_job_uid != "":
                raise DataError(str(failed.get("reason")))
            try:
                there = read_json(path)
            except UnreadableError:
                there = None
            same = there == json.loads(json.dumps(wanted))
            if alone:
                if not same or failed is not None:
                    remove(self._tmp)
                remove_leftovers(self._layout, keep=self._tmp)
                if not self._tmp.exists() and self._reused():
                    return False
                if not self._tmp.exists():
                    room = sum(item.bytes for item in items)
                    require_space(self._tmp, room, "the shards and the test set")
                with storage(self._tmp):
                    self._layout.data_failed.unlink(missing_ok=True)
                    (self._tmp / "shards").mkdir(parents=True, exist_ok=True)
                    for index in range(self._settings.split_count):
                        (self._tmp / "shards" / str(index)).mkdir(exist_ok=True)
                write_json(path, wanted)
                self._claims.together()
                return True
            if same:
                return True
            raise DataError(
                f"{sources.shown(self._settings.source)} changed while it was read: this pod sees other "
                "objects than those that began. Let whoever writes there end, then start the Job again."
            )

    def _reused(self) -> bool:
        """Whether another job's data was linked and published as this one's."""
        self._progress.alive = self._layout.data_alive(self._settings.data_digest)
        manifest = reuse.link(
            self._layout,
            self._content,
            self._tmp,
            lambda: self._progress.tick("comparing another job's data with its manifest"),
        )
        if manifest is None:
            remove(self._tmp)
            return False
        manifest |= {"dataDigest": self._settings.data_digest, **origin(self._settings)}
        publish(self._tmp, self._layout, self._settings.split_count, manifest)
        return True

    def _failed(self) -> dict[str, Any] | None:
        """What a pod of this data left when it gave up."""
        try:
            found = read_json(self._layout.data_failed)
        except UnreadableError:
            return None
        mine = found is not None and found.get("dataDigest") == self._settings.data_digest
        return found if mine else None

    def _work(self, items: list[Item], store: stores.Store | None, test: stores.Store | None) -> None:
        said = False
        while not is_published(self._settings):
            there = set(names(self._tmp))  # one question, and not one a part
            left = [item for item in items if self._marker(item).name not in there]
            if not left:
                with self._claims.of("publish") as mine:
                    if mine and not is_published(self._settings):
                        self._publish(items)
                        return
            took = False
            for item in left:
                with self._claims.of(item.key) as mine:
                    # The marker may be gone because all was published meanwhile: the manifest came first.
                    if mine and not self._marker(item).is_file() and not is_published(self._settings):
                        took = True
                        log.info("part %s of %d, %d left", item.key, len(items), len(left))
                        self._make(item, len(items), test if item.key == "test" else store)
                        break
            if not took:
                if not said:
                    log.info("waiting for %d parts that other pods are at", len(left))
                    said = True
                self._progress.tick("waiting for other pods")
                time.sleep(_PAUSE)
            failed = self._failed()
            if failed is not None:
                raise DataError(str(failed.get("reason")))

    def _marker(self, item: Item) -> Path:
        return self._tmp / f"{item.key}.json"

    def _make(self, item: Item, count: int, store: stores.Store | None) -> None:
        """One part: into a folder of this pod's own, then under its names, then its marker."""
        settings = self._test if item.key == "test" else self._settings
        folder = self._tmp / f"work-{item.key}-{time.monotonic_ns():x}"
        source: sources.Source
        if store is not None:
            source = stores.Stretches(store, item.stretches)
        else:
            with storage(folder):
                folder.mkdir()
            source = sources.open_stream(replace(self._tools(settings), tmp=folder))
        self._progress.begin(item.bytes or None)
        try:
            job = PartJob(settings, folder, self._progress, source, self._chunk)
            if item.key == "test":
                made = job.run_test(item.test_rows)
            else:
                made = job.run(int(item.key), item.test_rows)
            parts = count - bool(self._settings.test_source)
            with storage(self._tmp):
                for index in range(len(made["files"])):
                    name = piece_name(int(item.key), parts)
                    (folder / str(index) / "train.txt").replace(self._tmp / "shards" / str(index) / name)
                (folder / "test.txt").replace(self._tmp / f"{item.key}.test")
                if (folder / "tables").is_dir():
                    shutil.rmtree(self._tmp / "tables", ignore_errors=True)
                    (folder / "tables").rename(self._tmp / "tables")
                fsync_dir(self._tmp)
            name = sources.shown(settings.source)
            if item.stretches and store is not None:
                name = store.shown(item.stretches[0].object)
            write_json(self._marker(item), {**made, "name": name})
        finally:
            source.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, items: list[Item]) -> None:
        markers = [read_json(self._marker(item)) or {} for item in items]
        tests = [f"{item.key}.test" for item in items]
        manifest = assemble(self._settings, self._tmp, markers, tests, self._progress)
        manifest |= {"content": self._content, **origin(self._settings)}
        publish(self._tmp, self._layout, self._settings.split_count, manifest)
        log.info(
            "done in %.1f s: %d train lines in %d shards, %d test lines, sha256 %s",
            self._progress.clock() - self._progress.started,
            manifest["lines"],
            self._settings.split_count,
            manifest["test"]["lines"],
            manifest["sha256"],
        )
