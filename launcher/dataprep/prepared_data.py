"""Check, publish and remove prepared data on the shared storage.

Prepared data is in `.data/<content>/`, only once for all jobs that use it. A data Job works in a folder with a
temporary name, and renames the folder when everything in it is complete. Then the data Job writes the manifest
`.data/<dataDigest>.json`, which the training pods of all releases with this data digest read. Last it creates links to
the data in the job's folder, so that this folder looks as in PaddlePaddle's tutorial of 2017. Nothing reads through
these links: another release with the same jobName may replace them at any time, and a link may lead elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import schema
from launcher.errors import DataError, StorageError, make_again_fix, setting_error
from launcher.io import files
from launcher.io.open_below import ReaderError, refuse_links
from launcher.log import log
from launcher.paths import DataPaths, JobPaths
from launcher.schema import MANIFEST_VERSION, ManifestFile, ShardFiles
from launcher.settings import DataSettings, TrainSettings

LIST = "files.json"
"""Name of the file in a shard's folder that lists the names, sizes and sha256 of the shard's files. A shard with a
single file has none."""
RECORDS_PER_BYTE = 0.75
"""Low estimate of the number of bytes that a byte of text needs in records, where an id has 8 bytes and a number 4."""
UNUSED_SECONDS = 3600.0
"""If no pod has touched a temporary file of `.data/` for so many seconds, the data Job of this file was killed."""
_BUSY = (errno.EACCES, errno.EAGAIN)
_SHARD = re.compile(r"0|[1-9][0-9]*")
_DIGEST = re.compile(r"[A-Za-z0-9.-]+")
_CONTENT = re.compile(r"[0-9a-f]{64}")


def has_record_batches(shard: Path) -> bool:
    """Return whether a shard's file has record batches (launcher/dataprep/parquet_rows.py) instead of lines of text.

    The first bytes decide: an Arrow stream begins with bytes that UTF-8 text cannot contain.
    """
    with shard.open("rb") as file:
        return file.read(4) == b"\xff\xff\xff\xff"


@dataclass(frozen=True)
class PreparedData:
    """The data that a manifest describes."""

    layout: JobPaths
    manifest: Mapping[str, Any]

    @property
    def paths(self) -> DataPaths:
        """Return the paths of the data.

        Raises:
            DataError: the manifest's field `content` is not a possible name of a folder of data.
        """
        content = str(self.manifest.get("content"))
        if _CONTENT.fullmatch(content) is None:
            raise DataError(
                f"{self._record} has no usable name of a folder in `content`: {content[:80]!r}. "
                f"{make_again_fix(self._record)}"
            )
        return self.layout.data(content)

    @property
    def _record(self) -> Path:
        return self.layout.data_record(str(self.manifest.get("dataDigest")))

    @property
    def fix(self) -> str:
        """Return the text from `Fix:` on for messages about a missing or damaged file.

        The user must delete both the data and its manifest in `.data/`. If the manifest stayed, the training pods of
        the new run would not wait for the new data.
        """
        return make_again_fix(f"{self._record} and {self.paths.root}")

    def listed_files(self, only_shard: int | None = None) -> dict[Path, dict[str, Any]]:
        """Return {path: {"bytes", "sha256"}} of the files that the manifest lists.

        With `only_shard`, the index of a shard, the files of the other shards are left out. The test set and the side
        tables are always included. With data.format files, the only listed file is the list of all files.

        Raises:
            DataError, KeyError, TypeError, ValueError: the manifest, or a shard's `files.json`, is damaged.
            StorageError, StorageFailedError: a shard's `files.json` cannot be read.
        """
        if why := schema.mismatch(self.manifest, ManifestFile):
            raise ValueError(why)
        if counts := self.manifest.get("files"):  # a check of each file would take minutes
            return {self.paths.file_list: counts["list"]}
        found = {self.paths.tables / str(table["name"]): table for table in self.manifest["tables"]}
        found[self.paths.test] = self.manifest["test"]
        for shard in self.manifest["shards"]:
            if only_shard in (None, int(shard["index"])):
                folder = self.paths.shard(int(shard["index"]))
                found |= {folder / str(file["name"]): file for file in self.shard_files(shard)}
        return found

    def shard_files(self, shard: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return {"name", "bytes", "sha256"} of each file of a shard, in the order in which pods join the files.

        `shard` is the shard's entry in the manifest. If the shard has one file, the entry has the size and sha256 of
        this file. If it has several files, the sha256 in the entry is that of the shard's `files.json`. This function
        reads `files.json`, which has size and sha256 of each file.

        Raises:
            DataError: `files.json` is missing or damaged, or has another sha256 than the manifest lists.
            StorageError, StorageFailedError: `files.json` cannot be read.
        """
        if not shard.get("parts"):
            return [{"name": "train.txt", "bytes": shard["bytes"], "sha256": shard.get("sha256")}]
        path = self.paths.shard(int(shard["index"])) / LIST
        content = files.read_bytes(path) or b""
        if hashlib.sha256(content).hexdigest() != shard["sha256"]:
            raise DataError(
                f"{path} is missing, or its sha256 is not the one in manifest.json: it was changed after the data "
                f"Job. {self.fix}"
            )
        try:
            found: list[dict[str, Any]] = files.parse_json_object(path, content, ShardFiles)["files"]
        except files.UnreadableError as error:
            raise DataError(f"{error} {self.fix}") from error
        return found

    def copy_shard(self, index: int, target: Path, check: Callable[[], None]) -> list[dict[str, Any]]:
        """Join the files of the shard `index` to the new file `target`; return the result of `copy`.

        Raises:
            DataError, StorageError, StorageFailedError: as `shard_files` and `copy`.
        """
        folder = self.paths.shard(index)
        listed = self.shard_files(self.manifest["shards"][index])
        return self.copy([(folder / file["name"], file["sha256"]) for file in listed], target, check)

    def copy(
        self, pieces: list[tuple[Path, str | None]], target: Path, check: Callable[[], None]
    ) -> list[dict[str, Any]]:
        """Append the content of several files to the new file `target`.

        This function does not read the copy again: the process that converts the rows to records reads the copy once,
        and compares it with the result of this function.

        Args:
            pieces: (path, sha256) of each file. The sha256 is the one in the manifest, and the content that is read
                must have it; None: any content is valid.
            target: the new file.
            check: called before each block is written; it may raise to stop the copy.

        Returns:
            {"bytes", "sha256"} of each file, in the order of the files in `target`.

        Raises:
            DataError: a file is missing, or has another sha256.
            StorageError, StorageFailedError: a file cannot be read or written.
        """
        offset, copied = 0, []
        for source, wanted in pieces:
            copy = functools.partial(files.copy_file, source, target, check, offset)
            try:
                size, read = files.retry_storage(source, copy)
            except files.NOT_FOUND as error:
                raise DataError(
                    f"{source} is missing, although the data was complete: it was removed after the data Job. "
                    f"{self.fix}"
                ) from error
            if wanted and read != wanted:
                raise DataError(
                    f"{source} has sha256 {read}, but {wanted} in the manifest: the file was changed or truncated "
                    f"after the data Job. {self.fix}"
                )
            offset += size
            copied.append({"bytes": size, "sha256": read})
        return copied


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest in the file `path`; None if the file is absent or damaged.

    A damaged manifest is logged. A data Job that reads it then makes the data and the manifest again.
    """
    try:
        return files.read_json(path, shape=ManifestFile)
    except files.UnreadableError as error:
        log.info("%s The data and the manifest are made again.", error)
        return None


def read_record(settings: DataSettings) -> dict[str, Any] | None:
    """Return the manifest of this pod's data if the data is complete (`read_complete`), else None.

    A training pod checks only its own shard, the test set and the side tables: with hundreds of trainers, a check of
    all shards would take minutes in each pod.
    """
    shard = settings.completion_index if settings.in_training_pod else None
    path = settings.layout.data_record(settings.data_digest)
    manifest = read_complete(settings.layout, path, settings.split_count, shard)
    return manifest if manifest is not None and manifest.get("dataDigest") == settings.data_digest else None


def read_complete(
    layout: JobPaths, path: Path, shards: int, only_shard: int | None = None
) -> dict[str, Any] | None:
    """Return the manifest in the file `path` if its data is complete, else None.

    Data is complete if it has `shards` shards (none with data.format files), and each file that the manifest lists
    exists with its listed size. With `only_shard`, the index of a shard, only the files of this shard and the files of
    no shard are checked. If the data is not complete, this function logs what is wrong, except for an absent manifest.
    """
    if (manifest := read_manifest(path)) is None:
        return None
    if manifest.get("version") != MANIFEST_VERSION:
        log.info("another version of the launcher has prepared the data: preparing it again")
        return None
    try:
        listed = PreparedData(layout, manifest).listed_files(only_shard)
        sizes = {path: int(entry["bytes"]) for path, entry in listed.items()}
        wrong = files.retry_storage(
            layout.all_data,
            lambda: [p for p, size in sizes.items() if not p.is_file() or p.stat().st_size != size],
        )
    except (KeyError, TypeError, ValueError, DataError):  # DataError: a damaged files.json
        wrong = [layout.all_data]
    if wrong or manifest.get("splitCount") not in (0, shards):
        log.info("the prepared data is incomplete (wrong: %s): preparing it again", wrong or "splitCount")
        return None
    return manifest


def require_work_space(settings: TrainSettings, needed: int, what: str) -> None:
    """Check that the pod's own disk has room for `needed` bytes; `what` describes these bytes in messages.

    Raises:
        SettingsError: `workDir.sizeLimit` is less than `needed`.
        StorageError: the disk has fewer than `needed` bytes free.
    """
    root, limit = settings.work.root, settings.work_limit_bytes
    with files.storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    if 0 < limit < needed:
        raise setting_error(
            "workDir.sizeLimit (PADDLE_LAUNCHER_WORK_LIMIT_BYTES)",
            f"{limit:,} bytes",
            f"at least {needed:,} bytes",
            f"{what} need as much on the pod's own disk, and Kubernetes would evict the pod while it writes them",
            "set workDir.sizeLimit to about twice this minimum, since records may be larger than text, or use more "
            "trainers",
        )
    files.require_space(root, needed, what, files.ENLARGE_WORK_VOLUME)


def make_job_folder(layout: JobPaths) -> None:
    """Create the job's folder, if it is absent.

    Raises:
        StorageError: the volume is not mounted, the folder is not writable, or its path contains a symbolic link.
    """
    if not layout.job_path.is_dir():
        raise StorageError(
            f"JOB_PATH {layout.job_path} does not exist: the shared storage is not mounted. Fix: check the pod's "
            "volume and its claim (kubectl describe pod)."
        )
    _make_folder(layout, layout.job, 0o755)


def make_data_folder(layout: JobPaths) -> None:
    """Create the folder `.data/`, if it is absent.

    The pods of all releases write to this folder. Its mode lets each user remove only files of this user.

    Raises:
        StorageError: the folder is not writable, or its path contains a symbolic link.
    """
    _make_folder(layout, layout.all_data, 0o1777)


def _make_folder(layout: JobPaths, folder: Path, mode: int) -> None:
    refuse_link(layout, folder)
    with files.storage_errors(folder):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(mode)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def refuse_link(layout: JobPaths, path: Path) -> None:
    """Raise `StorageError` if a path on the storage, or a folder on the way to it, is a symbolic link."""
    try:
        refuse_links(layout.job_path, path.relative_to(layout.job_path).as_posix())
    except ReaderError as error:
        raise StorageError(f"{error}.") from error


@contextlib.contextmanager
def lock_file(path: Path, settings: DataSettings) -> Iterator[bool]:
    """Lock the file `path` for the `with` block, and yield whether the lock was obtained.

    It is not obtained if another pod holds the lock, or if the folder of the file was removed. The kernel (or the NFS
    server) manages the lock, so the lock of a killed pod is released. On a storage without file locks, a single pod
    continues without a lock, and yields True.

    Raises:
        SettingsError: the storage has no file locks, but the settings let several pods prepare the data.
    """
    try:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.fchmod(fd, 0o666)  # pods of other users lock this file, too
    except FileNotFoundError:
        yield False
        return
    try:
        yield _try_lock(fd, settings)
    finally:
        os.close(fd)


def _try_lock(fd: int, settings: DataSettings) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if settings.workers > 1:
            reason = f"the storage does not support file locks ({error}), and several pods need them"
            key, value, only = "data.workers", str(settings.workers), "1"
            if settings.in_training_pod:
                key, value, only = "data.preparedBy", "trainingPods", "dataJob"
            raise setting_error(
                key, value, f"{only} on this storage", reason, f"Set {key} to {only}"
            ) from error
        log.info(
            "the storage does not support file locks (%s), so two data Jobs with the same source do not divide "
            "the work: run only one at a time",
            error,
        )
    return True


def describe_maker(settings: DataSettings) -> dict[str, Any]:
    """Return the field `madeBy` of the manifests that this pod writes: the pod's namespace, release, Job and run."""
    return {
        "namespace": settings.namespace,
        "release": settings.release,
        "job": settings.k8s_job,
        "runId": settings.chart_run_id,
    }


