"""The job's folder, wherever it is: this machine (`--path`) or a pod that has the claim mounted.

Both run the same reader commands (`launcher/reader.py`), so a folder and a pod behave alike.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

import launcher
from launcher import record
from launcher.cli.cluster import Cluster
from launcher.cli.problems import CliError, UsageError
from launcher.files import UnreadableError, parse_object
from launcher.layout import Output
from launcher.tarstream import read_tar

IDLE_SECONDS = 60.0  # without a byte before a copy is given up
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
SMALL_BYTES = 64 * 1024 * 1024  # more than any status or metrics file; larger ones are a mistake


class Answer(Protocol):
    """A running reader command: its stdout, and then how it ended."""

    def readinto(self, buffer: Any, /) -> int | None: ...
    def result(self) -> None: ...
    def close(self) -> None: ...


class Storage(Protocol):
    """Where one job's folder can be read."""

    job: PurePosixPath
    where: str

    def run(self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle: float = IDLE_SECONDS) -> Answer:
        """Start `launcher reader <argv>` there."""
        ...

    def sibling(self, job: str) -> Storage:
        """The folder of another job beside this one; ".": the folder of all."""
        ...


def checked(name: str, fix: str) -> str:
    """A name that may be a folder and a value; else UsageError that ends with `fix`."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name '{name}' must be 1 to 63 letters, digits, dots, dashes or underscores and begin "
            f"with a letter or digit: it becomes a folder and a value. {fix}"
        )
    return name


def of_job(storage: Storage, job: str | None) -> Storage:
    """`storage`, or the folder of another `job` beside it."""
    return storage if job is None else storage.sibling(checked(job, "Choose one with --job NAME."))


class _LocalAnswer(io.RawIOBase):
    def __init__(self, argv: Sequence[str], stdin: IO[bytes] | None) -> None:
        package = str(Path(launcher.__file__).parent.parent)
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launcher.reader", *argv],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )
        if stdin is not None:
            stdin.close()  # so that its writer notices when the reader ends early

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return cast(int, cast(Any, self._process.stdout).readinto1(buffer))

    def result(self) -> None:
        while cast(Any, self._process.stdout).read(65536):
            pass
        code = self._process.wait(timeout=IDLE_SECONDS)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        self.close()
        if code:
            raise CliError(said.splitlines()[-1] if said else f"the reader ended with {code}")

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

    def run(self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle: float = IDLE_SECONDS) -> Answer:
        del idle  # a local pipe either moves or ends
        return _LocalAnswer(argv, stdin)

    def sibling(self, job: str) -> FolderStorage:
        return FolderStorage(Path(self.job).parent / job)


class PodStorage:
    """A job's folder as a pod sees it."""

    def __init__(self, cluster: Cluster, pod: str, container: str, job: PurePosixPath) -> None:
        self._cluster, self._pod, self._container = cluster, pod, container
        self.job = job
        self.where = f"{job} (through pod {pod})"

    def run(self, argv: Sequence[str], stdin: IO[bytes] | None = None, idle: float = IDLE_SECONDS) -> Answer:
        command = ["python3", "-m", "launcher", "reader", *argv]
        return cast(Answer, self._cluster.exec(self._pod, self._container, command, stdin, idle))

    def sibling(self, job: str) -> PodStorage:
        return PodStorage(self._cluster, self._pod, self._container, self.job.parent / job)


class _Unowned(io.RawIOBase):
    """Reads an answer without closing it: `result()` still has to ask how it ended."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._answer.readinto(buffer)


def buffered(answer: Answer) -> io.BufferedReader:
    """A file-like view of the answer, whose `read(n)` gives n bytes unless the stream ends."""
    return io.BufferedReader(_Unowned(answer), buffer_size=256 * 1024)


def small_files(storage: Storage, names: Sequence[str]) -> dict[str, bytes]:
    """Contents of those of `names` (paths or globs below the job's folder) that are there, in one go."""
    answer = storage.run(["tar", "--root", str(storage.job), "--optional", *names])
    found: dict[str, bytes] = {}
    try:
        for name, size, content in read_tar(buffered(answer)):
            _small(name, size)
            found[name] = b"".join(iter(lambda content=content: content.read(1 << 16), b""))  # type: ignore[misc]
    except Exception:
        answer.result()  # the far side's own sentence is the better one
        raise
    answer.result()
    return found


def _small(name: str, size: int) -> None:
    if size > SMALL_BYTES:
        raise CliError(f"{name} has {size:,} bytes; that is no file of the launcher")


def entries(storage: Storage, folder: str) -> list[str]:
    """Names in a folder below the job's; none when it is not there."""
    answer = storage.run(["ls", "--root", str(storage.job), folder])
    try:
        found = buffered(answer).read()
    finally:
        with suppress(CliError):
            answer.result()
    return [str(entry["name"]) for entry in json.loads(found or b"[]")]


def json_of(storage: Storage, *argv: str) -> Any:
    """Return the JSON answer of a reader command that may have to look at millions of files."""
    answer = storage.run(argv, idle=1800.0)
    told = buffered(answer).read()
    answer.result()
    return json.loads(told)


def json_file(content: bytes | None) -> dict[str, Any] | None:
    """The JSON object in a file of `small_files`; None when it is absent or damaged."""
    try:
        return parse_object("it", content or b"")
    except UnreadableError:
        return None


def run_record(found: Mapping[str, bytes], output: Output) -> dict[str, Any] | None:
    """Return an output's run record from what `small_files` found: run.json, or its copy if it is damaged."""
    names = (output.run_json.as_posix(), output.run_copy.as_posix())
    return record.intact((name, found.get(name)) for name in names)[0]


def stream_file(storage: Storage, name: str, follow_seconds: float, until: str | None) -> Iterator[bytes]:
    """A file's bytes, as they come when `follow_seconds` is not 0."""
    argv = ["cat", "--root", str(storage.job)]
    if follow_seconds:
        argv += ["--follow", str(follow_seconds), *(["--until", until] if until else [])]
    answer = storage.run([*argv, name], idle=follow_seconds or IDLE_SECONDS)
    buffer = bytearray(64 * 1024)
    try:
        while size := answer.readinto(buffer):
            yield bytes(buffer[:size])
        answer.result()
    finally:
        answer.close()
