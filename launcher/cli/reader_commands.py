"""The commands that the command line runs where the shared storage is mounted: `python3 -m launcher reader`.

Without a subcommand this program sleeps until its deadline: the reader pod runs it like this. The command line then
starts the subcommands `tar`, `untar`, `cat`, `ls`, `sums`, `sizes`, `remove`, `environment` and `checkpoint` in the
reader pod or in another pod; with `--path` it starts the same subcommands on its own machine. A subcommand reads
content from stdin and writes content to stdout (archives as in `launcher.io.tar_stream`). If it fails, it writes one
sentence for the user to stderr; the exit code is 0 on success. This program runs in the image, so it uses only the
standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import secrets
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from select import POLLHUP, POLLIN, poll
from typing import IO, Any, BinaryIO

from launcher.errors import LauncherError
from launcher.io import files
from launcher.io.open_below import ReaderError, link_error, open_file, open_parent, refuse_links
from launcher.io.tar_stream import COPY_BYTES, save_tar, select, write_tar
from launcher.paths import OutputPaths, Position, position

SPACE_SECONDS = 5.0
DISCARD_SECONDS = 1.0
FINAL_STATES = ("complete", "failed")


def move_into_place(new: Path, final: Path, replace: bool) -> None:
    """Rename `new` to `final`, and sync the folder.

    With `replace`, an existing `final` is replaced, and restored if the rename fails.

    Raises:
        ReaderError: `final` exists, and `replace` is False.
        OSError: the storage fails.
    """
    if not os.path.lexists(final):
        new.rename(final)
    elif not replace:
        raise ReaderError(f"{final} exists already; nothing was changed. Fix: replace it with --force")
    elif final.is_file() and new.is_file():
        new.replace(final)
    else:
        aside = final.with_name(f".{final.name}.{secrets.token_hex(4)}.old")
        final.rename(aside)
        try:
            new.rename(final)
        except OSError:
            aside.rename(final)
            raise
        files.remove_path(aside)
    files.fsync_dir(final.parent)


def untar(source: IO[bytes], root: Path, name: str, needed: int, replace: bool) -> dict[str, int]:
    """Receive an archive from `source`, and unpack it as `root`/`name`; return the size in bytes of each file, by name.

    If the archive contains exactly one file and the name of this file is the last part of `name`, then `root`/`name`
    becomes that file. Any other archive becomes a folder. After a failure no files remain.

    Raises ReaderError if less than `needed` bytes are free, if the name is taken and `replace` is False, if a part of
    the path is a link, or if the archive is damaged.
    """
    final = refuse_links(root, name)
    if os.path.lexists(final) and not replace:
        raise ReaderError(f"{final} exists already; nothing was changed. Fix: replace it with --force")
    final.parent.mkdir(parents=True, exist_ok=True)
    free = files.free_bytes(final.parent)
    if needed > free:
        raise ReaderError(
            f"{final.parent} has {free:,} bytes free, but {needed:,} are needed; nothing was written. Fix: "
            "free space on the storage, for example with the command `clean`"
        )
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        saved = save_tar(source, temporary)
        single = list(saved) == [final.name] and (temporary / final.name).is_file()
        move_into_place(temporary / final.name if single else temporary, final, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return saved


def list_entries(folder: Path, optional: bool) -> list[dict[str, object]]:
    """Return the entries of a folder, sorted by name: {name, type: file|folder|other, bytes, mtime: Unix seconds}.

    If the folder does not exist, return an empty list with `optional`, and raise FileNotFoundError without it.
    """
    rows: list[dict[str, object]] = []
    if optional and not folder.exists():
        return rows
    for entry in sorted(folder.iterdir()):
        try:
            status = entry.lstat()
        except FileNotFoundError:
            continue
        kind = (
            "file" if stat.S_ISREG(status.st_mode) else "folder" if stat.S_ISDIR(status.st_mode) else "other"
        )
        rows.append({"name": entry.name, "type": kind, "bytes": status.st_size, "mtime": status.st_mtime})
    return rows


def compute_sums(path: Path, size: int) -> dict[str, str] | None:
    """Return {name: hex sha256} of each file in a folder, or of a single file; None if `path` is absent.

    Files in `__pycache__` are left out. `size` is the expected size of all files together, in bytes. If the files have
    another size, no file is read, and all sums are empty texts. The sum of a link is always empty.
    """
    if not path.exists():
        return None
    found = files.folder_files(path) if path.is_dir() else [path]
    read = sum(file.lstat().st_size for file in found) == size
    root = path if path.is_dir() else path.parent
    return {
        file.relative_to(root).as_posix(): files.sha256_file(file) if read and not file.is_symlink() else ""
        for file in found
    }


def measure_sizes(root: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the size in bytes of each of these files and folders, by name."""
    sizes = {}
    for name in names:
        with open_parent(root, name) as (folder, last):
            sizes[name] = _measure(last, folder)
    return sizes


