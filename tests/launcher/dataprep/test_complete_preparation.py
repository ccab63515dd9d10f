"""Tests of the complete data preparation: from a file on the storage to shards, test set and manifest."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import shutil
from collections.abc import Callable

import pytest

from launcher.dataprep import data_job, split_part
from launcher.dataprep.csv_records import split_fields
from launcher.dataprep.prepared_data import LIST
from launcher.errors import StorageFailedError
from launcher.io import files
from tests.launcher.dataprep.conftest import LINES, PART, Pod, tarred, zipped
from tests.launcher.supervisor.failing_calls import fail_calls


def test_a_file_becomes_even_shards_one_test_set_and_a_manifest(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare(TEST_FRACTION=0.1, SEED="7")
    shards = pod.shards()
    test = pod.test()
    assert [len(shard) for shard in shards] == [300, 300, 300]
    assert len(test) == 100
    assert sorted([*pod.train(), *test]) == sorted(LINES.split(b"\n")[:-1])
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


@pytest.mark.parametrize(
    "name", ["manifest.json", "../.data/0123456789abcdef.json", "../.data/*/manifest.json"]
)
def test_a_manifest_that_is_not_json_is_replaced(pod: Pod, name: str) -> None:
    pod.source(LINES)
    before = pod.prepare()
    (path,) = pod.job.glob(name)
    path.write_text("{")
    assert pod.prepare() == before


def test_a_last_line_without_newline_gets_one(pod: Pod) -> None:
    pod.source(b"a\nb\nc")
    assert pod.prepare()["lines"] == 3
    assert sorted(pod.train()) == [b"a", b"b", b"c"]


def test_all_other_bytes_of_a_line_are_unchanged(pod: Pod) -> None:
    odd = [b"", b" a ", b"\x0b\x0c\x1c", "\u2028\u0085".encode(), b"c\rd", b"a\\tb"]
    pod.source(b"\n".join(odd) + b"\n")
    pod.prepare()
    assert sorted(pod.train()) == sorted(odd)


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_a_byte_order_mark_is_removed(pod: Pod, chunk: int) -> None:
    pod.source(b"\xef\xbb\xbfa\nb\nc\n")
    pod.prepare(chunk)
    assert sorted(pod.train()) == [b"a", b"b", b"c"]


def test_other_encodings_are_converted_to_utf_8(pod: Pod) -> None:
    pod.source("ä\nö\nü\n".encode("utf-16"))
    pod.prepare(3, ENCODING="utf-16")
    assert sorted(pod.train()) == ["ä".encode(), "ö".encode(), "ü".encode()]


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_member_of_an_archive_is_split_and_tables_are_copied(pod: Pod, kind: str) -> None:
    members = {"d/users.tab": b"u" * 3000, "d/train.txt": LINES, "d/films.tab": b"\0binary", "x": b""}
    mode = "w" if kind == "tar" else f"w:{kind.removeprefix('tar.')}"
    archive = zipped(members) if kind == "zip" else tarred(members, mode)
    pod.source(archive, "archive")
    manifest = pod.prepare(MEMBER="d/train.txt", TABLES=["d/films.tab", "d/users.tab"])
    assert sorted(pod.train()) == sorted(LINES.split(b"\n")[:-1])
    assert manifest["sha256"] == hashlib.sha256(archive).hexdigest()
    assert manifest["tables"] == [
        {"name": "films.tab", "bytes": 7, "sha256": hashlib.sha256(b"\0binary").hexdigest()},
        {"name": "users.tab", "bytes": 3000, "sha256": hashlib.sha256(b"u" * 3000).hexdigest()},
    ]
    assert (pod.job / "tables" / "films.tab").read_bytes() == b"\0binary"
    assert pod.leftovers() == []


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_is_decompressed(pod: Pod, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(LINES[:9000]) + pack(LINES[9000:])
    pod.source(packed, "in")
    assert pod.prepare(chunk=1000)["sha256"] == hashlib.sha256(packed).hexdigest()
    assert sorted(pod.train()) == sorted(LINES.split(b"\n")[:-1])


def test_csv_records_become_escaped_lines_of_the_chosen_columns(pod: Pod) -> None:
    pod.source(b'label;text;more\r\n1;"a ""quoted"";\r\nfield\t\\";x\r\n\r\n0;b;y\n2;c;z')
    manifest = pod.prepare(FORMAT="csv", DELIMITER=";", COLUMNS=["text", 0])
    records = [split_fields(line.decode()) for line in pod.train()]
    assert sorted(records) == [['a "quoted";\r\nfield\t\\', "1"], ["b", "0"], ["c", "2"]]
    assert manifest["lines"] == 3


def test_csv_without_header_and_in_latin_1(pod: Pod) -> None:
    pod.source("é\t1\nè\t2\nê\t3\n".encode("latin-1"))
    pod.prepare(FORMAT="csv", DELIMITER="\\t", HEADER=False, ENCODING="latin-1", COLUMNS=[1, 0])
    assert sorted(pod.train()) == ["1\té".encode(), "2\tè".encode(), "3\tê".encode()]


@pytest.mark.parametrize("damage", ["0/data/train.txt", "test.txt", "tables/t", "1/data"])
def test_incomplete_data_is_made_again(pod: Pod, damage: str) -> None:
    pod.source(zipped({"in": LINES, "t": b"table"}), "z")
    first = pod.prepare(MEMBER="in", TABLES=["t"], TEST_FRACTION=0.1)
    path = (pod.job / damage).resolve()
    if path.is_dir():
        path.rename(pod.storage / "elsewhere")
    else:
        path.write_bytes(b"")
    assert pod.prepare(MEMBER="in", TABLES=["t"], TEST_FRACTION=0.1) == first
    assert path.is_dir() or path.stat().st_size


@pytest.mark.parametrize("damage", ["", "{}"])
def test_data_with_a_damaged_list_of_files_is_made_again(pod: Pod, damage: str) -> None:
    pod.source(LINES)
    first = pod.prepare(part_bytes=PART)
    path = pod.job / "1" / "data" / LIST
    path.write_text(damage)
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
