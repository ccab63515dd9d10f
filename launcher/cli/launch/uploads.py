"""Upload programs and data files to the shared storage: complete and verified, or not at all."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.cli.cluster.releases import SOURCES
from launcher.cli.errors import CliError, UsageError
from launcher.cli.storage.job_storage import (
    SLOW_IDLE_SECONDS,
    Storage,
    buffered_reader,
    check_name,
)
from launcher.io.files import folder_files, sha256_file
from launcher.io.program_folders import CONFIG
from launcher.io.tar_stream import ReaderError, write_tar
from launcher.paths import RESERVED_FOLDERS
from launcher.trainer.program_loader import FUNCTIONS, VALUES

RENAME_FIX = "choose another name with --as NAME"


class OtherContentError(CliError):
    """The storage has other content with the same name."""


@dataclass(frozen=True)
class Upload:
    """A program or a data file to upload."""

    name: str
    """Its name on the storage."""
    entries: tuple[tuple[str, Path], ...]
    """(name in the archive, file)."""
    values: dict[str, str]
    """The chart values that refer to it."""
    is_source: bool
    """Whether it is a data file, which belongs to `sources/` and not to the job's folder."""

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.stat().st_size for _, file in self.entries)


def plan_program(folder: Path, name: str | None, check: bool = True, fix: str = RENAME_FIX) -> Upload:
    """Return the upload of a program's folder; files whose names begin with a dot are left out.

    Args:
        folder: the program.
        name: its name on the storage; None: that of the folder.
        check: whether the program must define what the trainer needs.
        fix: how the command offers another name, for messages.

    Raises:
        UsageError: the name is reserved, or the folder has links, no .py file or an incomplete program.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "give a program's folder, or a data file with --source")
    chosen = check_name(name or folder.resolve().name, fix)
    if chosen in RESERVED_FOLDERS or chosen.isdigit():
        raise UsageError(f"the name {chosen} is reserved: the launcher has a folder with that name", fix)
    entries = []
    for file in folder_files(folder):
        relative = file.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if file.is_symlink():
            raise UsageError(
                f"{file} is a symbolic link, whose target does not exist in the pods",
                "replace the link with the file itself",
            )
        entries.append((relative.as_posix(), file))
    scripts = [entry for entry, _ in entries if entry.endswith(".py") and "/" not in entry]
    if not scripts:
        raise UsageError(f"{folder} has no .py file", f"write the program to {folder / CONFIG}")
    trees = {name: _parse(file) for name, file in entries if file.suffix == ".py"}
    config = CONFIG if CONFIG in scripts or len(scripts) > 1 else scripts[0]
    if config not in scripts:
        raise UsageError(
            f"{folder} has several .py files and none with the name {CONFIG}: {', '.join(scripts)}",
            f"rename the program to {CONFIG}",
        )
    if check:
        _check_complete(folder / config, trees[config])
    values = {"training.config": f"{chosen}/{config}", "training.programSha256": _folder_digest(entries)}
    return Upload(chosen, tuple(entries), values, is_source=False)


def _folder_digest(entries: list[tuple[str, Path]]) -> str:
    """Return what `files.folder_sha256` returns for the uploaded folder."""
    lines = "".join(f"{name}\0{sha256_file(file)}\n" for name, file in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        place = f"{file}, line {getattr(error, 'lineno', None) or '?'}"
        raise UsageError(
            f"{place}: {getattr(error, 'msg', error)}. Nothing was sent", "correct this line"
        ) from error


def _check_complete(file: Path, tree: ast.Module) -> None:
    """Raise UsageError if the program lacks a part of its interface.

    The program is parsed, not run: Paddle may not be installed here.
    """
    bound = set(_bound_names(tree.body))
    lacks = [text for name, text in {**VALUES, **FUNCTIONS}.items() if name not in bound]
    if lacks and "*" not in bound:
        missing = "\n  ".join(lacks)
        raise UsageError(
            f"{file} does not define what a program must define:\n  {missing}\nNothing was sent",
            "add it (launcher/programs/README.md); or upload a configuration of runtime v1 with --no-check",
        )


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module's statements bind, also in if, try and with; * for `from x import *`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (entry.asname or entry.name for entry in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for top in targets for part in ast.walk(top) if isinstance(part, ast.Name))
        else:
            yield from _bound_names(part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))


def plan_source(file: Path, name: str | None, option: str = "--source", fix: str = RENAME_FIX) -> Upload:
    """Return the upload of a data file for `file://` sources.

    `option` is the option that gave the file; the other arguments are as of `plan_program`.
    """
    if not file.is_file():
        raise UsageError(f"{option} {file}: no such file", "give the path of a data file")
    chosen = check_name(name or file.name, fix)
    values = {"data.source": f"file://{chosen}", "data.sha256": sha256_file(file)}
    return Upload(chosen, ((chosen, file),), values, is_source=True)


def _stored_sums(storage: Storage, root: PurePosixPath, upload: Upload) -> dict[str, str]:
    """Return the sha256 of what the storage has under the upload's name, by file; {} if there is nothing.

    The sums are empty if the total size differs from the upload's.
    """
    argv = ["sums", "--root", str(root), "--bytes", str(upload.size), upload.name]
    stream = storage.run(argv, idle_seconds=SLOW_IDLE_SECONDS)
    answer = buffered_reader(stream).read()
    stream.result()
    return dict(json.loads(answer) or {})


def send(storage: Storage, upload: Upload, replace: bool, say: Callable[[str], None]) -> str:
    """Send an upload; return its path on the storage. It gets its name there after every sha256 was verified.

    Nothing is sent if the storage has the same content already.

    Raises:
        OtherContentError: the storage has other content with that name, and `replace` is False.
    """
    root = PurePosixPath(storage.job.parent / SOURCES) if upload.is_source else storage.job
    path = root / upload.name
    if stored := _stored_sums(storage, root, upload):
        if stored == {name: sha256_file(file) for name, file in upload.entries}:
            say(f"{path} is on the storage already, with the same sha256: nothing to send")
            return str(path)
        if not replace:
            raise OtherContentError(
                f"{path} exists already with other content; nothing was sent",
                "replace it with --force, or choose another name with --as NAME",
            )
    argv = ["untar", "--root", str(root), "--bytes", str(upload.size), *(["--replace"] if replace else [])]
    reading_end, writing_end = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with os.fdopen(writing_end, "wb") as out:
                write_tar(out, upload.entries)
        except (OSError, ReaderError) as error:  # after a broken pipe, the receiver reports the cause
            failure.append(error)

    writer = threading.Thread(target=write, daemon=True)
    try:
        stream = storage.run([*argv, upload.name], os.fdopen(reading_end, "rb"))
    except BaseException:
        os.close(writing_end)
        raise
    writer.start()
    try:
        answer = buffered_reader(stream).read()
        stream.result()
    except CliError as error:
        if failure and isinstance(failure[0], ReaderError):
            raise CliError(f"{failure[0]}; the storage was not changed") from error
        raise
    saved = json.loads(answer)
    count = f"{len(saved)} file{'' if len(saved) == 1 else 's'}"
    say(f"{path}: {sum(saved.values()):,} bytes in {count}; every sha256 matches")
    return str(path)
