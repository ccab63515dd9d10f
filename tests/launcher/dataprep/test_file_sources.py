"""Tests of data.format files: the files of a folder, prefix or archive, unchanged, with a list of their sha256."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.dataprep import data_files, sources
from launcher.errors import DataError, StorageError, StorageFailedError
from launcher.io.files import folder_sha256
from tests.launcher.dataprep.conftest import Pod, prepared_files, tarred, zipped

IMAGES = {
    "cat/1.png": b"\x89PNG 1",
    "cat/_2.png": b"\x89PNG 2",
    "dog/labels.txt": b"",
    "é.npy": b"\x93NUMPY\r\n\0",
}
HIDDEN = {".DS_Store": b"x", "__MACOSX/a": b"x", "cat/Thumbs.db": b"x", "cat/.x.png": b"x"}


def test_a_folder_is_kept_file_by_file_and_its_sha256_is_that_of_push(pod: Pod, tmp_path: Path) -> None:
    source = pod.folder(IMAGES | HIDDEN)
    pod.prepare(SOURCE=source, FORMAT="files", part_bytes=10)
    assert prepared_files(pod) == IMAGES
    for name, content in IMAGES.items():
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_bytes(content)
    sha256 = folder_sha256(tmp_path / "local")
    pod.environ["data_digest"] = "another"
    assert pod.prepare(SOURCE=source, FORMAT="files", SHA256=sha256)["sha256"] == sha256
    pod.environ["data_digest"] = "wrong"
    with pytest.raises(DataError, match=r"data\.sha256 is 0+, but .* has"):
        pod.prepare(SOURCE=source, FORMAT="files", SHA256="0" * 64)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.zip", zipped({**IMAGES, **HIDDEN, "d/": b""}), IMAGES),
        ("a.tar", tarred({f"./{name}": data for name, data in {**IMAGES, **HIDDEN}.items()}, "w"), IMAGES),
        *((f"a.{end}", tarred(IMAGES, f"w:{end[4:]}"), IMAGES) for end in ("tar.gz", "tar.bz2", "tar.xz")),
        ("download", tarred(IMAGES), IMAGES),
        ("arrays.npz", zipped({"x.npy": b"1"}), None),
        ("rows.txt.gz", b"\x1f\x8b\x08" + b"\0" * 7 + b"\x03\0" + b"\0" * 8, None),
        ("one.bin", b"\0\1", None),
        ("large.bin", bytes(range(256)) * 40_000, None),
    ],
)  # fmt: skip
def test_an_archive_is_unpacked_and_any_other_single_file_is_kept(
    pod: Pod, name: str, content: bytes, expected: Mapping[str, bytes] | None
) -> None:
    manifest = pod.prepare(
        SOURCE=pod.source(content, name), FORMAT="files", SHA256=hashlib.sha256(content).hexdigest()
    )
    assert prepared_files(pod) == ({name: content} if expected is None else expected)
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()


def test_archives_in_a_folder_are_kept_such_as_shards_of_webdataset(pod: Pod) -> None:
    shards = {f"train-{i:04}.tar": tarred({f"{i}.png": b"1"}, "w") for i in range(3)}
    pod.prepare(SOURCE=pod.folder(shards), FORMAT="files")
    assert prepared_files(pod) == shards


def tar_with(kind: bytes, name: str = "x") -> bytes:
    """Return a tar archive with a member of this type, such as a link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    return file.getvalue()


