"""Access to one job's folder on the shared storage: on this machine (`--path`) or in a pod that mounts it.

Both ways run the same reader commands (launcher/cli/storage/reader_commands.py), so that a local folder and
a pod behave alike.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

import launcher
from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.errors import CliError, UsageError
from launcher.io.tar_stream import read_tar

IDLE_SECONDS = 60.0  # a copy fails after so many seconds without a byte
SLOW_IDLE_SECONDS = (
    1800.0  # the same for commands that read millions of files, or sum 100 GB, before they answer
)
SMALL_BYTES = 64 * 1024 * 1024  # larger than any status or metrics file that the launcher writes
READ_SECONDS = 300  # deadline of a reader pod that reads small files
COPY_SECONDS = 3600  # deadline of a reader pod that copies data
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ReaderStream(Protocol):
    """The stdout of a reader command that runs."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read the next bytes into `buffer`; return their number, 0 at the end."""
        ...

    def result(self) -> None:
        """Read to the end. Raises CliError with the command's stderr if the command failed."""
        ...

    def close(self) -> None:
        """Stop the command."""
        ...


class Storage(Protocol):
    """One job's folder on the shared storage."""

    job: PurePosixPath
    """The job's folder, as the reader commands see it."""
    where: str
    """The folder and how it is reached, for messages."""

    def run(
        self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle_seconds: float = IDLE_SECONDS
    ) -> ReaderStream:
        """Start the reader command `argv`, where the folder is."""
        ...

    def sibling(self, job: str) -> Storage:
        """Return the folder of another job on the same storage; ".": the folder that contains all jobs."""
        ...


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """Which job's folder a command opens, and what it does there."""

    job: str | None = None
    """The jobName; None: that of the release."""
    claim: str | None = None
    """The claim through which it is read; None: that of the release."""
    image: str | None = None
    """The image of the reader pod of a release that is gone; None: that of another release."""
    seconds: int = READ_SECONDS
    """The deadline of a reader pod."""
    writable: bool = False
    outlives_training: bool = False
    """Whether the folder must stay open when the training's pods exit."""
    options: tuple[str, ...] = ()
    """Which of `job`, `claim` and `image` the command has as options, for the fixes in messages."""


def check_name(name: str, fix: str) -> str:
    """Return `name` if it can be a folder and a chart value. Raises UsageError with `fix` otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name '{name}' is invalid: it becomes a folder and a chart value, so it must have 1 to 63 "
            "letters, digits, dots, dashes or underscores and begin with a letter or digit",
            fix,
        )
    return name


def storage_of_job(storage: Storage, job: str | None) -> Storage:
    """Return the folder of another `job` on the same storage; for None `storage` itself."""
    if job is None:
        return storage
    return storage.sibling(check_name(job, "give the jobName of a training with --job NAME"))


class _LocalReader(io.RawIOBase):
    """A reader command in a process of this machine."""

    def __init__(self, argv: Sequence[str], stdin: IO[bytes] | None) -> None:
        package = str(Path(launcher.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launcher.cli.storage.reader_commands", *argv],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )
        if stdin is not None:
            stdin.close()  # so that the thread that writes to it sees when the reader exits early

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return cast(int, cast(Any, self._process.stdout).readinto1(buffer))

    def result(self) -> None:
        while cast(Any, self._process.stdout).read(65536):
            pass
        code = self._process.wait(timeout=IDLE_SECONDS)
        self._errors.seek(0)
        stderr = self._errors.read().decode(errors="replace").strip()
        self.close()
        if code:
            raise CliError(stderr.splitlines()[-1] if stderr else f"the reader command exited with {code}")

    def close(self) -> None:
        if not self.closed:
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait()
            cast(Any, self._process.stdout).close()
            self._errors.close()
        super().close()


class FolderStorage:
    """A job's folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self.job = PurePosixPath(folder.absolute())
        self.where = str(folder)

    def run(
        self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle_seconds: float = IDLE_SECONDS
    ) -> ReaderStream:
        """Start the reader command in a process of this machine; a local pipe needs no `idle_seconds`."""
        del idle_seconds
        return _LocalReader(argv, stdin)

    def sibling(self, job: str) -> FolderStorage:
        """Return the folder `job` next to this one."""
        return FolderStorage(Path(self.job).parent / job)