def _measure(name: str, folder: int) -> int:
    """Return the size in bytes of a file, or of the files below it if it is a folder; links are not followed."""
    status = os.lstat(name, dir_fd=folder)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    tree = os.fwalk(name, dir_fd=folder)
    return sum(os.lstat(file, dir_fd=below).st_size for _, _, found, below in tree for file in found)


def remove_paths(root: Path, names: Sequence[str]) -> dict[str, int]:
    """Remove files and folders; return the size in bytes that each had, by name.

    Each file or folder is renamed first, so that after an interruption no half-removed folder has the old name. All
    calls use the descriptor of the parent folder, so a link that meanwhile replaces a folder of the path has no effect.
    """
    freed = {}
    for name in names:
        with open_parent(root, name) as (folder, last):
            aside = f".{last}.{secrets.token_hex(4)}.old"
            os.rename(last, aside, src_dir_fd=folder, dst_dir_fd=folder)
            freed[name] = _measure(aside, folder)
            if stat.S_ISDIR(os.lstat(aside, dir_fd=folder).st_mode):
                shutil.rmtree(aside, dir_fd=folder)
            else:
                os.unlink(aside, dir_fd=folder)
    return freed


def describe_environment() -> dict[str, Any]:
    """Return the properties of this system that decide which packages can be installed in it.

    The keys are `python` (its version, such as 3.11), `machine`, `glibc` (its version; empty without glibc) and
    `packages` (the version of each package of this Python, by name).
    """
    libc, version = platform.libc_ver()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "glibc": version if libc == "glibc" else "",
        "packages": {one.metadata["Name"] or "": one.version for one in metadata.distributions()},
    }


def follow_file(
    root: Path, name: str, until: str | None, out: IO[bytes], *, seconds: float, pause: float = 0.5
) -> None:
    """Write the file `root`/`name` to `out` as it grows; if a later attempt replaces the file, write the new file, too.

    This function returns after `seconds`. It returns earlier if the status file `root`/`until` says that the run is
    over, and the whole file was written. `pause` is the time in seconds between two reads.
    """
    deadline = time.monotonic() + seconds
    current: BinaryIO | None = None
    try:
        while time.monotonic() < deadline:
            # This is checked before the file is read, so that no line is missed.
            over = until is not None and _read_json_object(root, until).get("state") in FINAL_STATES
            if current is None:
                with contextlib.suppress(FileNotFoundError):
                    current = open_file(root, name)
            if current is not None:
                while block := current.read(COPY_BYTES):
                    out.write(block)
                out.flush()
                if _is_replaced(current, root / name):
                    current.close()
                    current = None
                    continue
            if over:
                return
            time.sleep(pause)
    finally:
        if current is not None:
            current.close()


