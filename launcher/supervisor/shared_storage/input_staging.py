"""Copy this rank's shard, side tables, program and Python packages from the shared storage to the pod's own disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from launcher.dataprep.prepared_data import RECORDS_PER_BYTE, PreparedData, require_work_space
from launcher.errors import DataError, UnfitError, setting_error
from launcher.io import files
from launcher.io.program_folders import BUILT_IN, is_script_file
from launcher.io.thread_jobs import run_in_threads
from launcher.log import log
from launcher.paths import RESERVED_FOLDERS, JobPaths, is_safe_name
from launcher.schema import ShardFileEntry, describe_data
from launcher.settings import SCRIPT_RUNTIMES, TrainSettings

LOG_SECONDS = 10.0
"""Seconds between two log lines about the progress of a copy of files."""
COUNTED_FILES = 10_000
"""At most this many files are counted in the work folder. A script may have written many files, and the launcher counts
their bytes before it stops the script."""
TEST_ALONE = 200_000
"""Rank 0 alone evaluates a test set of at most this number of rows; a larger one is divided among all ranks
(launcher/trainer/evaluation.py)."""


def find_program(settings: TrainSettings, built_in: Path = BUILT_IN) -> Path:
    """Return the folder of the program of `training.config`: the user's own, or a built-in one.

    Raises:
        SettingsError: the folder or the file in it is missing; the message lists the existing folders or files.
    """
    own = settings.layout.program(settings.config_dir)
    folder = own if own.is_dir() else built_in / settings.config_dir
    if not folder.is_dir():
        raise setting_error(
            "training.config (TRAIN_CONFIG_DIR)",
            settings.config_dir,
            "the folder of a training program",
            f"there is neither {own} nor a built-in program with that name; your own programs: "
            f"{_list(_own_programs(settings.layout))}; built-in programs: {_list(_folders(built_in))}",
            "Set it to one of them, or upload your own with `python -m launcher push`",
        )
    is_module = settings.runtime in SCRIPT_RUNTIMES and not is_script_file(settings.config_file)
    if not is_module and not (folder / settings.config_file).is_file():
        there = sorted(path.name for path in folder.iterdir() if path.is_file())
        raise setting_error(
            "training.config",
            settings.config_file,
            f"a file in {folder}",
            f"there are only {_list(there)}",
            "Set the part of training.config after the / to one of them",
        )
    return folder


def _list(names: list[str]) -> str:
    return ", ".join(names) if names else "none"


def _folders(parent: Path) -> list[str]:
    if not parent.is_dir():
        return []
    return sorted(p.name for p in parent.iterdir() if p.is_dir() and p.name[0] not in "._")


def _own_programs(layout: JobPaths) -> list[str]:
    return [n for n in _folders(layout.job) if n not in RESERVED_FOLDERS and not n.isdecimal()]


def stage_inputs(
    settings: TrainSettings,
    manifest: dict[str, Any] | None,
    program: Path,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Copy shard, side tables and program to the pod's own disk, and return the program's digest.

    The test set, on ranks that need it, and the Python packages of `training.packages` are copied, too. The data and
    the progress.json that an earlier container left in the work folder are not trusted, and are removed first.

    The data that is read from the storage is verified, but the copy of the data is not read again here. The copy of the
    program is verified.

    Args:
        manifest: manifest of the data; None if the run has no data (`TrainSettings.has_data`).
        program: folder of the program, as `find_program` returns it.
        check: called often; an error that it raises stops the copy.

    Raises:
        DataError: a file is missing, does not match the manifest, or is changed during the copy; or the archive of
            `training.packages` is damaged.
        SettingsError: the files are larger than `workDir.sizeLimit`; or the program has another sha256 than
            `training.programSha256`; or the storage has no archive of `training.packages`.
        StorageError, StorageFailedError: the pod's own disk is full, or the shared storage cannot be read.
        UnfitError: the pod's own disk does not return what was written.
    """
    work = settings.work
    is_files = manifest is not None and manifest.get("format") == "files"
    if manifest is not None and not is_files:
        require_work_space(settings, *_describe_shard(settings, manifest))
    with files.storage_errors(work.root):
        if work.data.exists():
            shutil.rmtree(work.data)
        work.tables.mkdir(parents=True)
        work.progress.unlink(missing_ok=True)
    if manifest is not None:
        (_stage_files if is_files else _stage_data)(settings, manifest, check)
    if settings.packages:
        _stage_packages(settings, check)
    digest = _stage_program(settings, program, check)
    # The data providers of runtime v1 read ./data/train.txt, as in the tutorial's container.
    link = work.program / "data"
    if settings.runtime == "v1" and not link.exists():
        link.symlink_to(work.data, target_is_directory=True)
    return digest