def zip_with_link() -> bytes:
    info = zipfile.ZipInfo("x")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("a.tar", tar_with(kind), "a.tar!x is a link or a device.*Fix: pack")
          for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)),
        ("a.zip", zip_with_link(), "a.zip!x is a link or a device.*Fix: pack"),
        *((end, pack({path: b"x"}), "leads out of its folder or is no valid path")
          for end, pack in (("a.tar", tarred), ("a.zip", zipped)) for path in ("../x", "/etc/x", "a/../../x", "a\\x")),
        ("a.tar", tarred([("x", b"1"), ("x", b"2")]), "has 'x' twice.*Fix: keep one"),
        ("a.tar", tarred([("x", b"1"), ("x/y", b"2")]), "has 'x(/y)?' twice, or as a file and as a folder"),
        ("a.tar.gz", tarred(IMAGES)[:-20], "a.tar.gz is damaged or incomplete"),
        ("a.tar.gz", tarred(IMAGES)[:-4], "a.tar.gz is damaged or incomplete"),
        ("a.zip", zipped({"x": b"1" * 99}).replace(b"PK\1\2", b"PK\1\3"), "a.zip is damaged or incomplete"),
        ("a.tar.zst", b"\x28\xb5\x2f\xfd1234", "is an archive by its name, but no zip file.*Fix: .* pack"),
        ("a.tar", tarred({".x": b"1"}), "has no file. Fix"),
    ],
    ids=lambda value: "content" if isinstance(value, bytes) else None,  # it has the time of the test
)  # fmt: skip
def test_a_damaged_or_malicious_archive_is_rejected_and_nothing_is_published(
    pod: Pod, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        pod.prepare(SOURCE=pod.source(content, name), FORMAT="files")
    assert not list(pod.data.glob("[!.]*"))
    assert not pod.leftovers()
    assert not (pod.storage / "x").exists()


def test_files_that_are_complete_are_not_fetched_again_after_an_interruption(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, opened = pod.folder(IMAGES), []
    opens = sources.StorageSource.open

    def open_or_fail(self: Any, found: sources.SourceObject, *others: Any) -> Any:
        opened.append(found.name)
        if len(opened) == 3:
            raise StorageFailedError("the storage is away")
        return opens(self, found, *others)

    monkeypatch.setattr(sources.StorageSource, "open", open_or_fail)
    monkeypatch.setattr("launcher.io.thread_jobs.THREADS", 1)
    with pytest.raises(StorageFailedError):
        pod.prepare(SOURCE=source, FORMAT="files")
    first = opened[:2]
    pod.prepare(SOURCE=source, FORMAT="files")
    assert prepared_files(pod) == IMAGES
    assert not set(first) & set(opened[3:])
    count = len(opened)
    pod.prepare(SOURCE=source, FORMAT="files", SPLIT_COUNT=5)
    assert len(opened) == count, "the same data for another number of trainers was read again"


def test_other_trainers_use_the_same_files_and_a_change_of_the_source_is_read(pod: Pod) -> None:
    source = pod.folder(IMAGES)
    first = pod.prepare(SOURCE=source, FORMAT="files")
    pod.environ["data_digest"] = "five"
    second = pod.prepare(SOURCE=source, FORMAT="files", SPLIT_COUNT=5)
    assert second["content"] == first["content"]
    pod.folder({"new.png": b"new"})
    pod.environ["data_digest"] = "new"
    pod.prepare(SOURCE=source, FORMAT="files")
    assert prepared_files(pod) == {**IMAGES, "new.png": b"new"}


def test_rows_replace_files_of_the_same_job_and_its_links(pod: Pod) -> None:
    pod.prepare(SOURCE=pod.folder(IMAGES), FORMAT="files")
    pod.environ["data_digest"] = "rows"
    pod.source(b"1\n2\n3\n")
    assert pod.prepare()["lines"] == 3
    assert len(pod.train()) == 3
    pod.environ["data_digest"] = "files"
    pod.prepare(SOURCE="file://days", FORMAT="files")
    assert prepared_files(pod) == IMAGES
    assert sorted(path.name for path in pod.job.iterdir()) == ["manifest.json"]


def test_a_part_has_a_limited_number_of_files(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data_files, "FILE_COST", 10)
    pod.prepare(SOURCE=pod.folder({f"{i}": b"" for i in range(30)}), FORMAT="files", part_bytes=100)
    assert len(prepared_files(pod)) == 30
    assert "preparing part 00002; 1 of 3 parts" in capsys.readouterr().err


def test_an_archive_whose_files_do_not_fit_on_the_storage_is_rejected(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pod.source(zipped({"x": b"1" * 10_000}), "a.zip")
    monkeypatch.setattr("launcher.io.files.free_bytes", lambda _: 9_999)
    with pytest.raises(
        StorageError, match=r"no space left for file://a\.zip!x: 10,000 bytes are needed.*Fix"
    ):
        pod.prepare(SOURCE=source, FORMAT="files")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_source_that_changes_while_it_is_fetched_is_rejected(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = pod.folder({"a.png": b"1"}) if kind == "folder" else pod.source(tarred(IMAGES), "a.tar")
    write = data_files.FileFetcher._write

    def change(*given: Any) -> Any:
        for path in (pod.storage / "sources").rglob("*.*"):
            os.utime(path, (1, 1))
        return write(*given)

    monkeypatch.setattr(data_files.FileFetcher, "_write", change)
    with pytest.raises(DataError, match=r"changed while it was read.*Fix: wait"):
        pod.prepare(SOURCE=source, FORMAT="files")
    assert not list(pod.data.glob("[!.]*"))
