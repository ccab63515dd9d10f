"""Tests of the rule which files of a folder are read: all except hidden, temporary, marker and empty ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable

import pytest

from launcher.errors import DataError
from tests.launcher.dataprep.conftest import Pod

READ_FILES = {
    "a.txt": b"txt",
    "b.csv": b"csv",
    "c.tsv": b"tsv",
    "d.txt.gz": gzip.compress(b"gz"),
    "e.bz2": bz2.compress(b"bz2"),
    "f.CSV.XZ": lzma.compress(b"xz"),
    "g.dat": b"dat",
    "h.log": b"log",
    "i.jsonl": b"jsonl",
    "day_1": b"day_1",
    "part-00000": b"part-00000",
    "part-00001-c000.snappy": b"part-00001",
    "UPPER.TXT": b"upper",
    "deep/er/x": b"deep",
    "day=1/y": b"day=1",
    "_day=2/y": b"_day=2",
    "no.temporary": b"temporary",
    "bytes.1": b"bytes",
    "tilde~1": b"tilde",
    "partial/z": b"folder partial",
    "download/z": b"folder download",
}
HIDDEN = [
    *(
        ".a.csv",
        ".train.swp.txt",
        "._train.txt",
        ".DS_Store",
        ".ipynb_checkpoints/a-checkpoint.csv",
        ".x.swp",
        ".#x",
    ),
    *(
        "__MACOSX/._a.csv",
        "_SUCCESS",
        "_SUCCESS.txt",
        "_temporary/0/part-0",
        "_started_123",
        "_committed_123",
        "_metadata",
    ),
    *(
        "part-0._COPYING_",
        "x~",
        "x.txt~",
        "#x#",
        "x.swp",
        "x.tmp",
        "x.TMP",
        "x.temp",
        "x.bak",
        "x.part",
        "x.partial",
    ),
    *("x.filepart", "x.crdownload", "x.download/y", "Thumbs.db", "desktop.ini", "~$x.csv", "lost+found/x"),
    *("deep/.git/config", "deep/_delta_log/0.json", ".snapshot/a.txt", "__pycache__/x"),
]
FILES = (
    READ_FILES
    | dict.fromkeys(HIDDEN, b"hidden\n")
    | {"empty.txt": b"", "empty.gz": b"", "empty.parquet": b""}
)
READ = [
    *(
        b"txt",
        b"csv",
        b"tsv",
        b"gz",
        b"bz2",
        b"xz",
        b"dat",
        b"log",
        b"jsonl",
        b"day_1",
        b"part-00000",
        b"part-00001",
    ),
    *(
        b"upper",
        b"deep",
        b"day=1",
        b"_day=2",
        b"temporary",
        b"bytes",
        b"tilde",
        b"folder partial",
        b"folder download",
    ),
]


def write(pod: Pod, files: dict[str, bytes], folder: str = "days") -> str:
    for name, content in files.items():
        path = pod.storage / "sources" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"file://{folder}"


def test_every_file_is_read_except_hidden_temporary_marker_and_empty_ones(
    pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = pod.prepare(SOURCE=write(pod, FILES))
    assert sorted(pod.train()) == sorted(READ)
    assert manifest["lines"] == len(READ)


def test_the_files_that_are_not_read_are_in_the_log(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    pod.prepare(
        SOURCE=write(pod, {"a.txt": b"1\n2\n3\n", ".b.txt": b"x\n", "_tmp/c.txt": b"y\n", "empty": b""})
    )
    line = "data.source file://days: 1 files are read; 3 hidden, temporary or empty ones are not: .b.txt, _tmp, empty"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["x.parquet", "deep/X.PARQUET", "x.orc", "x.avro", "x.zip", "x.tgz", "x.tar", "x.zst", "x.png", "x.jpeg",
             "x.pdf", "x.xlsx", "x.npy", "x.pkl", "x.h5", "x.tar.zst", "x.whl", "x.7z", "x.sqlite3"],
)  # fmt: skip
def test_a_file_that_is_no_text_by_its_name_is_named(pod: Pod, name: str) -> None:
    source = write(pod, {"a.txt": b"1\n2\n3\n", name: b"text\n"})
    with pytest.raises(
        DataError, match=f"data.source file://days: {name} is no text file.*Fix: convert it.*or move it"
    ):
        pod.prepare(SOURCE=source)


@pytest.mark.parametrize(
    "content", [b"PAR1\x15\0\x15", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04..", b"\x28\xb5\x2f\xfd"]
)
def test_a_file_that_is_no_text_by_its_content_is_named(pod: Pod, content: bytes) -> None:
    source = write(pod, {"a.txt": b"1\n2\n3\n", "part-1": content})
    with pytest.raises(DataError, match=r"file://days/part-1.*Fix"):
        pod.prepare(SOURCE=source)


@pytest.mark.parametrize("source", ["file://.a/_b", "file://.a/_b/x.tmp"])
def test_a_hidden_name_in_data_source_itself_is_read(pod: Pod, source: str) -> None:
    write(pod, {"_b/x.txt": b"1\n2\n3\n", "_b/x.tmp": b"1\n2\n3\n"}, ".a")
    assert pod.prepare(SOURCE=source)["lines"] == 3


def test_a_folder_without_a_file_to_read_lists_what_it_has(pod: Pod) -> None:
    source = write(pod, {"_SUCCESS": b"", ".crc": b"x", "empty.txt": b""})
    with pytest.raises(
        DataError, match=r"has no file to read; it has \.crc, _SUCCESS, empty\.txt, and hidden.*Fix"
    ):
        pod.prepare(SOURCE=source)


def link_to_folder(pod: Pod) -> None:
    (pod.storage / "sources" / "other").mkdir()
    (pod.storage / "sources" / "days" / "odd").symlink_to("../other")


def link_to_nothing(pod: Pod) -> None:
    (pod.storage / "sources" / "days" / "odd").symlink_to("nothing")


def pipe(pod: Pod) -> None:
    os.mkfifo(pod.storage / "sources" / "days" / "odd")


@pytest.mark.parametrize("make", [link_to_folder, link_to_nothing, pipe])
def test_what_is_no_file_is_named_and_not_left_out(pod: Pod, make: Callable[[Pod], None]) -> None:
    source = write(pod, {"a.txt": b"1\n2\n3\n"})
    make(pod)
    with pytest.raises(
        DataError, match=r"data\.source file://days: .*/days/odd is no file, .*Fix: replace it"
    ):
        pod.prepare(SOURCE=source)


def test_the_rule_applies_to_data_test_source(pod: Pod) -> None:
    pod.source(b"1\n2\n3\n")
    test = write(pod, {"a": b"own\n", ".b": b"hidden\n"})
    pod.prepare(TEST_SOURCE=test)
    assert pod.test() == [b"own"]
    write(pod, {"c.png": b"x"})
    pod.environ["data_digest"] = "other"
    with pytest.raises(DataError, match=r"data\.testSource file://days: c\.png is no text file"):
        pod.prepare(TEST_SOURCE=test)
