"""`python -m launcher serve`: serve a model over HTTP, from a folder or an S3 bucket.

With --follow, the server also searches for newer models of a job. `ModelFollower` copies and checks a newer model and
then ends the server. The next start of the server serves the newer model.

`python -m launcher.serving.serve FOLDER SECONDS` is the process that checks a model.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import DataError, LauncherError, StorageError, StorageFailedError, setting_error
from launcher.io import cgroup_memory, files, s3
from launcher.log import log, start_logging
from launcher.serving.download import ExportedModels, download_model
from launcher.serving.paddle_served import Model, ModelError, ServedError
from launcher.serving.paddle_served.__main__ import build_parser, serve
from launcher.serving.paddle_served.model import read_description

if TYPE_CHECKING:
    import uvicorn

    from launcher.serving.paddle_served.http_server import ModelServer

WAITS = 10
"""Limit of the time that the server waits before it ends, as a multiple of the time between two searches. The time
is random, so that the replicas do not all end at once.
"""
LEAVE_SECONDS = 20.0
"""Seconds for which the server reports that it is not ready, before it ends. In this time the chart's readiness probe,
which runs every 5 s, fails three times.
"""
ENLARGE = "set a higher model.sizeLimit (two models must fit), or use nodes with more disk."
CHECK_SECONDS = 300
"""Time limit in seconds for the check of a model."""
PROCESS_BYTES = 64 << 20
"""Memory of a Python process with Paddle's inference and without a model, in bytes: 62 MiB were measured."""
BYTES_PER_BYTE = 2
"""Bytes of memory for each byte of a model's files without embeddings: Paddle keeps its parameters twice (measured)."""
_MIB = 1 << 20
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT, and return exit code 0. With --follow, also end when a newer model is copied.

    `serve` in paddle_served/__main__.py describes what the signals do.

    Raises:
        LauncherError: the model cannot be downloaded or served.
        SystemExit: an option is wrong (exit code 2), or the server cannot listen on the address (exit code 3).
    """
    command = build_parser("python -m launcher serve")
    command.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="folder for copies of models from s3://… (the folder of a run's export), or with --follow",
    )
    command.add_argument(
        "--follow",
        type=float,
        metavar="SECONDS",
        help="look for a newer model about every SECONDS, in the folder --model or in latest.json of the job's exports "
        "s3://…; copy it to --work, check it, and end with exit code 0, so that the next start serves it",
    )
    command.add_argument(
        "--work-limit",
        type=_bytes,
        metavar="SIZE",
        help="limit of the folder --work, such as 10Gi (--follow)",
    )
    given = command.parse_args(arguments)
    if given.follow is not None and given.follow <= 0:
        command.error(
            f"--follow is {given.follow:g}, but must be more than 0 seconds. Fix: give the seconds between two "
            "searches for a newer model, such as --follow 300"
        )
    work, address = given.work / "served", (given.host, given.port, given.workers)
    try:
        if given.follow is not None:
            start_logging("serve")
            follower = ModelFollower(given.model, work, given.follow, given.work_limit)
            serve(follower.open_first(), *address, follower.follow)
            if follower.newer:
                log.info(
                    "the newer model of %s is copied to %s: the server exits, and its next start serves that model. "
                    "Kubernetes starts it again",
                    *(follower.newer, work),
                )
        elif given.model.startswith(s3.SCHEME):
            sys.stderr.write(f"downloading {given.model} to {given.work}\n")
            files.remove_path(work / "model")  # the disk need not have room for two
            serve(download_model(given.model, work, "--model"), *address)
        else:
            serve(Path(given.model), *address)
    except ServedError as error:
        raise DataError(str(error)) from error
    return 0


def _bytes(quantity: str) -> int:
    """Return a Kubernetes quantity in bytes: `10Gi` → 10737418240."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k|Ki|[MGT]i?|)", quantity)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{quantity!r} is not a size. Fix: give bytes, or a number with k, Ki, M, Mi, G, Gi, T or Ti: 10Gi"
        )
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class FoundModel:
    """A complete model that a search has found. It is not copied yet."""

    identity: str
    """Text that identifies the model. Every other model at the same address has a different text."""
    address: str
    """Address of the model, for messages."""
    copy: Callable[[Path, Callable[[int], None]], Path]
    """Function `copy(into, require)`: copy the model to the folder `into`/model, and return the path of this folder.

    Before it copies, it calls `require` with the model's size in bytes; `require` raises an error if there is no space.
    For a model in a bucket, it verifies the sha256 of all files, and raises DataError if the model is damaged. For a
    model in a folder, it only checks that the model was not replaced meanwhile. Another LauncherError than DataError
    may be temporary.
    """


