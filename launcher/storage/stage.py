"""From the shared storage to the pod's own disk: this rank's shard, the side tables, the program."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.data.pieces import pieces
from launcher.errors import DataError, SettingsError, StorageError, UnfitError, setting
from launcher.layout import RESERVED_FOLDERS, SHARD_LISTS, Layout
from launcher.reporting.log import log
from launcher.settings import TrainSettings

BUILT_IN = Path(__file__).parent.parent / "programs"
TEST_ALONE = 200_000
"""The first rank scores so many rows alone; of more, all score a share (launcher/worker/testing.py)."""


@dataclass(frozen=True)
class Staged:
    """What is on the pod's disk now."""

    data_dir: Path
    program_dir: Path
    program_sha256: str


def find_program(settings: TrainSettings, built_in: Path = BUILT_IN) -> Path:
    """The program's folder: a person's own in the job's folder wins over a built-in one.

    Raises `SettingsError` with what exists, when the folder or the config file in it is missing.
    """
    own = settings.layout.program(settings.config_dir)
    folder = own if own.is_dir() else built_in / settings.config_dir
    if not folder.is_dir():
        raise SettingsError(
            setting(
                "training.config (TRAIN_CONFIG_DIR)",
                settings.config_dir,
                "the folder of a training program",
                f"there is neither {own} nor a built-in program of that name; there are "
                f"{_list(_own_programs(settings.layout))} of your own, and built in "
                f"{_list(_folders(built_in))}",
                "Take one of them, or bring your own with `python -m launcher push`",
            )
        )
    if not (folder / settings.config_file).is_file():
        there = sorted(path.name for path in folder.iterdir() if path.is_file())
        raise SettingsError(
            setting(
                "training.config (PADDLE_LAUNCHER_CONFIG_FILE)",
                settings.config_file,
                f"a file in {folder}",
                f"there are only {_list(there)}",
                "Name one of them behind the / of training.config",
            )
        )
    return folder


def _list(names: list[str]) -> str:
    return ", ".join(names) if names else "none"


def _folders(parent: Path) -> list[str]:
    if not parent.is_dir():
        return []
    return sorted(p.name for p in parent.iterdir() if p.is_dir() and p.name[0] not in "._")


def _own_programs(layout: Layout) -> list[str]:
    return [n for n in _folders(layout.job) if n not in RESERVED_FOLDERS and not n.isdecimal()]


def stage(
    settings: TrainSettings,
    rank: int,
    manifest: dict[str, Any],
    program: Path,
    check: Callable[[], None] = lambda: None,
) -> Staged:
    """Copies, and verifies the copies. `check` may raise to end a long copy.

    Whatever is in the work folder already, from an earlier pod or container, is not trusted but made again.
    Raises `DataError` for what is missing, differs from the manifest or changes meanwhile, `StorageError` for
    a full disk, `UnfitError` for a disk that does not give back what was written.
    """
    work = settings.work
    _check_space(work.root, manifest, rank, test=_tests(settings, rank, manifest))
    with files.storage(work.root):
        if work.data.exists():
            shutil.rmtree(work.data)
        work.tables.mkdir(parents=True)
        work.progress.unlink(missing_ok=True)
    _stage_data(settings, rank, manifest, check)
    digest = _stage_program(program, work.program, settings.config_file, settings.program_sha256, check)
    # The old binary's data providers read ./data/train.txt, as in the seeds' container.
    link = work.program / "data"
    if not link.exists():
        link.symlink_to(work.data, target_is_directory=True)
    return Staged(work.data, work.program, digest)


def _stage_program(
    program: Path, target: Path, config_file: str, expected: str, check: Callable[[], None]
) -> str:
    """The digest of the program as it lies on the pod's disk now."""
    with files.storage(program):
        before = program_sha256(program, config_file)
        files.patient(program, lambda: files.copy_folder(program, target, check))
        copied = program_sha256(target, config_file)
        if copied != before and program_sha256(program, config_file) != before:
            raise DataError(
                f"{program} was changed while it was copied: nobody can tell which program this run trains. "
                "Let `python -m launcher push` end, then start the run again."
            )
    if copied != before:
        raise _bad_copy(program, target)
    if expected and (found := files.folder_sha256(target)) != expected:
        raise SettingsError(
            setting(
                "training.programSha256 (PADDLE_LAUNCHER_PROGRAM_SHA256)",
                expected,
                f"the sha256 of the program on the storage, {found}",
                f"{program} is another program than the one that these values were made for: it was pushed "
                "again meanwhile, or never",
                "Push the program that you mean, and take the value that `python -m launcher push` prints",
            )
        )
    return copied


