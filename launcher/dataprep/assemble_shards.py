"""Combine the split parts of a source into the folder of each shard, one test set and the manifest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.shard_files import LIST
from launcher.dataprep.source import display_name, source_name
from launcher.errors import DataError
from launcher.io.files import BLOCK, fsync_dir, fsync_tree, storage_errors, write_atomically
from launcher.schema.data_files import MANIFEST_VERSION
from launcher.settings import DataSettings


def assemble_shards(
    settings: DataSettings, tmp: Path, markers: list[dict[str, Any]], tests: list[str], progress: DataProgress
) -> dict[str, Any]:
    """Complete `tmp/shards/<i>/` and `tmp/test.txt`, and return the manifest.

    Args:
        settings: the settings of this pod.
        tmp: the folder in which the pods of this data Job work.
        markers: what `PartSplitter.run` returned for each part of the source; that of data.testSource is the last one.
        tests: file names of the parts' test sets in `tmp`.
        progress: enforces the deadline.

    Raises:
        DataError: the data cannot be trained on, for example because it has fewer lines than shards.
        StorageError: the shared storage failed.
    """
    parts = [marker for marker in markers if marker["lines"]]
    lines = [sum(counts) for counts in zip(*(part["lines"] for part in parts), strict=True)]
    held = sum(marker["test"]["lines"] for marker in markers)
    _check_lines(settings, lines, held, [sum(part["lines"]) for part in parts])
    _check_columns(settings, markers)
    test = _join_files([tmp / name for name in tests], tmp / "test.txt", progress)
    shards = []
    for index, count in enumerate(lines):
        progress.report("completing the shards")
        files = [part["files"][index] for part in parts]
        entry = {"index": index, "lines": count, "bytes": sum(file["bytes"] for file in files)}
        folder = tmp / "shards" / str(index)
        if len(parts) == 1:
            entry["sha256"] = files[0]["sha256"]
        else:
            named = [{"name": shard_file_name(i, len(parts)), **file} for i, file in enumerate(files)]
            content = json.dumps({"files": named}).encode()
            write_atomically(folder / LIST, content)
            entry |= {"parts": len(parts), "sha256": hashlib.sha256(content).hexdigest()}
        write_atomically(folder / "train.list", "data/train.txt\n")
        write_atomically(folder / "test.list", "data/test.txt\n" if test["bytes"] else "")
        with storage_errors(folder):
            fsync_dir(folder)
        shards.append(entry)
    if (tmp / "tables").is_dir():
        with storage_errors(tmp):
            fsync_tree(tmp / "tables")
    sums = [part["sha256"] for part in parts]
    return {
        "version": MANIFEST_VERSION,
        "dataDigest": settings.data_digest,
        "source": source_name(settings),
        "sha256": sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest(),
        "member": settings.member,
        "format": settings.format,
        "seed": settings.seed,
        "testFraction": settings.test_fraction,
        "testSource": display_name(settings.test_source),
        "testRows": settings.test_rows,
        "splitCount": settings.split_count,
        "lines": sum(lines),
        "shards": shards,
        "test": {"lines": held, **test},
        "tables": [table for part in parts for table in part["tables"]],
    }


def shard_file_name(part: int, parts: int) -> str:
    """Return the name, in each shard's folder, of the file with the rows of one part of the source.

    `part` is the part's number from 0, `parts` the number of all parts.
    """
    return "train.txt" if parts == 1 else f"train-{part:05d}.txt"


def _join_files(paths: list[Path], target: Path, progress: DataProgress) -> dict[str, Any]:
    """Write the content of `paths` to `target`, in order; return {"bytes", "sha256"}."""
    digest, size = hashlib.sha256(), 0
    with storage_errors(target):
        target.unlink(missing_ok=True)  # may be a hard link to another job's test set (reuse_data.py)
    with storage_errors(target), target.open("wb") as joined:
        for path in paths:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    size += joined.write(block)
                    progress.report("joining the test sets of all parts")
        joined.flush()
        os.fsync(joined.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _check_lines(settings: DataSettings, lines: list[int], held: int, parts: list[int]) -> None:
    """Raise `DataError` when a shard, or a required test set, would be empty.

    `lines` has the train lines of each shard, `parts` those of each part of the source, `held` those of the test set.
    """
    name, train = source_name(settings), sum(lines)
    if train >= settings.split_count and min(lines) == 0:
        raise DataError(
            f"data.source {name} has {train} train lines in {len(parts)} parts, but shard {lines.index(0)} of "
            f"{settings.split_count} got none: the lines of each part are distributed to the shards separately. "
            f"Fix: set trainers (and data.splitCount) to at most {max(parts)}, the lines of the largest part, or set "
            "data.source to a source with more rows."
        )
    if train < settings.split_count:
        fewer = f"set trainers (and data.splitCount) to at most {train}, or " if train else ""
        raise DataError(
            f"data.source {name} has {train} train lines ({held} more are held out for the test), fewer than "
            f"the {settings.split_count} shards: a trainer without lines would hang. Fix: {fewer}set data.source "
            "to a source with more rows."
        )
    if settings.test_source and not held:
        raise DataError(
            f"data.testSource {display_name(settings.test_source)} has no line. Fix: set it to a file with rows, "
            "or leave it empty to hold out a part of the data."
        )
    if settings.test_fraction and not held:
        raise DataError(
            f"data.testFraction {settings.test_fraction} holds out none of the {train} lines of {name}, so that "
            "there would be no test set. Fix: set data.testFraction to 0.5, or to 0 for no test set."
        )


def _check_columns(settings: DataSettings, markers: list[dict[str, Any]]) -> None:
    """Raise `DataError` when the columns of csv objects in two parts differ; `CsvReader` checks within a part."""
    if settings.columns and all(isinstance(column, str) for column in settings.columns):
        return
    first = markers[0]
    for marker in markers:
        same = marker["header"] == first["header"] and marker["columns"] == first["columns"]
        if not same and marker["columns"]:
            raise DataError(
                f"{marker['name']} has the header {marker['header'][:20]} and {marker['columns']} columns, but "
                f"{first['name']} {first['header'][:20]} and {first['columns']}. Fix: give all objects the same "
                "columns in the same order, or list names in data.columns."
            )