def _stage_program(settings: TrainSettings, program: Path, check: Callable[[], None]) -> str:
    """Copy the program to the pod's own disk; return the digest of the copy (`program_sha256`).

    Raises:
        DataError: the program changed during the copy.
        SettingsError: the copied folder has another sha256 than `training.programSha256`.
        UnfitError: the copy differs from the program, so the pod's own disk is faulty.
    """
    target, config_file = settings.work.program, settings.config_file
    changed = DataError(
        f"{program} was changed while it was copied, so it is unknown which program this run trains. "
        "Fix: wait until `python -m launcher push` has finished, then start the run again."
    )
    try:
        with files.storage_errors(program):
            before = program_sha256(program, config_file)
            files.retry_storage(program, lambda: files.copy_folder(program, target, check))
            copied = program_sha256(target, config_file)
            if copied != before and program_sha256(program, config_file) != before:
                raise changed
    except files.NOT_FOUND as error:
        raise changed from error
    if copied != before:
        raise UnfitError(
            f"{target} differs from {program}, from which it was copied: this pod's own disk is faulty. The pod "
            "exits, and Kubernetes starts another one. Fix: if this happens again, check the node's disk."
        )
    expected = settings.program_sha256
    if expected and (found := files.folder_sha256(target)) != expected:
        raise setting_error(
            "training.programSha256",
            expected,
            f"the sha256 of the program on the storage, {found}",
            f"{program} is not the program that these values were made for: it was pushed again since then, or "
            "never",
            "Push the right program, and set the value that `python -m launcher push` prints",
        )
    return copied


def _stage_packages(settings: TrainSettings, check: Callable[[], None]) -> None:
    """Unpack the archive of `training.packages` on the pod's own disk, unless an earlier call in this pod has done so.

    Raises:
        SettingsError: the storage has no such archive.
        DataError: the archive has another sha256 than its name says, or contains something other than files of
            packages.
    """
    import tarfile

    work, source = settings.work, settings.layout.packages(settings.packages)
    if work.packages.is_dir():
        return
    archive, unpacked = work.root / "packages.tar.gz", work.root / ".packages.tmp"
    with files.storage_errors(work.root):
        files.remove_path(archive)
        files.remove_path(unpacked)
        unpacked.mkdir()
    fix = "Fix: start the run again with `python -m launcher run`, which sends the packages"
    try:
        size, found = files.retry_storage(source, lambda: files.copy_file(source, archive, check))
    except files.NOT_FOUND as error:
        raise setting_error(
            "training.packages",
            settings.packages,
            f"the sha256 of an archive in {source.parent}",
            f"there is no {source.name}; `clean` removes archives that no release refers to",
            fix.removeprefix("Fix: "),
        ) from error
    if found != settings.packages:
        raise DataError(f"{source} has sha256 {found}, so it is damaged. {fix} after you have removed it.")
    with files.storage_errors(work.root):
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:  # Debian's Python 3.11.2 has no filter for extractall
                content = tar.extractfile(member) if member.isreg() and is_safe_name(member.name) else None
                if content is None:
                    raise DataError(
                        f"{source} contains {member.name!r}, which is no file of a package. {fix}"
                    )
                check()
                file = unpacked / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    shutil.copyfileobj(content, out)
                file.chmod(0o755 if member.mode & 0o100 else 0o644)
        archive.unlink()
        unpacked.rename(work.packages)
    log.info("unpacked the program's Python packages (%s bytes compressed)", f"{size:,}")


def program_sha256(program: Path, config_file: str) -> str:
    """Return the digest of a program's files and of the name of its main file."""
    return hashlib.sha256(f"{files.folder_sha256(program)}\0{config_file}".encode()).hexdigest()


def _describe_shard(settings: TrainSettings, manifest: dict[str, Any]) -> tuple[int, str]:
    """Return (bytes that this rank's shard needs on the pod's own disk, description of these bytes for a message)."""
    rank = settings.completion_index
    tested = [manifest.get("test") or {}] if _needs_test_set(settings, manifest) else []
    text = sum(int(part.get("bytes", 0)) for part in (manifest["shards"][rank], *tested))
    needed = text + sum(int(table.get("bytes", 0)) for table in manifest.get("tables") or [])
    what = f"shard {rank} with its test set and tables ({needed:,} bytes)"
    if settings.runtime == "fleet":  # their size depends on the program, which is not loaded here
        records = int(text * RECORDS_PER_BYTE)
        needed, what = needed + records, f"{what} and the records of its rows (about {records:,})"
    return needed, what