def give_to_job(settings: DataSettings, manifest: Mapping[str, Any]) -> bool:
    """Publish complete data for this pod's data digest and job; return False if the data was removed meanwhile.

    This function removes data-failed.json. It writes the manifest `.data/<dataDigest>.json`, for which the training
    pods wait. In the job's folder it writes links to the data, and manifest.json. Manifests and links stay as they are
    if another pod of the Job has written them already. If the job's earlier data was published by this release with
    another data digest, the function then removes the manifest of the earlier data from `.data/`. It also removes the
    earlier data, if no other manifest in `.data/` refers to this data.

    The caller must hold the lock of `.data/`. Without this lock, another release could remove the data after this
    function has checked that the data exists, and before it writes the manifest.

    Raises:
        DataError: the field `content` of `manifest` is not a possible name of a folder of data.
        StorageError, StorageFailedError: a file cannot be read or written, or a folder of a shard is a symbolic link.
    """
    layout = settings.layout
    data = PreparedData(layout, manifest).paths
    if read_manifest(data.manifest) is None:
        return False
    with files.storage_errors(layout.data_failed):
        layout.data_failed.unlink(missing_ok=True)
    ours, made_by = describe_maker(settings), manifest.get("madeBy") or {}
    reader = str(manifest.get("reusedFrom") or made_by.get("job") or "unknown")
    record = {**manifest, "dataDigest": settings.data_digest, "madeBy": ours}
    if any(made_by.get(key) != ours[key] for key in ("job", "release")):
        record["reusedFrom"] = reader
        log.info("Job %s has read this source before: its data is used again", reader)
    before, path = read_manifest(layout.manifest) or {}, layout.data_record(settings.data_digest)
    if before == record == read_manifest(path):
        return True
    files.write_json(path, files.with_checksum(record))
    with files.storage_errors(layout.job):
        layout.manifest.unlink(missing_ok=True)
        _link_data(layout, data, record)
        files.fsync_dir(layout.job)
    files.write_json(layout.manifest, files.with_checksum(record))
    is_other = before.get("dataDigest") not in (None, settings.data_digest)
    earlier = before.get("madeBy") or {}
    if is_other and all(earlier.get(key) == ours[key] for key in ("namespace", "release")):
        remove_data(layout, before)
    return True


