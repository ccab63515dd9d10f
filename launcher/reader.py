"""What runs in the command line's short-lived pod.

`python3 -m launcher reader` sleeps until its deadline. The command line then starts the subcommands `tar`,
`untar`, `cat`, `ls`, `sums`, `sizes`, `remove` and `checkpoint` in a pod; with `--path` it starts the same
ones on its own machine. Payload goes over stdin and stdout (archives as in `launcher.tarstream`), one
sentence for people over stderr; the exit code says whether it worked. Only the standard library is used: this
runs in the image.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO

from launcher.files import folder_files, sha256_file
from launcher.layout import Output, Position, position
from launcher.tarstream import COPY_BYTES, ReaderError, checked_name, save_tar, select, write_tar

FINAL_STATES = ("complete", "failed")


def place(new: Path, final: Path, replace: bool) -> None:
    """Give `new` its final name; what stood there goes if `replace` allows it, and comes back on failure."""
    if not os.path.lexists(final):
        new.rename(final)
    elif not replace:
        raise ReaderError(f"{final} exists already; nothing was changed (--force replaces it)")
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
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def untar(source: IO[bytes], root: Path, name: str, needed: int, replace: bool) -> dict[str, int]:
    """Receive a program folder, or a single file when the archive holds exactly `name`, as `root`/`name`.

    `needed` bytes must be free before anything is written. A failure leaves nothing behind.
    """
    final = root / checked_name(name)
    if os.path.lexists(final) and not replace:
        raise ReaderError(f"{final} exists already; nothing was changed (--force replaces it)")
    final.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(final.parent).free
    if needed > free:
        raise ReaderError(
            f"{final.parent} has {free:,} bytes free, {needed:,} are needed; nothing was written"
        )
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        saved = save_tar(source, temporary)
        single = list(saved) == [final.name] and (temporary / final.name).is_file()
        place(temporary / final.name if single else temporary, final, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return saved


def listing(folder: Path) -> list[dict[str, object]]:
    """Entries of `folder` as {name, type: file|folder|other, bytes, mtime: unix seconds}, sorted by name."""
    rows: list[dict[str, object]] = []
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


def sums(path: Path, size: int) -> dict[str, str] | None:
    """Hex sha256 by name of the files in a folder, or of one file; None when `path` is absent.

    `size`: bytes that all of them should have. Where they have others, all sums are empty: nothing is read.
    """
    if not path.exists():
        return None
    found = folder_files(path) if path.is_dir() else [path]
    read = sum(file.stat().st_size for file in found) == size
    root = path if path.is_dir() else path.parent
    return {file.relative_to(root).as_posix(): sha256_file(file) if read else "" for file in found}


def sizes(root: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of these files, and of all files in these folders."""
    found = {name: root / checked_name(name) for name in names}
    return {
        name: sum(file.lstat().st_size for file in (folder_files(path) if path.is_dir() else [path]))
        for name, path in found.items()
    }


def remove(root: Path, names: Sequence[str]) -> dict[str, int]:
    """Removes files and folders; each is gone from its name in one step. Returns the bytes that each had."""
    freed = {}
    for name in names:
        path = root / checked_name(name)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
        path.rename(aside)
        freed[name] = sizes(aside.parent, [aside.name])[aside.name]
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
    return freed


def follow(file: Path, until: Path | None, out: IO[bytes], seconds: float, pause: float = 0.5) -> None:
    """Write `file` to `out` as it grows, for at most `seconds`, also when a new attempt replaces it.

    Ends once the status file `until` says that the run is over and all was written.
    """
    deadline = time.monotonic() + seconds
    current: BinaryIO | None = None
    try:
        while time.monotonic() < deadline:
            over = (
                until is not None and _json_object(until).get("state") in FINAL_STATES
            )  # read before the file: no line is missed
            if current is None:
                with contextlib.suppress(FileNotFoundError):
                    current = file.open("rb")
            if current is not None:
                while block := current.read(COPY_BYTES):
                    out.write(block)
                out.flush()
                if _other_file(current, file):
                    current.close()
                    current = None
                    continue
            if over:
                return
            time.sleep(pause)
    finally:
        if current is not None:
            current.close()