def newest_export(exports: ExportedModels) -> FoundModel | None:
    """Return the model that latest.json of a job's exports refers to; None if there is no latest.json.

    A `LauncherError` may be temporary.
    """
    latest = exports.latest()
    if latest is None:
        return None
    run = exports.run_folder(latest)
    identity = f"{run.prefix} {latest.get('finished')}"
    return FoundModel(identity, run.url(""), functools.partial(exports.download, run))


def newest_in_folder(folder: Path) -> FoundModel | None:
    """Return the model in a folder that each training replaces, such as `output/model`; None if there is no model.

    Another content of `model.json` means another model. The server needs a copy of the model, because on NFS the files
    of a model can no longer be read after the model was replaced. A `LauncherError` may be temporary.
    """
    description = files.read_bytes(folder / "model.json")
    if description is None:
        return None

    def copy(into: Path, require: Callable[[int], None]) -> Path:
        try:
            require(sum(path.stat().st_size for path in files.folder_files(folder)))
            files.copy_folder(folder, into / "model")
            if files.read_bytes(folder / "model.json") != description:
                raise FileNotFoundError
        except files.NOT_FOUND as error:
            raise StorageFailedError(
                f"{folder} was replaced or removed while it was copied. Fix: none is needed if a newer model is there, "
                "which is copied next; else export the model again"
            ) from error
        return into / "model"

    return FoundModel(hashlib.sha256(description).hexdigest(), str(folder), copy)


