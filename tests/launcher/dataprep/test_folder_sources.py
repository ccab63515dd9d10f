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

PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
READ_NAMES = """a.txt b.csv c.tsv d.txt.gz e.bz2 f.CSV.XZ g.dat h.log i.jsonl day_1 part-00000 part-00001-c000.snappy
    UPPER.TXT deep/er/x day=1/y _day=2/y no.temporary bytes.1 tilde~1 partial/z download/z""".split()  # noqa: SIM905 - a list of names, easier to read without quotes
HIDDEN = """.a.csv .train.swp.txt ._train.txt .DS_Store .ipynb_checkpoints/a-checkpoint.csv .x.swp .#x
    __MACOSX/._a.csv _SUCCESS _SUCCESS.txt _temporary/0/part-0 _started_123 _committed_123 _metadata part-0._COPYING_
    x~ x.txt~ #x# x.swp x.tmp x.TMP x.temp x.bak x.part x.partial x.filepart x.crdownload x.download/y Thumbs.db
    desktop.ini ~$x.csv lost+found/x deep/.git/config deep/_delta_log/0.json .snapshot/a.txt __pycache__/x""".split()  # noqa: SIM905 - a list of names, easier to read without quotes
NO_TEXT = """x.parquet deep/X.PARQUET x.orc x.avro x.zip x.tgz x.tar x.zst x.png x.jpeg x.pdf x.xlsx x.npy x.pkl x.h5
    x.tar.zst x.whl x.7z x.sqlite3""".split()  # noqa: SIM905 - a list of names, easier to read without quotes
READ = [name.encode() for name in READ_NAMES]
"""The line of each file that is read: its name."""
FILES = {
    **{name: PACK.get(name.lower()[name.rfind(".") :], bytes)(name.encode()) for name in READ_NAMES},
    **dict.fromkeys(HIDDEN, b"hidden\n"),
    **dict.fromkeys(("empty.txt", "empty.gz", "empty.parquet"), b""),
}


def test_every_file_is_read_except_hidden_temporary_marker_and_empty_ones(pod: Pod) -> None:
    manifest = pod.prepare(SOURCE=pod.folder(FILES))
    assert sorted(pod.train()) == sorted(READ)
    assert manifest["lines"] == len(READ)


def test_the_files_that_are_not_read_are_in_the_log(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    some = {"a.txt": b"1\n2\n3\n", ".b.txt": b"x\n", "_tmp/c.txt": b"y\n", "empty": b""}
    pod.prepare(SOURCE=pod.folder(some))
    line = "data.source file://days: 1 files are read; 3 hidden, temporary or empty ones are not: .b.txt, _tmp, empty"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((name, b"text\n", rf"data\.source file://days: {name} is no text file.*Fix: convert it.*or move it")
          for name in NO_TEXT),
        *(("part-1", content, r"file://days/part-1.*Fix")
          for content in (b"PAR1\x15\0\x15", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04..", b"\x28\xb5\x2f\xfd")),
    ],
)  # fmt: skip
def test_a_file_that_is_no_text_by_its_name_or_content_is_named(
    pod: Pod, name: str, content: bytes, message: str
) -> None:
    source = pod.folder({"a.txt": b"1\n2\n3\n", name: content})
    with pytest.raises(DataError, match=message):
        pod.prepare(SOURCE=source)


@pytest.mark.parametrize("source", ["file://.a/_b", "file://.a/_b/x.tmp"])
def test_a_hidden_name_in_data_source_itself_is_read(pod: Pod, source: str) -> None:
    pod.folder({"_b/x.txt": b"1\n2\n3\n", "_b/x.tmp": b"1\n2\n3\n"}, ".a")
    assert pod.prepare(SOURCE=source)["lines"] == 3


def test_a_folder_without_a_file_to_read_lists_what_it_has(pod: Pod) -> None:
    source = pod.folder({"_SUCCESS": b"", ".crc": b"x", "empty.txt": b""})
    with pytest.raises(
        DataError, match=r"has no file to read; it has \.crc, _SUCCESS, empty\.txt, and hidden.*Fix"
    ):
        pod.prepare(SOURCE=source)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("../other"), "/days/odd is no file, .*Fix: replace it"),
        (lambda path: path.symlink_to("nothing"), "/days/odd is no file, .*Fix: replace it"),
        (os.mkfifo, "/days/odd is no file, .*Fix: replace it"),
        (lambda path: path.symlink_to("../../secret.txt"), "a link that leads out of"),
    ],
    ids=["link to a folder", "link to nothing", "pipe", "link to a file elsewhere"],
)
def test_what_is_no_file_is_named_and_not_left_out(
    pod: Pod, make: Callable[[object], None], message: str
) -> None:
    (pod.storage / "secret.txt").write_text("a\nb\nc\n")
    pod.folder({"a.txt": b"other\n"}, "other")
    source = pod.folder({"a.txt": b"1\n2\n3\n"})
    make(pod.storage / "sources" / "days" / "odd")
    with pytest.raises(DataError, match=rf"data\.source file://days: .*{message}"):
        pod.prepare(SOURCE=source)


def test_the_rule_applies_to_data_test_source(pod: Pod) -> None:
    pod.source(b"1\n2\n3\n")
    test = pod.folder({"a": b"own\n", ".b": b"hidden\n"})
    pod.prepare(TEST_SOURCE=test)
    assert pod.test() == [b"own"]
    pod.folder({"c.png": b"x"})
    pod.environ["data_digest"] = "other"
    with pytest.raises(DataError, match=r"data\.testSource file://days: c\.png is no text file"):
        pod.prepare(TEST_SOURCE=test)
