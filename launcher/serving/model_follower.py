"""Switch the server to each new model of a job, without a restart and without a failed request."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import DataError, StorageError, setting_error
from launcher.io import disk_space, files
from launcher.log import log
from launcher.serving import model_check
from launcher.serving.model_sources import FoundModel, open_source
from launcher.serving.paddle_served import Model, ModelError, ServedError
from launcher.serving.paddle_served.model_server import ModelServer

STOP_SECONDS = 5.0
"""How long a copy that has begun may delay the end of the process."""
ENLARGE = "set a higher model.sizeLimit (two models must fit), or use nodes with more disk."


class ModelFollower:
    """Searches for a newer model at intervals, checks it, and switches the server to it.

    The present model stays while there is no newer one, and when the newer one is damaged, does not fit, or does
    not answer the requests that the present one answers. A rejected model is reported once and not tried again.
    """

    def __init__(self, address: str, work: Path, seconds: float, size_limit: int | None) -> None:
        """Create the object; it reads nothing yet.

        Args:
            address: where new models appear, a folder or an S3 address (--model).
            work: folder on the pod's own disk for the copies; its content is removed.
            seconds: mean time in seconds between two searches. Each wait is 0.8 to 1.2 times as long, so that the
                pods of a release do not all load a model at the same time.
            size_limit: bytes that all copies together may have; None: as many as the disk has.
        """
        self._address, self._source = address, open_source(address)
        self._work, self._seconds, self._size_limit = work, seconds, size_limit
        self._stop = threading.Event()
        self._check: subprocess.Popen[str] | None = None
        self._copies = 0
        self._folder = work
        """Folder of the present model."""
        self._present = self._rejected = ""
        """Identities of the present model, and of the last one that was rejected."""
        self._problem = ""
        """Why the last search failed; empty if it did not."""

    def copy_first(self) -> Path:
        """Copy the newest model, and return its folder. Raise `SettingsError` if there is none."""
        found = self._source.newest()
        if found is None:
            raise setting_error(
                "--model",
                self._address,
                "a folder with a complete model, or s3://BUCKET/PREFIX/JOB with latest.json in it (--follow)",
                "there is no model",
                "Wait until a training has finished there, or correct the address",
            )
        files.remove_path(self._work)
        self._present, self._folder = found.identity, self._copy(found)
        return self._folder

    @contextlib.contextmanager
    def follow(self, server: ModelServer) -> Iterator[None]:
        """Switch `server` to each newer model, in a thread that runs while the `with` block does."""
        thread = threading.Thread(target=self._run, args=(server,), name="follow", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            if self._check is not None:
                self._check.kill()
            thread.join(STOP_SECONDS)

    def _run(self, server: ModelServer) -> None:
        while not self._stop.wait(self._seconds * random.uniform(0.8, 1.2)):  # noqa: S311 - no secret
            self.look(server)

    def look(self, server: ModelServer) -> None:
        """Search once: switch `server` to the newest model, unless it serves that one; log why if that fails."""
        found = None
        try:
            found = self._source.newest()
            if found is not None and found.identity not in (self._present, self._rejected):
                self._load(found, server)
            self._problem = ""
        except Exception as error:  # of any kind: the thread must search again
            rejected = found if isinstance(error, DataError | ServedError) else None
            self._report(server, rejected, error)

    def _report(self, server: ModelServer, rejected: FoundModel | None, error: Exception) -> None:
        """Count an error, after which the server keeps its model; log it unless it is the same as the last one.

        `rejected` is the model that the server cannot use; None if the search or the copy failed.
        """
        if self._stop.is_set():
            return
        if rejected is not None:
            self._rejected = rejected.identity
        server.metrics.failures.labels("model" if rejected else "source").inc()
        if str(error) != self._problem:
            what = "looking for a newer model failed"
            if rejected is not None:
                what = f"the model at {rejected.address} is rejected"
            log.error("%s; the server keeps model %s: %s", what, server.model.version, error)
        self._problem = str(error)

    def _load(self, found: FoundModel, server: ModelServer) -> None:
        former, former_folder = server.model, self._folder
        folder = self._copy(found)
        try:
            model_check.require_memory(folder)
            model_check.check_in_subprocess(folder, former.last_row, self._check_started)
            model = _open_compatible(folder, former)
        except BaseException:
            shutil.rmtree(folder.parent)
            raise
        self._present, self._folder = found.identity, folder
        log.info("model %s of %s replaces model %s", model.version, found.address, former.version)
        try:
            server.switch(model)
        except TimeoutError as error:
            log.warning(
                "%s; that model stays in memory until they end. Fix: if memory is short, restart the pods (kubectl "
                "rollout restart)",
                error,
            )
        shutil.rmtree(former_folder.parent, ignore_errors=True)

    def _copy(self, found: FoundModel) -> Path:
        self._copies += 1
        into = self._work / str(self._copies)
        try:
            return found.copy(into, self._require_room)
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise

    def _require_room(self, size: int) -> None:
        """Raise `StorageError` if the work volume has no room for a copy of `size` bytes.

        Kubernetes evicts a pod that exceeds the volume's limit, and statvfs() does not know that limit.
        """
        disk_space.require_space(self._work, size, "a copy of the model", ENLARGE)
        used = sum(path.stat().st_size for path in files.folder_files(self._work))
        if self._size_limit is not None and used + size > self._size_limit:
            raise StorageError(
                f"model.sizeLimit is {self._size_limit:,} bytes, but must be at least {used + size:,}: the new "
                f"model has {size:,} bytes and the present one {used:,}. Fix: set a higher model.sizeLimit."
            )

    def _check_started(self, process: subprocess.Popen[str]) -> None:
        self._check = process
        if self._stop.is_set():
            process.kill()


def _open_compatible(folder: Path, former: Model) -> Model:
    """Open the model in `folder`.

    Raises:
        ModelError: it cannot be opened, or does not answer the requests that `former` answers.
    """
    model = Model(folder)
    shape, before = model.self_check(former.last_row), former.self_check(None)
    new = [column for column in model.columns if column not in former.columns]
    gone = [column for column in former.program.columns if column not in model.program.columns]
    if not new and not gone and shape == before:
        return model
    model.close()
    reason = f"its predictions have the shape {shape} instead of {before}"
    if new:
        reason = f"it needs the columns {', '.join(new)}, which requests do not have"
    if gone:
        reason = f"it rejects the columns {', '.join(gone)}, which requests may have"
    raise ModelError(f"{reason}. Fix: restart the pods to serve it nevertheless (kubectl rollout restart)")