def request_checkpoint(root: Path, out: IO[bytes], seconds: float, pause: float = 1.0) -> None:
    """Request a checkpoint from the training, and write a JSON line every `pause` seconds until it is saved.

    `root` is the job's folder. Each line has "state", "pass" and "batch" of status.json. The last line also has
    "saved": the folder name of the newest checkpoint that was completed since the call. "saved" is null if there is
    none after `seconds`, or if the run is over.

    Raises ReaderError if the run's runtime saves checkpoints only at the end of a pass.
    """
    output = OutputPaths(Path("output"))
    request = refuse_links(root, output.checkpoint_request.as_posix())
    try:
        record = _read_json_object(root, output.run_json.as_posix())
    except files.UnreadableError:
        record = _read_json_object(root, output.run_copy.as_posix())
    fingerprint = record.get("fingerprint")
    if isinstance(fingerprint, dict) and fingerprint.get("runtime") == "v1":
        raise ReaderError(
            "runtime v1 saves checkpoints only at the end of a pass (training.savingPeriod). Fix: wait for "
            "the end of the pass, or stop with --no-checkpoint"
        )
    deadline = time.monotonic() + seconds
    before = _find_checkpoints(request.parent)
    token = _write_request(request)
    saved = None
    line: dict[str, object] = {}
    try:
        while time.monotonic() < deadline:
            if not request.exists():
                new = [at for at, done in _find_checkpoints(request.parent).items() if before.get(at) != done]
                if saved := max(new, default=None):
                    break
                token = _write_request(request)  # removed by an earlier checkpoint, or by another command
            status = _read_json_object(root, output.status_json.as_posix())
            line = {key: status.get(key) for key in ("state", "pass", "batch")}
            if line["state"] in FINAL_STATES:
                break
            out.write(json.dumps(line).encode() + b"\n")
            out.flush()
            time.sleep(pause)
    finally:
        with contextlib.suppress(OSError):
            if request.read_text("utf-8") == token:  # else it is the request of another command
                request.unlink()
    out.write(json.dumps({**line, "saved": saved.folder if saved else None}).encode() + b"\n")


def _write_request(request: Path) -> str:
    """Write the file that requests a checkpoint, and replace an earlier request; return the text of the file."""
    token = secrets.token_hex(8)
    files.write_atomically(request, token)
    return token


def _find_checkpoints(output: Path) -> dict[Position, tuple[int, int]]:
    """Return (inode, mtime in ns) of the file `done` of each complete checkpoint, by the checkpoint's position.

    The two numbers change if the checkpoint is saved again.
    """
    found = {}
    for done in output.glob("pass-*/done"):
        with contextlib.suppress(FileNotFoundError):  # the checkpoint was just removed
            if at := position(done.parent.name):
                found[at] = (done.stat().st_ino, done.stat().st_mtime_ns)
    return found


def _is_replaced(opened: BinaryIO, path: Path) -> bool:
    try:
        now = path.lstat()
    except FileNotFoundError:
        return True
    return now.st_ino != os.fstat(opened.fileno()).st_ino or now.st_size < opened.tell()


def _read_json_object(root: Path, name: str) -> dict[str, object]:
    """Return the JSON object in a file; {} if the file is absent or cannot be read now: most callers try again.

    Raises UnreadableError if the file is damaged.
    """
    try:
        with open_file(root, name) as file:
            return files.parse_json_object(name, file.read())
    except OSError:
        return {}