class ModelFollower:
    """Searches for a newer model at intervals, copies and checks it, and then ends the server.

    The copies are next to each other on the pod's own disk. The server continues while there is no newer model. It also
    continues if the newer model is damaged, does not fit on the disk or into memory, or does not answer the same
    requests as the served model. A model that is damaged, does not fit into memory or does not answer the same requests
    is rejected: it is reported once and not tried again. After any other error, such as a full disk, each search tries
    the model again.
    """

    def __init__(self, address: str, work: Path, seconds: float, size_limit: int | None) -> None:
        """Create the object; it reads nothing yet.

        Args:
            address: where new models appear, a folder or an S3 address (--model).
            work: folder on the pod's own disk for the copies; its other content is removed.
            seconds: mean time in seconds between two searches. Each wait is 0.8 to 1.2 times as long, so that the pods
                of a release do not all copy a model at the same time.
            size_limit: limit in bytes for all copies together; None: only the size of the disk limits them.
        """
        self._address = address
        if address.startswith(s3.SCHEME):
            self._newest = functools.partial(newest_export, ExportedModels(address, "--model"))
        else:
            self._newest = functools.partial(newest_in_folder, Path(address))
        self._work, self._seconds, self._size_limit = work, seconds, size_limit
        self._served = self._rejected = Path()
        """`_served` and `_rejected`: the folders of the served model, and of the model that was rejected last."""
        self._problem = ""
        """Why the last search failed; empty if it succeeded."""
        self.newer = ""
        """Address of the newer model for which the server ends; empty while there is no newer model."""

    def open_first(self) -> Path:
        """Return the folder of the model to serve: the newest model. Copy it unless an earlier process has done so.

        If the newest model cannot be copied or used, return the last copy that an earlier process has made. If there is
        no such copy, raise the error.

        Raises:
            SettingsError: there is no model.
        """
        copies = sorted(
            self._work.glob(f"{_digest(self._address)}-*/model"), key=lambda copy: copy.parent.stat().st_mtime
        )
        for path in self._work.glob("*"):
            if not copies or path != copies[-1].parent:
                files.remove_path(path)
        try:
            found = self._newest()
            if found is None:
                raise setting_error(
                    "--model",
                    self._address,
                    "a folder with a complete model, or s3://BUCKET/PREFIX/JOB with latest.json in it (--follow)",
                    "there is no model",
                    "Wait until a training has finished there, or correct the address",
                )
            # The last copy was checked, but since then a newer model may have appeared.
            self._served = self._copy(found, check_in_subprocess if copies else lambda _: None)
        except (LauncherError, ServedError) as error:
            if not copies:
                raise
            log.error("the newest model cannot be served; the server starts with its last copy: %s", error)
            self._served = copies[-1]
        return self._served

    def follow(self, server: ModelServer, runner: uvicorn.Server) -> None:
        """Start a thread that searches for newer models. When a newer model is copied, it stops the server `runner`."""
        threading.Thread(target=self._run, args=(server, runner), name="follow", daemon=True).start()

    def _run(self, server: ModelServer, runner: uvicorn.Server) -> None:
        while not self.newer:
            time.sleep(self._seconds * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
            self.look(server)
        wait = random.uniform(0, WAITS * self._seconds)  # noqa: S311
        log.info("the newer model of %s is copied; the server exits in %.0f s", self.newer, wait)
        time.sleep(wait)
        server.is_leaving = True
        time.sleep(LEAVE_SECONDS)
        runner.should_exit = True

    def look(self, server: ModelServer) -> None:
        """Search once. If there is a model that is neither served nor rejected, copy and check it, and set `newer`.

        An error is logged and not raised.
        """

        def check(copy: Path) -> None:
            require_memory(copy)
            check_in_subprocess(copy, server.model)

        found = None
        try:
            found = self._newest()
            if found is not None and self._folder(found) not in (self._served, self._rejected):
                self._copy(found, check)
                self.newer = found.address
            self._problem = ""
        except Exception as error:  # of any kind: the thread must search again
            rejected = found if isinstance(error, DataError | ServedError) else None
            self._report(server, rejected, error)

    def _report(self, server: ModelServer, rejected: FoundModel | None, error: Exception) -> None:
        """Count and log an error after which the server keeps its model.

        An error with the same text as the last one is counted, but not logged again.

        `rejected` is the model that the server cannot use, for example because the export is damaged. It is None if the
        search failed, or if the copy failed with an error that may be temporary.
        """
        what = "looking for a newer model failed"
        if rejected is not None:
            self._rejected = self._folder(rejected)
            what = f"the model at {rejected.address} is rejected"
        server.metrics.failures.labels("model" if rejected else "source").inc()
        if str(error) != self._problem:
            log.error("%s; the server keeps model %s: %s", what, server.model.version, error)
        self._problem = str(error)

    def _folder(self, found: FoundModel) -> Path:
        return self._work / f"{_digest(self._address)}-{_digest(found.identity)}" / "model"

    def _copy(self, found: FoundModel, check: Callable[[Path], None]) -> Path:
        """Copy a model unless its copy exists, and return the folder of the copy.

        The copy has a temporary name until `check` has accepted it.
        """
        folder, new = self._folder(found), self._work / "new"
        if not folder.exists():
            log.info("copying %s to %s", found.address, folder)
            try:
                check(found.copy(new, self._require_room))
                new.rename(folder.parent)
            except BaseException:
                files.remove_path(new)
                raise
        return folder

    def _require_room(self, size: int) -> None:
        """Raise `StorageError` if the work folder has no room for a copy of `size` bytes.

        The volume's own limit is checked too: Kubernetes evicts a pod that exceeds it, and statvfs() does not show it.
        """
        files.require_space(self._work, size, "a copy of the model", ENLARGE)
        used = sum(path.stat().st_size for path in files.folder_files(self._work))
        if self._size_limit is not None and used + size > self._size_limit:
            raise StorageError(
                f"model.sizeLimit is {self._size_limit:,} bytes, but must be at least {used + size:,}: the new "
                f"model has {size:,} bytes and the current one {used:,}. Fix: set a higher model.sizeLimit."
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def require_memory(folder: Path, root: Path = cgroup_memory.ROOT) -> None:
    """Raise `ModelError` if the model in `folder` does not fit into the container's memory next to the served model.

    Embedding tables do not count, because they are memory-mapped. If the container has no limit, nothing is checked.
    `root` is the folder of the cgroups.
    """
    limit = cgroup_memory.limit(root)
    if limit is None:
        return
    needed = PROCESS_BYTES + BYTES_PER_BYTE * sum(read_description(folder)["files"].values())
    used = cgroup_memory.used_bytes(root)
    if used + needed > limit:
        raise ModelError(
            f"the model needs about {needed // _MIB} MiB while it is loaded next to the current one, but the "
            f"container uses {used // _MIB} of its {limit // _MIB} MiB. Fix: set resources.requests.memory and "
            f"resources.limits.memory to at least {-(-(used + needed) // _MIB)}Mi"
        )


def check_in_subprocess(folder: Path, served: Model | None = None, seconds: int = CHECK_SECONDS) -> None:
    """Open the model in another process, and check that it answers the same requests as the model `served`.

    Without `served`, only check that the model can be opened and predicts a row of zeros.

    The check runs in another process for two reasons. Paddle's inference kills its process when it reads certain
    damaged files (seen with a network.pdmodel of the right size and wrong content: SIGSEGV). And a training program may
    hang. `seconds` is the time limit of the check.

    Raises:
        ModelError: the model cannot be opened, a prediction failed, the model does not answer the same requests, or the
            process failed, was killed or timed out.
    """
    command = [sys.executable, "-m", "launcher.serving.serve", str(folder), str(seconds)]
    facts = served and {
        "row": served.last_row,
        "needed": served.columns,
        "columns": served.program.columns,
        "shape": served.self_check(None),
    }
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    done = subprocess.run(command, input=json.dumps(facts), check=False, errors="replace", **streams)
    code = done.returncode
    if code == -signal.SIGALRM:
        raise ModelError(
            f"the check of the model did not end within {seconds} s. Fix: look for a loop or a wait in its program"
        )
    if code < 0:
        raise ModelError(
            f"the check of the model was killed by {signal.Signals(-code).name}: a file of the model is damaged, or "
            "there was not enough memory. Fix: export the model again, or set a higher resources.limits.memory"
        )
    if code:
        raise ModelError(
            (
                done.stderr.strip().splitlines()
                or [f"the check of the model exited with code {code}. Fix: export the model again"]
            )[-1]
        )


def require_compatible(folder: Path, served: dict[str, Any] | None) -> None:
    """Raise `ModelError` if the model in `folder` does not answer the same requests as the served model.

    `served` describes the served model: the columns that a row must have (`needed`), all its `columns`, the `shape` of
    its predictions, and the `row` that it predicted last (or null). If `served` is None, only check that the model
    predicts.
    """
    model = Model(folder)
    shape = model.self_check(served and served["row"])
    if served is None:
        return
    before = tuple(served["shape"])
    new = [column for column in model.columns if column not in served["needed"]]
    gone = [column for column in served["columns"] if column not in model.program.columns]
    if not new and not gone and shape == before:
        return
    reason = f"its predictions have the shape {shape} instead of {before}"
    if new:
        reason = f"it needs the columns {', '.join(new)}, which requests do not have"
    if gone:
        reason = f"it rejects the columns {', '.join(gone)}, which requests may have"
    raise ModelError(
        f"{reason}. Fix: change the clients, then restart the pods to serve it (kubectl rollout restart)"
    )


def check_model(folder: str, seconds: str) -> int:
    """Check the model in `folder`. Standard input has the description of the served model (see `require_compatible`).

    The process is killed after `seconds`. Return 1 if the model cannot be used, else 0.
    """
    signal.alarm(int(seconds))  # here, so that a program that hangs also ends if the server was killed
    with contextlib.suppress(OSError):  # if memory is short, the kernel kills this process and not the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        require_compatible(Path(folder), json.load(sys.stdin))
    except ServedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(check_model(*sys.argv[1:]))