class PodStorage:
    """A job's folder that a pod mounts."""

    def __init__(self, cluster: Cluster, pod: str, container: str, job: PurePosixPath) -> None:
        self._cluster, self._pod, self._container = cluster, pod, container
        self.job = job
        self.where = f"{job} (through pod {pod})"

    def run(
        self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle_seconds: float = IDLE_SECONDS
    ) -> ReaderStream:
        """Start the reader command in the pod."""
        command = ["python3", "-m", "launcher", "reader", *argv]
        return cast(
            ReaderStream, self._cluster.exec(self._pod, self._container, command, stdin, idle_seconds)
        )

    def sibling(self, job: str) -> PodStorage:
        """Return the folder `job` next to this one."""
        return PodStorage(self._cluster, self._pod, self._container, self.job.parent / job)


class _KeepOpen(io.RawIOBase):
    """Reads a stream without closing it: `result()` is called afterwards."""

    def __init__(self, stream: ReaderStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._stream.readinto(buffer)


def buffered_reader(stream: ReaderStream) -> io.BufferedReader:
    """Return a file object on the stream, whose `read(n)` returns n bytes unless the stream ends."""
    return io.BufferedReader(_KeepOpen(stream), buffer_size=256 * 1024)


def read_small_files(storage: Storage, names: Sequence[str]) -> dict[str, bytes]:
    """Read files of the job's folder with one command; return their contents by name.

    Args:
        storage: the job's folder.
        names: paths or glob patterns below it; absent files are left out.
    """
    stream = storage.run(["tar", "--root", str(storage.job), "--optional", *names])
    found: dict[str, bytes] = {}
    try:
        for name, size, content in read_tar(buffered_reader(stream)):
            _check_size(name, size)
            found[name] = b"".join(iter(functools.partial(content.read, 1 << 16), b""))
    except Exception:
        stream.result()  # raises the sender's own message, if there is one
        raise
    stream.result()
    return found


def _check_size(name: str, size: int) -> None:
    if size > SMALL_BYTES:
        raise CliError(
            f"{name} has {size:,} bytes (limit {SMALL_BYTES:,}): the launcher did not write it",
            "remove the file from the job's folder",
        )


def list_folder(storage: Storage, folder: str) -> list[str]:
    """Return the names in a folder below the job's; an empty list if the folder does not exist."""
    stream = storage.run(["ls", "--root", str(storage.job), folder])
    try:
        found = buffered_reader(stream).read()
    finally:
        with suppress(CliError):
            stream.result()
    return [str(entry["name"]) for entry in json.loads(found or b"[]")]


def run_json_command(storage: Storage, *argv: str) -> Any:
    """Run a reader command that may take long; return its JSON answer."""
    stream = storage.run(argv, idle_seconds=SLOW_IDLE_SECONDS)
    answer = buffered_reader(stream).read()
    stream.result()
    return json.loads(answer)


def stream_file(storage: Storage, name: str, follow_seconds: float, until: str | None) -> Iterator[bytes]:
    """Yield a file's bytes.

    Args:
        storage: the job's folder.
        name: the file's path below it.
        follow_seconds: with a value above 0, what is appended is yielded, too, for at most so long.
        until: a status file; following ends when it says that the run is over.
    """
    argv = ["cat", "--root", str(storage.job)]
    if follow_seconds:
        argv += ["--follow", str(follow_seconds), *(["--until", until] if until else [])]
    stream = storage.run([*argv, name], idle_seconds=follow_seconds or IDLE_SECONDS)
    buffer = bytearray(64 * 1024)
    try:
        while size := stream.readinto(buffer):
            yield bytes(buffer[:size])
        stream.result()
    finally:
        stream.close()