def _link_data(layout: JobPaths, data: DataPaths, manifest: Mapping[str, Any]) -> None:
    """Create links to the data in the job's folder; remove links and folders of earlier data that have no new link."""
    links = {layout.job / str(index) / "data": data.shard(index) for index in range(manifest["splitCount"])}
    if not manifest.get("files"):
        links[layout.job / data.test.name] = data.test
    if manifest["tables"]:
        links[layout.job / data.tables.name] = data.tables
    for link, target in links.items():
        refuse_link(layout, link.parent)
        link.parent.mkdir(exist_ok=True)
        temp = files.temporary_path(link)
        temp.symlink_to(os.path.relpath(target, link.parent))
        if not link.is_symlink():  # a file or folder of an older launcher
            files.remove_path(link)
        temp.replace(link)
        files.fsync_dir(link.parent)
    for path in (data.tables, data.test):
        if layout.job / path.name not in links:
            files.remove_path(layout.job / path.name)
    for folder in list(layout.job.iterdir()):
        beyond = _SHARD.fullmatch(folder.name) and folder / "data" not in links
        if beyond and not folder.is_symlink() and os.path.lexists(folder / "data"):
            files.remove_path(folder)


def remove_data(layout: JobPaths, manifest: Mapping[str, Any]) -> None:
    """Remove a manifest from `.data/`, and its data if no other manifest in `.data/` refers to this data."""
    digest, content = str(manifest.get("dataDigest")), str(manifest.get("content"))
    with contextlib.suppress(OSError):
        if _DIGEST.fullmatch(digest):
            layout.data_record(digest).unlink(missing_ok=True)
    others = (read_manifest(path) or {} for path in layout.all_data.glob("*.json"))
    if _CONTENT.fullmatch(content) and content not in {other.get("content") for other in others}:
        remove_folder(layout.data(content).root)