def _bad_copy(source: Path, target: Path) -> UnfitError:
    return UnfitError(
        f"{target} does not read back as it was copied from {source}: this pod's own disk is faulty. Another "
        "pod may do better on another node."
    )


def program_sha256(program: Path, config_file: str) -> str:
    """Digest of a program's files and of which of them is the config."""
    import hashlib

    return hashlib.sha256(f"{files.folder_sha256(program)}\0{config_file}".encode()).hexdigest()


def _check_space(root: Path, manifest: dict[str, Any], rank: int, *, test: bool) -> None:
    with files.storage(root):
        root.mkdir(parents=True, exist_ok=True)
    tested = [manifest.get("test") or {}] if test else []
    parts = [manifest["shards"][rank], *tested, *(manifest.get("tables") or [])]
    needed = sum(int(part.get("bytes", 0)) for part in parts)
    free = files.free_bytes(root)
    if needed > free:
        raise StorageError(
            f"shard {rank} with its test set and tables has {needed:,} bytes, but {root} has only {free:,} "
            "free. Give the pods' work volume (an emptyDir) more room, or use more trainers."
        )


def _tests(settings: TrainSettings, rank: int, manifest: dict[str, Any]) -> bool:
    """Whether this rank needs the test set: the first one alone tests, unless it is large, or runtime v1."""
    lines = (manifest.get("test") or {}).get("lines", 0)
    return rank == 0 or settings.runtime == "v1" or lines > TEST_ALONE


def _stage_data(
    settings: TrainSettings, rank: int, manifest: dict[str, Any], check: Callable[[], None]
) -> None:
    work, layout = settings.work, settings.layout
    shard, about = layout.shard(rank), manifest["shards"][rank]
    sums = {"train.txt": _copy_pieces(layout, about, work.data / "train.txt", check)}
    if manifest.get("test") and _tests(settings, rank, manifest):
        sums["test.txt"] = _copy_checked(
            layout.test, work.data / "test.txt", manifest["test"].get("sha256"), check
        )
    for name in SHARD_LISTS:
        _copy_checked(shard / name, work.data / name, None, check)
    for table in manifest.get("tables") or []:
        source = layout.tables / table["name"]
        _copy_checked(source, work.tables / table["name"], table.get("sha256"), check)
    if manifest.get("rows"):
        _copy_checked(layout.rows, work.rows, manifest["rows"].get("sha256"), check)
    files.write_json(work.sums, sums)
    log.info("staged shard %d: %s lines", rank, about.get("lines"))


def _copy_pieces(layout: Layout, about: dict[str, Any], target: Path, check: Callable[[], None]) -> str:
    """The shard's files, one after the other, as one. Returns the sha256 of it."""
    shard = layout.shard(about["index"])
    found = pieces(layout, about)
    if len(found) == 1:
        return _copy_checked(shard / found[0]["name"], target, found[0]["sha256"], check)
    part = target.with_name("piece.tmp")
    with files.storage(target), target.open("wb") as whole:
        for piece in found:
            _copy_checked(shard / piece["name"], part, piece["sha256"], check)
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, files.BLOCK)
    part.unlink()
    return files.sha256_file(target, check)


def _copy_checked(source: Path, target: Path, sha256: str | None, check: Callable[[], None]) -> str:
    """Hashes what was read, against the manifest, and what lies on the pod's disk, against what was read.

    Returns that sha256.

    That comes from the page cache, as the trainer's own reading will: 0.7 s of one core a GB, and no disk.
    """
    try:
        _, read = files.patient(source, lambda: files.copy_file(source, target, check))
        wanted = sha256 or files.sha256_file(source, check)
    except FileNotFoundError as error:
        raise DataError(
            f"{source} is missing, though the manifest lists it. Run the data Job again (delete "
            "manifest.json)."
        ) from error
    if read != wanted:
        raise DataError(
            f"{source} has sha256 {read}, but {wanted} by the {'manifest' if sha256 else 'next look at it'}: "
            "it was changed or cut after the data Job. Run the data Job again (delete manifest.json)."
        )
    if files.sha256_file(target, check) != read:
        raise _bad_copy(source, target)
    return read