def sleep_until_deadline(seconds: float) -> None:
    """Keep the pod alive for `seconds`, or until SIGTERM: process 1 ignores that signal without a handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(seconds)


_JSON_COMMANDS: dict[str, Callable[[argparse.Namespace, IO[bytes]], object]] = {
    "ls": lambda given, _: list_entries(
        refuse_links(given.root, given.paths[0]) if given.paths else given.root, given.optional
    ),
    "sums": lambda given, _: compute_sums(refuse_links(given.root, given.paths[0]), given.bytes),
    "sizes": lambda given, _: measure_sizes(given.root, given.paths),
    "remove": lambda given, _: remove_paths(given.root, given.paths),
    "environment": lambda *_: describe_environment(),
    "untar": lambda given, source: untar(source, given.root, given.paths[0], given.bytes, given.replace),
}
"""Subcommands that write one JSON value to stdout."""


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launcher reader", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("command", nargs="?", choices=("tar", "cat", "checkpoint", *_JSON_COMMANDS))
    parser.add_argument("paths", nargs="*", help="paths below --root")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=600.0, help="without a command: lifetime of the pod")
    parser.add_argument("--optional", action="store_true", help="tar, ls: skip absent paths")
    parser.add_argument("--bytes", type=int, default=0, help="sums: expected size; untar: free space needed")
    parser.add_argument("--replace", action="store_true", help="untar: replace an existing file or folder")
    parser.add_argument("--follow", type=float, default=0.0, metavar="SECONDS", help="cat: print new lines")
    parser.add_argument("--until", help="cat: status file whose final state stops --follow")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="checkpoint: how long to wait")
    return parser.parse_intermixed_args(argv)


def _run(given: argparse.Namespace, source: IO[bytes], out: IO[bytes]) -> None:
    root = given.root
    if root.is_symlink():
        raise link_error(root)
    if given.command is None:
        sleep_until_deadline(given.seconds)
    elif given.command == "tar":
        entries = select(root, given.paths, given.optional)
        write_tar(out, entries, given.optional, lambda name, _: open_file(root, name))
    elif given.command == "checkpoint":
        request_checkpoint(root, out, given.wait)
    elif given.command == "cat" and given.follow > 0:
        follow_file(root, given.paths[0], given.until, out, seconds=given.follow)
    elif given.command == "cat":
        with open_file(root, given.paths[0]) as content:
            shutil.copyfileobj(content, out, COPY_BYTES)
    else:
        with _sending_spaces(out):
            answer = _JSON_COMMANDS[given.command](given, source)
        out.write(json.dumps(answer).encode())
    out.flush()


@contextlib.contextmanager
def _sending_spaces(out: IO[bytes]) -> Iterator[None]:
    """Write a space to `out` every SPACE_SECONDS while the block runs.

    Without these bytes the connection would count as lost. The receiver's JSON parser ignores the spaces.
    """
    is_over = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not is_over.wait(SPACE_SECONDS):
                out.write(b" ")
                out.flush()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run(argv: Sequence[str] | None, source: IO[bytes], out: IO[bytes]) -> str:
    """Run one subcommand of `launcher reader`; without a subcommand, sleep as the reader pod does.

    Return why the command failed, in one sentence; an empty text on success. If `argv` is None, the arguments of this
    process are used. Raises BrokenPipeError if nobody reads `out` any more.
    """
    try:
        _run(_parse(argv), source, out)
    except BrokenPipeError:
        raise
    except (ReaderError, LauncherError) as error:
        return str(error)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return (
            f"{error.strerror or error}{where}. Fix: check that this path exists and that the storage is mounted, "
            "has free space and belongs to the pods' user"
        )
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the storage reader, `python -m launcher reader …`, with stdin and stdout of this process.

    Returns:
        The exit code: 0, or 1 after an error. The error is printed on stderr, unless nobody reads stdout any more.
    """
    try:
        problem = run(argv, sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        # Without this, Python reports the broken pipe again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if problem:
        print(problem, file=sys.stderr, flush=True)
        _discard_stdin()
    return 1 if problem else 0


def _discard_stdin() -> None:
    """Read and discard the rest of stdin, until no byte arrives for DISCARD_SECONDS.

    If a command in a pod exits while its stdin is full, the container runtime does not report the exit to the sender.
    """
    waiting = poll()
    with contextlib.suppress(OSError, ValueError):
        waiting.register(sys.stdin.fileno(), POLLIN | POLLHUP)
        while waiting.poll(DISCARD_SECONDS * 1000) and os.read(sys.stdin.fileno(), 1 << 20):
            pass


if __name__ == "__main__":
    sys.exit(main())
