"""Tests of JSON files of the data Job with values of wrong types: one error with a fix, or the data is made again."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.dataprep.prepared_data import LIST, PreparedData
from launcher.errors import DataError, StoppedError
from launcher.io import tar_stream
from launcher.io.open_below import ReaderError
from launcher.paths import JobPaths
from tests.launcher.dataprep.conftest import ALL, LINES, PART, Pod, tarred
from tests.launcher.dataprep.test_concurrent_pods import evict_at_part

WRONG: list[Any] = [None, True, -1, "x", [1], {}, [{}]]


def wrong_variants(value: Any) -> Iterator[Any]:
    """Yield `value` with one value in it replaced by one of another type, or removed."""
    yield from (wrong for wrong in WRONG if type(wrong) is not type(value))
    if isinstance(value, dict):
        for key in value:
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: wrong} for wrong in wrong_variants(value[key]))
    elif isinstance(value, list) and value:
        yield from ([wrong, *value[1:]] for wrong in wrong_variants(value[0]))


def some_variants(value: Any) -> list[Any]:
    """Return some of the variants, since each of them prepares data."""
    found = list(wrong_variants(value))
    return random.Random(1).sample(found, min(len(found), 15))  # noqa: S311


@pytest.mark.parametrize(
    "name", ["manifest.json", "../.data/0123456789abcdef.json", "../.data/*/manifest.json"]
)
def test_a_manifest_of_wrong_types_or_without_json_is_made_again(pod: Pod, name: str) -> None:
    pod.source(LINES)
    pod.prepare(TEST_FRACTION=0.1)
    (path,) = pod.job.glob(name)
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    for content in ("{", *map(json.dumps, some_variants(manifest))):
        path.write_text(content)
        pod.prepare(TEST_FRACTION=0.1)
        assert len(pod.train()) + len(pod.test()) == 1000


def test_a_damaged_marker_is_a_part_that_is_made_again(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    evict_at_part(monkeypatch, 2)
    with pytest.raises(StoppedError):
        pod.prepare(part_bytes=PART)
    work, saved = pod.work_folder(), pod.storage / "saved"
    marker = work / "parts" / "00001.json"
    intact = marker.read_bytes()
    shutil.copytree(work, saved)
    for place in range(0, len(intact), len(intact) // 8):
        shutil.rmtree(pod.data)
        shutil.copytree(saved, work)
        flipped = bytearray(intact)
        flipped[place] ^= 1 << (place % 8)
        marker.write_bytes(flipped)
        pod.prepare(part_bytes=PART)
        assert sorted(pod.listed_lines()) == ALL


def test_a_files_json_of_wrong_types_is_an_error_with_a_fix(pod: Pod) -> None:
    """Its sha256 is that of the manifest, as if the manifest were wrong as well."""
    pod.source(LINES)
    manifest = pod.prepare(part_bytes=PART)
    shard = manifest["shards"][1]
    path = pod.job / "1" / "data" / LIST
    layout = JobPaths(pod.storage, "job")
    for wrong in wrong_variants(json.loads(path.read_text())):
        content = json.dumps(wrong).encode()
        path.write_bytes(content)
        shard["sha256"] = hashlib.sha256(content).hexdigest()
        try:
            found = PreparedData(layout, manifest).shard_files(shard)
        except DataError as error:
            assert "files.json" in str(error)
            assert "Fix: " in str(error)
        else:
            assert all(isinstance(file["name"], str) and file["bytes"] >= 0 for file in found)


SUMS = [json.dumps(value).encode() for value in (*WRONG, {"a.txt": 1}, {"a.txt": None}, {"b": "x"})]


@pytest.mark.parametrize("sums", [*SUMS, b"", b"{", b"\xff", b"[" * 100_000])
def test_a_checksum_file_that_is_no_object_of_texts_is_one_error(sums: bytes) -> None:
    """Regression: a list ended with a traceback."""
    archive = tarred({"a.txt": b"a\n", tar_stream.SUMS: sums}, "w")
    with pytest.raises(ReaderError, match="Fix: try again"):
        list(tar_stream.read_tar(io.BytesIO(archive)))
