"""Fetch the files of a source with data.format files, and list them with their sizes and sha256.

Files of a folder or prefix are fetched without a change. A source that is an archive is unpacked; a source that is any
other single file is kept as it is. Hidden files (`sources.is_hidden`) of a folder, prefix or archive are left out.

A file gets its name below files/ only when it is complete and on the disk. So a pod that continues the work of an
evicted pod only hashes such a file of a folder or prefix, and does not fetch it again. An archive, or another source
that is a single file, is fetched again completely.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import posixpath
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.dataprep import archives, sources
from launcher.dataprep.byte_streams import BLOCK, buffered, file_blocks
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.sources import PlannedPart, SourceObject
from launcher.dataprep.split_part import check_sha256, write_file
from launcher.errors import DataError
from launcher.io import files
from launcher.io.thread_jobs import Job, run_in_threads
from launcher.paths import DataPaths, is_safe_name
from launcher.schema import ShardFileEntry
from launcher.settings import DataSettings

FILE_COST = 16 << 10
"""Number of bytes that are added to the size of each file when files are divided into parts. Opening and syncing a file
takes as long as fetching so many bytes. So a part has at most 16,384 files."""
SMALL = 4 << 20
"""Largest size in bytes of a file of an archive that a thread writes while the next files are unpacked."""


@dataclass(frozen=True)
class FileFetcher:
    """Fetches the files of a part of a source into the work folder `work`; unfinished files are in `folder`."""

    part: PlannedPart
    folder: Path
    work: DataPaths

    def run(self) -> dict[str, Any]:
        """Fetch the files, and list them in the file `<key>.list` of the part, one JSON object on each line.

        Returns:
            The part's marker: {"sha256": sha256 of the source if the source is one file, else an empty text}.

        Raises:
            DataError: an archive is damaged, has no file, or has a file that cannot be unpacked; a file has an invalid
                name, or the name of another file or folder; or the source cannot be read or has changed.
            StorageError, StorageFailedError: the shared storage failed.
            DeadlineError: the deadline of the data Job has passed.
        """
        ranges, progress, digest = self.part.ranges, self.part.source.progress, hashlib.sha256()
        progress.unit = "files"
        single = len(ranges) == 1 and not self.part.source.below(ranges[0].object)
        fetches = (functools.partial(self._fetch, one.object) for one in ranges)
        jobs = self._unpack(ranges[0].object, digest) if single else fetches
        listing = self.work.parts / f"{self.part.key}.list"
        with files.storage_errors(listing), listing.open("w") as out:
            for entry in run_in_threads(jobs, progress.report):
                out.write(json.dumps(entry) + "\n")
                progress.lines += 1
                progress.report()
            out.flush()
            os.fsync(out.fileno())
        return {"sha256": digest.hexdigest() if single else ""}

    def _fetch(self, found: SourceObject, check: Callable[[], None]) -> ShardFileEntry:
        source = self.part.source
        name = source.below(found)
        target = self.work.files / name
        if is_safe_name(name) and target.is_file() and target.stat().st_size == found.size:
            digest = hashlib.sha256()
            for _ in file_blocks(target, source.progress, digest, 0):
                check()
            return {"name": name, "bytes": found.size, "sha256": digest.hexdigest()}
        with contextlib.closing(source.open(found, 0, hashlib.sha256())) as opened:
            entry = self._write(name, opened.blocks, check)
        source.check_unchanged(found)
        return entry

    def _unpack(self, found: SourceObject, digest: hashlib._Hash) -> Iterator[Job[ShardFileEntry]]:
        """Yield a job for each file of the archive `found`, or one job for `found` itself if it is no archive.

        A job returns the file's entry in the list. For a file of an archive with at most SMALL bytes, the job also
        writes the file. All other files are written before their job is yielded.
        """
        source, report = self.part.source, self.part.source.progress.report
        name = source.display_name(found)
        with files.storage_errors(self.work.files):
            files.remove_path(self.work.files)  # files of an earlier attempt
            self.work.files.mkdir()
        with contextlib.closing(source.open(found, 0, digest)) as opened:
            stream = buffered(opened.blocks)
            own = posixpath.basename(name) if "://" in name else ""  # an address in a Secret has no name
            own = (urllib.parse.unquote(own) if name.startswith("http") else own) or "data"
            kind = archives.archive_kind(stream, own)
            if not kind:  # write it here: this function would close the stream before a thread has read it
                entry = self._write(own, iter(lambda: stream.read(BLOCK), b""), report)
                yield lambda _: entry
            elif kind == "zip":
                local = source.file_on_disk(found, stream, opened.total, self.folder)
                yield from self._write_members(name, archives.zip_members(local, name))
            else:
                yield from self._write_members(name, archives.tar_members(stream, name))
            while stream.read(BLOCK):  # the sha256 of the source includes what follows the last file
                report()
        source.check_unchanged(found)

    def _write_members(
        self, archive: str, members: Iterator[archives.Member]
    ) -> Iterator[Job[ShardFileEntry]]:
        names: set[str] = set()
        for found, size, blocks in members:
            name = found.removeprefix("./")
            _check_name(archive, name)
            if sources.is_hidden(name, "files"):
                continue
            if name in names:
                raise _conflict(archive, name)
            names.add(name)
            if blocks is None:
                raise DataError(
                    f"{archive}!{name} is a link or a device, which is not unpacked. Fix: pack the archive again with "
                    "the files themselves (tar --dereference --hard-dereference)."
                )
            files.require_space(self.work.root, size, f"{archive}!{name}")
            if size <= SMALL:
                yield functools.partial(self._write, name, [b"".join(blocks)])
                continue
            written = self._write(name, blocks, self.part.source.progress.report)
            yield lambda _, entry=written: entry  # type: ignore[misc]
        if not names:
            raise DataError(f"{archive} has no file. Fix: set data.source to an archive with files.")

    def _write(self, name: str, blocks: Iterable[bytes], check: Callable[[], None]) -> ShardFileEntry:
        """Write the file `name` with the content `blocks`, read-only for all users; return its entry in the list.

        `check` is called before each block is written; it may raise to stop the work.
        """
        source = sources.source_name(self.part.source.settings)
        _check_name(source, name)
        target, temp = self.work.files / name, self.folder / f"{threading.get_ident()}.tmp"

        def checked() -> Iterator[bytes]:
            for block in blocks:
                check()
                yield block

        written = write_file(temp, checked())
        with files.storage_errors(target):
            temp.chmod(0o444)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                temp.replace(target)
            except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                raise _conflict(source, name) from error
        return {"name": name, **written}  # type: ignore[typeddict-item]


def _check_name(source: str, name: str) -> None:
    """Raise `DataError` if a file's `name` leads out of its folder, or is no valid path."""
    if not is_safe_name(name):
        raise DataError(
            f"{source} has a file with the name {name!r}, which leads out of its folder or is no valid path. Fix: "
            "rename it; pack an archive from inside the folder, with relative names without '..' and backslashes."
        )