def describe_overfull_work_dir(settings: TrainSettings) -> str:
    """Return a text that says why Kubernetes evicts this pod, to append to a message.

    The text is empty if the work folder is not larger than `workDir.sizeLimit`.
    """
    with contextlib.suppress(OSError):
        paths = itertools.islice(settings.work.root.rglob("*"), COUNTED_FILES)
        used = sum(path.lstat().st_blocks * 512 for path in paths)
        if 0 < settings.work_limit_bytes < used:
            return (
                f"; the pod's own disk has {used:,} bytes of this run, above workDir.sizeLimit "
                f"({settings.work_limit_bytes:,} bytes), for which Kubernetes evicts the pod. Fix: increase "
                "workDir.sizeLimit"
            )
    return ""


def _needs_test_set(settings: TrainSettings, manifest: dict[str, Any]) -> bool:
    """Return whether this rank needs the test set. Rank 0 always does.

    With runtime fleet, another rank needs it only if the test set is large (TEST_ALONE), or in an elastic run, in which
    any rank may become the first one. With the other runtimes, all ranks need it.
    """
    lines = (manifest.get("test") or {}).get("lines", 0)
    is_first = settings.completion_index == 0
    return is_first or settings.runtime != "fleet" or settings.is_elastic or lines > TEST_ALONE


def _stage_data(settings: TrainSettings, manifest: dict[str, Any], check: Callable[[], None]) -> None:
    work, rank = settings.work, settings.completion_index
    data, about = PreparedData(settings.layout, manifest), manifest["shards"][rank]
    sums = {"train.txt": data.copy_shard(rank, work.data / "train.txt", check)}
    test = manifest.get("test") or {}
    if test and _needs_test_set(settings, manifest):
        pieces = [(data.paths.test, test.get("sha256"))]
        sums["test.txt"] = data.copy(pieces, work.data / "test.txt", check)
    files.write_atomically(work.data / "train.list", "data/train.txt\n")
    files.write_atomically(work.data / "test.list", "data/test.txt\n" if test.get("bytes") else "")
    for table in manifest.get("tables") or []:
        copied = (data.paths.tables / table["name"], table.get("sha256"))
        data.copy([copied], work.tables / table["name"], check)
    files.write_json(work.sums, sums)
    log.info("staged shard %d on this pod's disk: %s lines", rank, about.get("lines"))


def _stage_files(settings: TrainSettings, manifest: dict[str, Any], check: Callable[[], None]) -> None:
    """Provide the data's files in the work folder, as data.cache says.

    They are linked, or all are copied, or this rank's share of them is copied.
    """
    data, target = PreparedData(settings.layout, manifest), settings.work.files
    if settings.data_cache == "storage":
        with files.storage_errors(target):
            target.symlink_to(data.paths.files, target_is_directory=True)
        log.info("the script reads %s from the shared storage", describe_data(manifest))
        return
    step = settings.trainers if settings.data_cache == "podShare" else 1
    listed = settings.work.data / data.paths.file_list.name
    data.copy([(data.paths.file_list, manifest["files"]["list"]["sha256"])], listed, check)

    def entries() -> Iterator[dict[str, Any]]:
        with listed.open("rb") as lines:
            for line in itertools.islice(lines, settings.completion_index % step, None, step):
                yield files.parse_json_object(data.paths.file_list, line, ShardFileEntry)

    def copy(entry: dict[str, Any], stop: Callable[[], None]) -> int:
        path = target / entry["name"]
        with files.storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        data.copy([(data.paths.files / entry["name"], entry["sha256"])], path, stop)
        return int(entry["bytes"])

    needed = sum(int(entry["bytes"]) for entry in entries())
    require_work_space(
        settings, needed, f"{'its share of ' * (step > 1)}the files of the data ({needed:,} bytes)"
    )
    target.mkdir()
    copied, log_at = 0, time.monotonic()
    for size in run_in_threads((functools.partial(copy, entry) for entry in entries()), check):
        check()
        copied += size
        if time.monotonic() >= log_at:
            log.info("copying the files to this pod's disk: %s of %s bytes", f"{copied:,}", f"{needed:,}")
            log_at = time.monotonic() + LOG_SECONDS
