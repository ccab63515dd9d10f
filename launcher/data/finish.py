"""All parts together: the shards' folders, the one test set and the manifest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from launcher.data import places
from launcher.data import source as sources
from launcher.data.pieces import LIST
from launcher.data.progress import Progress
from launcher.errors import DataError
from launcher.files import BLOCK, fsync_dir, fsync_tree, storage, write_whole
from launcher.settings import DataSettings

VERSION = 2


def assemble(
    settings: DataSettings, tmp: Path, markers: list[dict[str, Any]], tests: list[str], progress: Progress
) -> dict[str, Any]:
    """Makes `tmp/shards/<i>/` and `tmp/test.txt` whole, and returns the manifest.

    `markers`: what each part's PartJob returned, data.testSource's last if there is one. `tests`: their test
    sets' names in `tmp`. Raises `DataError` for data that nothing can be trained with.
    """
    parts = [marker for marker in markers if marker["lines"]]
    lines = [sum(counts) for counts in zip(*(part["lines"] for part in parts), strict=True)]
    held = sum(marker["test"]["lines"] for marker in markers)
    _check(settings, lines, held, markers)
    test = _join([tmp / name for name in tests], tmp / "test.txt", progress)
    shards = []
    for index, count in enumerate(lines):
        progress.tick("publishing the shards")
        files = [part["files"][index] for part in parts]
        about = {"index": index, "lines": count, "bytes": sum(file["bytes"] for file in files)}
        folder = tmp / "shards" / str(index)
        if len(parts) == 1:
            about["sha256"] = files[0]["sha256"]
        else:
            named = [{"name": piece_name(i, len(parts)), **file} for i, file in enumerate(files)]
            content = json.dumps({"files": named}).encode()
            write_whole(folder / LIST, content)
            about |= {"parts": len(parts), "sha256": hashlib.sha256(content).hexdigest()}
        write_whole(folder / "train.list", "data/train.txt\n")
        write_whole(folder / "test.list", "data/test.txt\n" if test["bytes"] else "")
        with storage(folder):
            fsync_dir(folder)
        shards.append(about)
    rows = json.dumps(
        places.index(
            settings.seed, settings.split_count, settings.test_fraction, markers, bool(settings.test_source)
        )
    ).encode()
    write_whole(tmp / "rows.json", rows)
    if (tmp / "tables").is_dir():
        with storage(tmp):
            fsync_tree(tmp / "tables")
    return {
        "version": VERSION,
        "dataDigest": settings.data_digest,
        "source": sources.shown(settings.source),
        "sha256": _sha256([part["sha256"] for part in parts]),
        "member": settings.member,
        "format": settings.format,
        "seed": settings.seed,
        "testFraction": settings.test_fraction,
        "testSource": sources.shown(settings.test_source),
        "testRows": settings.test_rows,
        "splitCount": settings.split_count,
        "lines": sum(lines),
        "shards": shards,
        "test": {"lines": held, **test},
        "rows": {"bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()},
        "tables": [table for part in parts for table in part["tables"]],
    }


def piece_name(part: int, parts: int) -> str:
    """A part's file in each shard's folder."""
    return "train.txt" if parts == 1 else f"train-{part:05d}.txt"


def _sha256(found: list[str]) -> str:
    """Of the one part's bytes, or of all parts' sums."""
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _join(paths: list[Path], target: Path, progress: Progress) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with storage(target):
        target.unlink(missing_ok=True)  # may be a hard link to another job's test set (reuse.py)
    with storage(target), target.open("wb") as joined:
        for path in paths:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    size += joined.write(block)
                    progress.tick("joining the test set")
        joined.flush()
        os.fsync(joined.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _check(settings: DataSettings, lines: list[int], held: int, markers: list[dict[str, Any]]) -> None:
    name = sources.shown(settings.source)
    train = sum(lines)
    if train < settings.split_count or min(lines) == 0:
        raise DataError(
            f"{name} has {train} train lines ({held} more were held out for the test), fewer than the "
            f"{settings.split_count} shards: a shard would be empty and its trainer hang. Set trainers (and "
            f"data.splitCount) to at most {train}, or name more data."
        )
    if settings.test_source and not held:
        raise DataError(
            f"{sources.shown(settings.test_source)} has no line: name a file of rows in data.testSource, or "
            "leave it empty to hold a part of the data out."
        )
    if settings.test_fraction and not held:
        raise DataError(
            f"{name} has only {train} lines: data.testFraction {settings.test_fraction} holds out none of "
            "them, and there would be no test set. Set data.testFraction to 0.5, or to 0 for none."
        )
    by_name = bool(settings.columns) and all(isinstance(column, str) for column in settings.columns)
    first = markers[0]
    for marker in markers:
        # As text.Csv sees to within a part.
        same = marker["header"] == first["header"] and marker["columns"] == first["columns"]
        if not same and not by_name and marker["columns"]:
            raise DataError(
                f"{marker['name']} has the header {marker['header'][:20]} and {marker['columns']} columns, "
                f"but {first['name']} {first['header'][:20]} and {first['columns']}. All objects must have "
                "the same columns in the same order, or data.columns must name them."
            )