def unused_data(names: Iterable[str], records: Mapping[str, str], digests: Collection[str]) -> list[str]:
    """Return the names of files and folders in `.data/` that are not used. `clean` removes the old ones.

    A manifest `<dataDigest>.json` is used while a job's manifest.json or a release has this digest. The manifest of a
    schedule's run is named `<dataDigest>-<Job>.json`; it is used while a job or a release has the digest before the
    hyphen. A folder is used while a used manifest refers to the folder.

    Args:
        names: all names in `.data/`.
        records: name of a manifest file → name of the folder to which the manifest refers; empty if it is damaged.
        digests: the data digests of the manifests of all jobs, and of all releases on this storage.
    """
    used = {".lock"}
    for name, content in records.items():
        digest = name.removesuffix(".json")
        if any(digest == one or digest.startswith(f"{one}-") for one in digests):
            used |= {name, content}
    return [name for name in names if name not in used]


def remove_folder(folder: Path) -> None:
    """Remove a folder of `.data/`. First rename it, so that no other pod finds an incomplete folder under its name."""
    removed = folder.with_name(f".{folder.name.strip('.')}.{os.urandom(4).hex()}.tmp")
    with contextlib.suppress(OSError):
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(layout: JobPaths, alive: Path) -> None:
    """Remove the temporary files and folders of data Jobs that were killed more than an hour ago.

    `alive` is a file that this pod has just touched, so its time of change comes from the clock of the storage.
    """
    with files.storage_errors(layout.all_data):
        try:
            now = alive.stat().st_mtime
        except FileNotFoundError:  # a full storage, or another pod of the Job has just completed the data
            return
        for path in list(layout.all_data.iterdir()):
            if not path.name.startswith(".") or path.suffix not in (".tmp", ".alive"):
                continue
            with contextlib.suppress(OSError):  # another user owns the file, or another pod has removed it
                if now - path.lstat().st_mtime > UNUSED_SECONDS:
                    log.info("removing %s, left by a data Job that was killed", path)
                    files.remove_path(path)
