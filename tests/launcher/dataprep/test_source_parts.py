"""Tests of sources that are split in parts: byte ranges, files of a folder, the test set, and changes."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.dataprep import sources, split_part
from launcher.dataprep.prepared_data import LIST, PreparedData
from launcher.dataprep.progress_log import DataProgress
from launcher.errors import DataError, StorageFailedError
from launcher.paths import JobPaths
from tests.launcher.dataprep.conftest import ALL, LINES, PART, Pod


@given(
    st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")), max_size=30),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_byte_ranges_of_an_object_contain_each_line_once(
    lines: list[bytes], newline: bool, size: int, read: int
) -> None:
    content = b"".join(line + b"\n" for line in lines) + (b"" if newline else b"end")
    parts = sources.plan_parts([sources.SourceObject("o", len(content), "")], size, divisible=True)
    found = []
    for stretch in (s for part_ in parts for s in part_):
        stream = io.BytesIO(content)
        stream.seek(max(0, stretch.begin - 1))
        digest = hashlib.sha256()
        blocks = iter(lambda stream=stream: stream.read(read), b"")
        data = b"".join(sources.range_lines(blocks, stretch.begin, stretch.end, digest))
        assert digest.digest() == hashlib.sha256(data).digest()
        assert not data or data.endswith(b"\n") or content.endswith(data)
        found.append(data)
    assert b"".join(found) == content


def test_small_objects_share_a_part_large_ones_are_divided_and_compressed_ones_are_not() -> None:
    objects = [
        sources.SourceObject(name, size, "") for name, size in (("a", 4), ("b", 4), ("c.gz", 25), ("d", 12))
    ]
    parts = sources.plan_parts(objects, 10, divisible=True)
    assert [[(s.object.name, s.begin, s.end) for s in found] for found in parts] == [
        [("a", 0, 4), ("b", 0, 4), ("c.gz", 0, 25)],
        [("d", 0, 10)],
        [("d", 10, 12)],
    ]
    assert [len(found) for found in sources.plan_parts(objects, 10)] == [3, 1]
    assert sources.part_size(3) == 256 << 20
    assert sources.part_size(300) == 1200 << 20
    assert sources.distribute(100, [1, 1, 2]) == [25, 25, 50]
    assert sum(sources.distribute(7, [5, 3, 9])) == 7


def test_a_source_in_parts_has_every_line_once_in_even_shards(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare(part_bytes=PART, TEST_FRACTION=0.1)
    assert manifest["shards"][0]["parts"] > 5
    assert sorted([*pod.listed_lines(), *pod.test()]) == ALL
    counts = [shard["lines"] for shard in manifest["shards"]]
    assert max(counts) - min(counts) <= manifest["shards"][0]["parts"]
    assert 90 <= len(pod.test()) <= 110
    assert pod.leftovers() == []
    pod.prepare(part_bytes=PART, TEST_FRACTION=0.1)  # finds it


def test_a_file_that_changes_while_it_is_read_is_rejected(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    run = split_part.PartSplitter.run

    def then_changed(self: Any) -> Any:
        found = run(self)
        if self._part.number == 1:
            pod.source(LINES + b"1\tmore\n")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(split_part.PartSplitter, "run", then_changed)
        with pytest.raises(DataError, match=r"file://in\.txt changed while it was read"):
            pod.prepare(part_bytes=PART)
    assert not (pod.job / "manifest.json").exists()
    assert pod.leftovers() == []
    assert "changed while" in pod.failure()["reason"]


def test_a_file_that_changes_after_it_was_read_is_rejected(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    pod.source(LINES)
    read = sources.file_blocks

    def then_changed(path: Path, *rest: Any) -> Iterator[bytes]:
        yield from read(path, *rest)
        path.write_bytes(LINES[:-1])

    monkeypatch.setattr(sources, "file_blocks", then_changed)
    with pytest.raises(DataError, match=r"file://in\.txt changed while it was read"):
        pod.prepare()


def test_a_source_whose_storage_fails_is_reported_with_its_path(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.FileIO):
        def read(self, *_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    pod.source(LINES)
    opened = Path.open

    def fail(path: Path, *mode: Any, **more: Any) -> Any:
        return Failing(path) if more == {"buffering": 0} else opened(path, *mode, **more)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageFailedError, match=r"the storage failed at .*/sources/in\.txt: Input/output"):
        pod.prepare()


def test_a_bad_row_of_a_byte_range_is_reported_with_object_and_byte(pod: Pod) -> None:
    pod.source(LINES[:-5] + b"\xff\n")
    with pytest.raises(
        DataError, match=r"file://in\.txt from byte 2\d,\d00 on, row \d+, column \d+: the byte"
    ):
        pod.prepare(part_bytes=PART)


def test_a_compressed_file_without_its_suffix_is_rejected(pod: Pod) -> None:
    noise = b"".join(hashlib.sha256(b"%d" % n).hexdigest().encode() + b"\n" for n in range(500))
    pod.source(gzip.compress(noise), "in")
    with pytest.raises(DataError, match="is compressed, but its name does not end with"):
        pod.prepare(part_bytes=PART)
    pod.source(gzip.compress(noise), "in.gz")
    pod.environ["data_digest"] = "other"
    assert pod.prepare(part_bytes=PART)["lines"] == 500


def test_all_text_below_a_folder_of_the_storage_is_read(pod: Pod) -> None:
    contents = {
        "0.txt": b"a0\na1\n",
        "1.txt.gz": gzip.compress(b"b0\n"),
        "more/2.tsv": b"c0",
        ".notes.md": b"no\n",
    }
    source = pod.folder(contents)
    assert pod.prepare(SOURCE=source, SPLIT_COUNT="2")["lines"] == 4
    assert sorted(pod.listed_lines()) == [b"a0", b"a1", b"b0", b"c0"]
    with pytest.raises(DataError, match=r"file://days is a folder, but data\.member"):
        pod.prepare(SOURCE=source, MEMBER="x", SPLIT_COUNT="3")


def test_csv_objects_are_never_divided_and_need_equal_headers_in_all_parts(pod: Pod) -> None:
    rows = b"".join(b'%d,"two\nlines"\n' % n for n in range(400))
    pod.folder({"1.csv": b"a,b\n" + rows, "2.csv": b"a,b\n" + rows}, "csv")
    manifest = pod.prepare(part_bytes=PART, SOURCE="file://csv", FORMAT="csv")
    assert manifest["lines"] == 800
    assert manifest["shards"][0]["parts"] == 2
    pod.folder({"3.csv": b"b,c\n" + rows}, "csv")
    pod.environ["data_digest"] = "other"
    with pytest.raises(DataError, match=r"file://csv/3\.csv has the header \['b', 'c'\] and 2 columns, but"):
        pod.prepare(part_bytes=PART, SOURCE="file://csv", FORMAT="csv")


@pytest.mark.parametrize("part_bytes", [None, PART])
def test_a_test_set_above_its_limit_is_reduced_and_the_rest_is_trained_on(
    pod: Pod, part_bytes: int | None
) -> None:
    pod.source(LINES)
    manifest = pod.prepare(part_bytes=part_bytes, TEST_FRACTION=0.5, TEST_ROWS="37")
    test = pod.test()
    assert len(test) == manifest["test"]["lines"] == 37
    assert sorted([*pod.listed_lines(), *test]) == ALL
    places = [int(line.split()[-1]) for line in test]
    assert places == sorted(places)
    assert max(after - before for before, after in itertools.pairwise(places)) < 80, "spread"


@pytest.mark.parametrize("rows", ["200", "10"])
def test_data_test_source_replaces_the_held_out_lines(pod: Pod, rows: str) -> None:
    own = b"".join(b"1\town %d\n" % n for n in range(100))
    pod.source(own, "own.txt")
    pod.source(LINES)
    manifest = pod.prepare(TEST_SOURCE="file://own.txt", TEST_ROWS=rows, TEST_FRACTION=0.1)
    assert manifest["lines"] == 1000, "nothing is held out"
    assert manifest["testSource"] == "file://own.txt"
    assert len(pod.test()) == min(100, int(rows))
    assert set(pod.test()) <= set(own.split(b"\n"))


def test_a_changed_files_json_is_rejected(pod: Pod) -> None:
    pod.source(LINES)
    manifest = pod.prepare(part_bytes=PART)
    path, layout = pod.job / "1" / "data" / LIST, JobPaths(pod.storage, "job")
    path.write_text(path.read_text().replace("00001", "00002"))
    with pytest.raises(DataError, match=r"/1/files\.json is missing, or its sha256 is not the one"):
        PreparedData(layout, manifest).shard_files(manifest["shards"][1])


def test_the_default_deadline_depends_on_the_size_and_the_pods() -> None:
    for given_seconds, size, pods, wanted in (
        (None, 10**12, 1, 203_600),
        (None, 10**12, 20, 13_600),
        (None, 0, 1, 3_600),
        (None, None, 1, 86_400),
        (60, 10**12, 1, 60),
    ):
        progress = DataProgress(given_seconds)
        progress.set_deadline(size, pods)
        assert progress.deadline_seconds == pytest.approx(wanted)
