"""Tests of the complete data preparation: from a file on the storage to shards, test set and manifest."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from launcher.dataprep import data_job, prepared_data, split_part
from launcher.dataprep.prepared_data import LIST
from launcher.errors import StorageFailedError
from launcher.io import files
from launcher.paths import JobPaths
from tests.launcher.dataprep.conftest import ALL, LINES, PART, Pod, tarred, zipped
from tests.launcher.supervisor.failing_calls import fail_calls


def test_a_file_becomes_even_shards_one_test_set_and_a_manifest(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare(TEST_FRACTION=0.1, SEED="7")
    shards = pod.shards()
    test = pod.test()
    assert [len(shard) for shard in shards] == [300, 300, 300]
    assert len(test) == 100
    assert sorted([*pod.train(), *test]) == ALL
    for index in range(3):
        folder = pod.job / str(index) / "data"
        assert sorted(path.name for path in folder.iterdir()) == ["test.list", "train.list", "train.txt"]
        assert (folder / "train.list").read_text() == "data/train.txt\n"
        assert (folder / "test.list").read_text() == "data/test.txt\n"
        content = (folder / "train.txt").read_bytes()
        assert manifest["shards"][index] == {
            "index": index,
            "lines": 300,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    content = (pod.job / "test.txt").read_bytes()
    assert manifest["test"] == {
        "lines": 100,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert {k: v for k, v in manifest.items() if k not in ("shards", "test", "rows", "content")} == {
        "version": 2,
        "dataDigest": "0123456789abcdef",
        "source": "file://in.txt",
        "sha256": hashlib.sha256(LINES).hexdigest(),
        "member": "",
        "format": "lines",
        "seed": 7,
        "testFraction": 0.1,
        "testSource": "",
        "testRows": 200_000,
        "splitCount": 3,
        "lines": 900,
        "tables": [],
        "madeBy": {
            "namespace": "paddle",
            "release": "paddle-training",
            "job": "job-data-12345678",
            "runId": "",
        },
    }
    assert pod.leftovers() == []
    assert not (pod.job / "data-failed.json").exists()


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096, 1 << 20])
def test_the_result_does_not_depend_on_the_block_size(new_pod: Callable[[], Pod], chunk: int) -> None:
    content = "\n".join(f"zeile {n} äöü€" for n in range(400)).encode()
    one, other = new_pod(), new_pod()
    for pod in (one, other):
        pod.source(content)
    assert one.prepare(TEST_FRACTION=0.2) == other.prepare(chunk, TEST_FRACTION=0.2)
    assert one.shards() == other.shards()


def test_more_than_one_batch_for_the_writers_changes_nothing(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    before = pod.prepare(chunk=512)
    monkeypatch.setattr(split_part, "_BATCH_BYTES", 1)
    monkeypatch.setattr(split_part, "FLUSH_BYTES", 1)
    assert pod.prepare(chunk=512, SHA256=before["sha256"]) == before
    shutil.rmtree(pod.data)
    assert pod.prepare(chunk=512) == before


def test_an_unreadable_manifest_is_an_error_and_does_not_replace_data(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    pod.prepare()
    before = pod.inode()
    monkeypatch.setattr(files, "RETRY_WAITS", (0.0,))
    for call, path in (("open", "*/0123456789abcdef.json"), ("stat", "*/0/train.txt")):
        with fail_calls(call, path, errno.ESTALE, times=1):
            pod.prepare()
        with fail_calls(call, path, errno.ESTALE), pytest.raises(StorageFailedError):
            data_job.main(pod.settings())
        assert pod.inode() == before


CSV = b'label;text;more\r\n1;"a ""quoted"";\r\nfield\t\\";x\r\n\r\n0;b;y\n2;c;z'
ODD = [b"", b" a ", b"\x0b\x0c\x1c", "\u2028\u0085".encode(), b"c\rd", b"a\\tb"]
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("chunk", [1, 3, 1000, 1 << 19])
@pytest.mark.parametrize(
    ("content", "values", "lines"),
    [
        (b"a\nb\nc", {}, [b"a", b"b", b"c"]),
        (b"\xef\xbb\xbfa\nb\nc\n", {}, [b"a", b"b", b"c"]),
        (b"\n".join(ODD) + b"\n", {}, ODD),
        ("ä\nö\nü\n".encode("utf-16"), {"ENCODING": "utf-16"}, ["ä".encode(), "ö".encode(), "ü".encode()]),
        *((pack(LINES[:9000]) + pack(LINES[9000:]), {}, ALL) for pack in PACKS.values()),
        (CSV, {"FORMAT": "csv", "DELIMITER": ";", "COLUMNS": ["text", 0]},
         [rb'a "quoted";\r\nfield\t\\' + b"\t1", b"b\t0", b"c\t2"]),
        ("é\t1\nè\t2\nê\t3\n".encode("latin-1"),
         {"FORMAT": "csv", "DELIMITER": "\\t", "HEADER": False, "ENCODING": "latin-1", "COLUMNS": [1, 0]},
         ["1\té".encode(), "2\tè".encode(), "3\tê".encode()]),
    ],
    ids=["no newline", "byte order mark", "odd bytes", "utf-16", "plain", "gz", "bz2", "xz", "csv", "csv in latin-1"],
)  # fmt: skip
def test_text_becomes_lines_of_utf_8_for_any_block_size(
    pod: Pod, content: bytes, values: dict[str, Any], lines: list[bytes], chunk: int
) -> None:
    pod.source(content, "in")
    manifest = pod.prepare(chunk, **values)
    assert sorted(pod.train()) == sorted(lines)
    assert manifest["lines"] == len(lines)
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("suffix", PACKS)
def test_a_member_of_an_archive_is_split_and_tables_are_copied(pod: Pod, kind: str, suffix: str) -> None:
    """A compressed member is decompressed, a compressed table is not."""
    train, packed = f"d/train.txt{suffix}", PACKS[suffix](b"table")
    members = {f"d/users{suffix}": packed, train: PACKS[suffix](LINES), "d/films.tab": b"\0binary", "x": b""}
    mode = "w" if kind == "tar" else f"w:{kind.removeprefix('tar.')}"
    archive = zipped(members) if kind == "zip" else tarred(members, mode)
    pod.source(archive, "archive")
    manifest = pod.prepare(MEMBER=train, TABLES=["d/films.tab", f"d/users{suffix}"])
    assert sorted(pod.train()) == ALL
    assert manifest["sha256"] == hashlib.sha256(archive).hexdigest()
    assert manifest["tables"] == [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in (("films.tab", b"\0binary"), (f"users{suffix}", packed))
    ]
    assert (pod.job / "tables" / f"users{suffix}").read_bytes() == packed
    assert pod.leftovers() == []


@pytest.mark.parametrize("damage", ["0/data/train.txt", "test.txt", "tables/t", "1/data"])
def test_incomplete_data_is_made_again(pod: Pod, damage: str) -> None:
    pod.source(zipped({"in": LINES, "t": b"table"}), "z")
    values = {"MEMBER": "in", "TABLES": ["t"], "TEST_FRACTION": 0.1}
    first = pod.prepare(**values)
    path = (pod.job / damage).resolve()
    if path.is_dir():
        path.rename(pod.storage / "elsewhere")
    else:
        path.write_bytes(b"")
    assert pod.prepare(**values) == first
    assert path.is_dir() or path.stat().st_size


def test_data_of_another_version_of_the_launcher_counts_as_absent(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.source(LINES)
    made = pod.prepare()
    there = (JobPaths(pod.storage, "job"), pod.job / "manifest.json", 3)
    assert prepared_data.read_complete(*there) == made
    monkeypatch.setattr(prepared_data, "MANIFEST_VERSION", made["version"] + 1)
    assert prepared_data.read_complete(*there) is None


@pytest.mark.parametrize("damage", ["", "{}"])
def test_data_with_a_damaged_list_of_files_is_made_again(pod: Pod, damage: str) -> None:
    pod.source(LINES)
    first = pod.prepare(part_bytes=PART)
    (pod.job / "1" / "data" / LIST).write_text(damage)
    assert pod.prepare(part_bytes=PART) == first
    assert len(pod.listed_lines()) == 1000


@pytest.mark.parametrize(
    ("name", "times"), [("train.txt", 3), ("test.txt", 1), (".train.list.*", 3), (".test.list.*", 3)]
)
def test_every_file_is_synced_before_the_manifest_is_written(pod: Pod, name: str, times: int) -> None:
    """The manifest must not survive a power loss without the files that it lists: these are synced first."""
    pod.source(LINES)
    there = []

    def look() -> None:
        there.append(any(pod.data.glob("*/manifest.json")))

    with fail_calls("fsync", f"*/{name}", then=look) as fault:
        pod.prepare(TEST_FRACTION=0.1)
    assert fault.hits >= times
    assert there[:times] == [False] * times
