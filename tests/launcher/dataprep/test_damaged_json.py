"""Tests of JSON files of the data Job with values of wrong types: one error with a fix, or the data is made again."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.dataprep.publish_data import LIST, PUBLICATION, list_shard_files
from launcher.errors import DataError, StoppedError
from launcher.io import tar_stream
from launcher.io.open_below import ReaderError
from launcher.paths import JobPaths
from tests.launcher.dataprep.conftest import LINES, PART, Pod

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
    return random.Random(1).sample(found, min(len(found), 40))  # noqa: S311


def write(pod: Pod, name: str, value: Any) -> None:
    (pod.job / name).write_text(json.dumps(value))


def prepare_or_fail(pod: Pod) -> None:
    """Prepare the data; an error must be one of the data, with a fix."""
    try:
        pod.prepare(TEST_FRACTION=0.1)
    except DataError as error:
        assert "Fix: " in str(error)
        assert "unexpected" not in str(error)


def test_a_manifest_of_wrong_types_is_made_again(pod: Pod) -> None:
    pod.source(LINES)
    pod.prepare(TEST_FRACTION=0.1)
    manifest = json.loads((pod.job / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["replaced"] = [{"dataDigest": "d", "release": "r", "namespace": "n"}]
    for wrong in some_variants(manifest):
        write(pod, "manifest.json", wrong)
        prepare_or_fail(pod)
        assert len(pod.train()) + len(pod.test()) == 1000


def test_a_data_failed_json_of_wrong_types_is_no_unexpected_error(pod: Pod) -> None:
    pod.source(LINES)
    failed = {"dataDigest": "0123456789abcdef", "job": "", "runId": "", "reason": "r", "time": "t"}
    pod.prepare()
    for wrong in some_variants(failed):
        (pod.job / "manifest.json").unlink(missing_ok=True)
        write(pod, "data-failed.json", wrong)
        prepare_or_fail(pod)
        assert len(pod.train()) > 800


def test_a_publish_json_of_wrong_types_is_an_error_with_a_fix(pod: Pod) -> None:
    pod.source(LINES)
    manifest = dict(pod.prepare(TEST_FRACTION=0.1))
    tmp = pod.settings().layout.data_tmp(pod.settings().data_digest)

    def killed(*_: object) -> None:
        raise StoppedError("killed")

    seen = 0
    for wrong in wrong_variants(
        {key: manifest[key] for key in ("version", "shards", "tables", "test", "splitCount")}
    ):
        (pod.job / "manifest.json").unlink(missing_ok=True)
        (pod.job / "data-failed.json").unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("launcher.dataprep.publish_data.publish", killed)
            with pytest.raises(StoppedError, match="killed"):
                pod.prepare(TEST_FRACTION=0.1)
        (tmp / PUBLICATION).write_text(json.dumps(wrong))
        prepare_or_fail(pod)
        seen += (pod.job / "data-failed.json").exists()
    assert seen > 3


def test_a_files_json_of_wrong_types_is_an_error_with_a_fix(pod: Pod) -> None:
    """Its sha256 is that of the manifest, as if the manifest were wrong as well."""
    pod.source(LINES)
    shard = pod.prepare(part_bytes=PART)["shards"][1]
    path = pod.job / "1" / "data" / LIST
    for wrong in wrong_variants(json.loads(path.read_text())):
        content = json.dumps(wrong).encode()
        path.write_bytes(content)
        shard["sha256"] = hashlib.sha256(content).hexdigest()
        try:
            found = list_shard_files(JobPaths(pod.storage, "job"), shard)
        except DataError as error:
            assert "files.json" in str(error)
            assert "Fix: " in str(error)
        else:
            assert all(isinstance(file["name"], str) and file["bytes"] >= 0 for file in found)


@pytest.mark.parametrize("sums", [*WRONG, {"a.txt": 1}, {"a.txt": None}, {"b": "x"}])
def test_a_checksum_file_that_is_no_object_is_one_error(sums: Any) -> None:
    """Regression: a list ended with a traceback."""
    assert_rejected(json.dumps(sums).encode())


@pytest.mark.parametrize("sums", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_checksum_file_that_is_no_json_is_one_error(sums: bytes) -> None:
    assert_rejected(sums)


def assert_rejected(sums: bytes) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in (("a.txt", b"a\n"), (tar_stream.SUMS, sums)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(ReaderError, match="Fix: try again"):
        list(tar_stream.read_tar(io.BytesIO(out.getvalue())))