def ask_for_checkpoint(output: Output, out: IO[bytes], seconds: float, pause: float = 1.0) -> None:
    """Ask the training for a checkpoint, and write a JSON line every `pause` until it is saved.

    Lines are {"state", "pass", "batch"} of status.json. The last one also has "saved": the folder of the
    newest checkpoint that was completed since the call, or null after `seconds` or when the run is over.

    Raises:
        ReaderError: the run's runtime saves at the end of a pass only.
    """
    fingerprint = _json_object(output.run_json).get("fingerprint")
    if isinstance(fingerprint, dict) and fingerprint.get("runtime") == "v1":
        raise ReaderError("runtime v1 saves only at the end of a pass (training.savingPeriod)")
    request, deadline = output.checkpoint_request, time.monotonic() + seconds
    before = _checkpoints(output)
    token = _write_request(request)
    saved = None
    line: dict[str, object] = {}
    try:
        while time.monotonic() < deadline:
            if not request.exists():
                new = [at for at, done in _checkpoints(output).items() if before.get(at) != done]
                if saved := max(new, default=None):
                    break
                token = _write_request(request)  # a save that ended just before removed it, or another asker
            status = _json_object(output.status_json)
            line = {key: status.get(key) for key in ("state", "pass", "batch")}
            if line["state"] in FINAL_STATES:
                break
            out.write(json.dumps(line).encode() + b"\n")
            out.flush()
            time.sleep(pause)
    finally:
        with contextlib.suppress(OSError):
            if request.read_text("utf-8") == token:  # else another command waits for its answer
                request.unlink()
    out.write(json.dumps({**line, "saved": saved.folder if saved else None}).encode() + b"\n")


def _write_request(request: Path) -> str:
    """Write a request for a checkpoint, in the place of any other one; return its text."""
    token = secrets.token_hex(8)
    temporary = request.with_name(f"{request.name}.{secrets.token_hex(4)}.tmp")
    temporary.write_text(token, "utf-8")
    temporary.replace(request)
    return token


def _checkpoints(output: Output) -> dict[Position, tuple[int, int]]:
    """Return the complete checkpoints, each with what differs when it was saved again."""
    found = {}
    for done in output.root.glob("pass-*/done"):
        with contextlib.suppress(FileNotFoundError):  # its checkpoint was just removed
            if at := position(done.parent.name):
                found[at] = (done.stat().st_ino, done.stat().st_mtime_ns)
    return found


def _other_file(opened: BinaryIO, path: Path) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return True
    return now.st_ino != os.fstat(opened.fileno()).st_ino or now.st_size < opened.tell()


def _json_object(file: Path) -> dict[str, object]:
    """The JSON object in a file, or {}."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def sleep_until_deadline(seconds: float) -> None:
    """Keep the pod alive. TERM ends it at once: as process 1 it would be ignored without a handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launcher reader", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the pod lives")
    commands = parser.add_subparsers(dest="command")
    for name in ("tar", "untar", "cat", "ls", "sums", "sizes", "remove", "checkpoint"):
        command = commands.add_parser(name)
        command.add_argument("--root", type=Path, required=True)
        if name == "tar":
            command.add_argument("--optional", action="store_true", help="leave out what is not there")
            command.add_argument("paths", nargs="+")
        elif name == "untar":
            command.add_argument("--bytes", type=int, default=0, help="free space that must be there")
            command.add_argument("--replace", action="store_true")
            command.add_argument("path")
        elif name == "cat":
            command.add_argument("--follow", type=float, default=0.0, metavar="SECONDS")
            command.add_argument("--until", help="status file whose final state ends --follow")
            command.add_argument("path")
        elif name == "sums":
            command.add_argument("--bytes", type=int, required=True)
            command.add_argument("path")
        elif name in ("sizes", "remove"):
            command.add_argument("paths", nargs="+")
        elif name == "checkpoint":
            command.add_argument("--wait", type=float, required=True, metavar="SECONDS")
        else:
            command.add_argument("path", nargs="?", default="")
    return parser


def _run(options: argparse.Namespace) -> None:
    root: Path | None = getattr(options, "root", None)
    if root is None:
        sleep_until_deadline(options.seconds)
        return
    out = sys.stdout.buffer
    if options.command == "tar":
        write_tar(out, select(root, options.paths, options.optional), options.optional)
    elif options.command == "untar":
        saved = untar(sys.stdin.buffer, root, options.path, options.bytes, options.replace)
        out.write(json.dumps(saved).encode())
    elif options.command == "ls":
        folder = root / checked_name(options.path) if options.path else root
        out.write(json.dumps(listing(folder)).encode())
    elif options.command == "sums":
        out.write(json.dumps(sums(root / checked_name(options.path), options.bytes)).encode())
    elif options.command == "sizes":
        out.write(json.dumps(sizes(root, options.paths)).encode())
    elif options.command == "remove":
        out.write(json.dumps(remove(root, options.paths)).encode())
    elif options.command == "checkpoint":
        ask_for_checkpoint(Output(root / "output"), out, options.wait)
    else:
        file = root / checked_name(options.path)
        if options.follow > 0:
            follow(file, root / checked_name(options.until) if options.until else None, out, options.follow)
        else:
            with file.open("rb") as source:
                shutil.copyfileobj(source, out, COPY_BYTES)
    out.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one reader command; 0 when it worked, else 1 with one sentence on stderr."""
    options = _parser().parse_args(argv)
    try:
        _run(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at exit
        return 1
    except ReaderError as error:
        print(error, file=sys.stderr)  # noqa: T201 - stderr is this program's channel for its one sentence
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"{error.strerror or error}{where}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