def _conflict(source: str, name: str) -> DataError:
    return DataError(
        f"{source} has {name!r} twice, or as a file and as a folder. Fix: keep one of them under that name."
    )


def assemble_files(
    settings: DataSettings,
    work: DataPaths,
    markers: list[dict[str, Any]],
    lists: Sequence[Path],
    progress: DataProgress,
) -> dict[str, Any]:
    """Write files.jsonl, the list of all files; return the manifest's fields about the files.

    The field `sha256` is the sha256 of the source if the source is one file, else the digest of all files that
    `files.folder_sha256` would return.

    Args:
        settings: the settings of this pod.
        work: the folder in which the pods of this data Job work.
        markers: what `FileFetcher.run` returned for each part of the source.
        lists: the list of each part; their lines are joined.
        progress: enforces the deadline.

    Raises:
        DataError: the source has another sha256 than data.sha256.
        StorageError, StorageFailedError: the shared storage failed.
        DeadlineError: the deadline of the data Job has passed.
    """
    folder, count, size = hashlib.sha256(), 0, 0

    def lines() -> Iterator[bytes]:
        nonlocal count, size
        for path in lists:
            with path.open("rb") as file:
                for line in file:
                    entry: ShardFileEntry = json.loads(line)
                    folder.update(files.sum_line(entry["name"], entry["sha256"]))
                    count, size = count + 1, size + entry["bytes"]
                    progress.report("writing the list of the files")
                    yield line

    listed = write_file(work.file_list, lines())
    found = markers[0]["sha256"] or folder.hexdigest()
    check_sha256(settings, found)
    with files.storage_errors(work.files):
        for path, _, _ in os.walk(work.files):
            progress.report("syncing the folders")
            files.fsync_dir(Path(path))
    return {
        "sha256": found,
        "splitCount": 0,
        "shards": [],
        "tables": [],
        "files": {"count": count, "bytes": size, "list": listed},
    }
