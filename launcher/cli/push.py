"""`push`: bring a person's program, or a data file, onto the shared storage, whole or not at all."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.cli.problems import CliError, UsageError
from launcher.cli.storage import Storage, buffered, checked
from launcher.files import folder_files, sha256_file
from launcher.layout import RESERVED_FOLDERS
from launcher.tarstream import ReaderError, write_tar
from launcher.worker.program import FUNCTIONS, VALUES

CONFIG = "trainer_config.py"
FIX = "Choose a name with --as NAME."
SUMS_SECONDS = 1800.0  # for the sha256 of a file of 100 GB


class OtherContentError(CliError):
    """The storage has something else of that name."""


@dataclass(frozen=True)
class Parcel:
    """What to send.

    `entries` are (name in the archive, file), `final` the path below `root` on the storage.
    """

    final: str
    entries: tuple[tuple[str, Path], ...]
    values: dict[str, str]
    source: bool

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.stat().st_size for _, file in self.entries)


def program(folder: Path, name: str | None, check: bool = True, fix: str = FIX) -> Parcel:
    """A program folder. UsageError for a name that the job's folder needs itself, links, or no .py file.

    `fix`: what the command offers for another name.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder. push takes a program's folder, or with --source a data file."
        )
    chosen = checked(name or folder.resolve().name, fix)
    if chosen in RESERVED_FOLDERS or chosen.isdigit():
        raise UsageError(f"{chosen} is the name of a folder of the launcher's own, not of a program. {fix}")
    entries = []
    for file in folder_files(folder):
        relative = file.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if file.is_symlink():
            raise UsageError(
                f"{file} is a link, which would lead nowhere in the pods. Put the file itself there."
            )
        entries.append((relative.as_posix(), file))
    scripts = [entry for entry, _ in entries if entry.endswith(".py") and "/" not in entry]
    if not scripts:
        raise UsageError(f"{folder} holds no .py file: a program has at least its {CONFIG}.")
    trees = {name: _parsed(file) for name, file in entries if file.suffix == ".py"}
    config = CONFIG if CONFIG in scripts or len(scripts) > 1 else scripts[0]
    if config not in scripts:
        raise UsageError(f"which of {', '.join(scripts)} is the program? Name it {CONFIG}.")
    if check:
        _complete(folder / config, trees[config])
    values = {"training.config": f"{chosen}/{config}", "training.programSha256": _digest(entries)}
    return Parcel(chosen, tuple(entries), values, source=False)


def _digest(entries: list[tuple[str, Path]]) -> str:
    """As `files.folder_sha256` gives it for the folder that this becomes."""
    lines = "".join(f"{name}\0{sha256_file(file)}\n" for name, file in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        place = f"{file}, line {getattr(error, 'lineno', None) or '?'}"
        raise UsageError(f"{place}: {getattr(error, 'msg', error)}. Nothing was sent.") from error


def _complete(file: Path, tree: ast.Module) -> None:
    """UsageError when the program lacks a part of its interface. It is read, not run: it may need Paddle."""
    bound = set(_bound(tree.body))
    lacks = [text for name, text in {**VALUES, **FUNCTIONS}.items() if name not in bound]
    if lacks and "*" not in bound:
        raise UsageError(
            f"{file} lacks what a program needs:\n  " + "\n  ".join(lacks) + "\nNothing was sent. "
            "See launcher/programs/README.md; --no-check sends a configuration for runtime v1 as it is."
        )


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module bind, also below if, try and with; * for `from x import *`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (entry.asname or entry.name for entry in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for top in targets for part in ast.walk(top) if isinstance(part, ast.Name))
        else:
            yield from _bound(part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))


def source(file: Path, name: str | None, option: str = "--source", fix: str = FIX) -> Parcel:
    """A data file for `file://` sources. `option` names it on the command line; `fix` as of `program`."""
    if not file.is_file():
        raise UsageError(f"{option} {file} is no file.")
    chosen = checked(name or file.name, fix)
    values = {"data.source": f"file://{chosen}", "data.sha256": sha256_file(file)}
    return Parcel(chosen, ((chosen, file),), values, source=True)


def _there(storage: Storage, root: PurePosixPath, parcel: Parcel) -> dict[str, str]:
    """What has the parcel's name on the storage: sha256 by file, empty ones where the sizes tell already."""
    argv = ["sums", "--root", str(root), "--bytes", str(parcel.size), parcel.final]
    answer = storage.run(argv, idle=SUMS_SECONDS)
    told = buffered(answer).read()
    answer.result()
    return dict(json.loads(told) or {})


def send(storage: Storage, parcel: Parcel, force: bool, say: Callable[[str], None]) -> str:
    """Send the parcel; returns its path on the storage. Nothing gets its name there before all sums hold."""
    root = PurePosixPath(storage.job.parent / "sources") if parcel.source else storage.job
    if there := _there(storage, root, parcel):
        if there == {name: sha256_file(file) for name, file in parcel.entries}:
            say(f"{root / parcel.final} is there already, every sha256 as here: nothing to send")
            return str(root / parcel.final)
        if not force:
            raise OtherContentError(
                f"{root / parcel.final} is there already with other content; nothing was sent. Replace it "
                "with --force, or give this one another name with --as NAME."
            )
    argv = ["untar", "--root", str(root), "--bytes", str(parcel.size), *(["--replace"] if force else [])]
    ours, theirs = os.pipe()
    failure: list[BaseException] = []

    def write() -> None:
        try:
            with os.fdopen(theirs, "wb") as out:
                write_tar(out, parcel.entries)
        except (OSError, ReaderError) as error:  # a broken pipe means that the far side has said why
            failure.append(error)

    writer = threading.Thread(target=write, daemon=True)
    try:
        answer = storage.run([*argv, parcel.final], os.fdopen(ours, "rb"))
    except BaseException:
        os.close(theirs)
        raise
    writer.start()
    try:
        told = buffered(answer).read()
        answer.result()
    except CliError as error:
        if failure and isinstance(failure[0], ReaderError):
            raise CliError(f"{failure[0]}; nothing was changed on the storage.") from error
        raise
    saved = json.loads(told)
    count = f"{len(saved)} file{'' if len(saved) == 1 else 's'}"
    say(f"{root / parcel.final}: {sum(saved.values()):,} bytes in {count}, every sha256 as here")
    return str(root / parcel.final)
