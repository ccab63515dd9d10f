"""Download of exports: hostile names, sizes and checksums in _SUCCESS.json and latest.json, and rejections by S3."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import DataError, LauncherError, SettingsError, StorageError
from launcher.serving import download
from launcher.serving.serve import newest_export
from tests.launcher.io.test_hostile_files import NAMES

RUN = "models/job/run-1/"
MODEL = {"model/model.json": b"{}", "model/program/train.py": b"pass\n", "model/n\u00e4me": b"\0"}


@pytest.fixture
def bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a complete export to the bucket of `s3`; return the client."""
    monkeypatch.setattr(download, "TRIES", 1)
    for name, content in MODEL.items():
        s3.put_object(Bucket="bucket", Key=RUN + name, Body=content)
    put(s3, RUN + "_SUCCESS.json", {"files": listing()})
    put(s3, "models/job/latest.json", {"to": f"s3://bucket/{RUN}"})
    return s3


def put(client: Any, key: str, value: Any) -> None:
    client.put_object(Bucket="bucket", Key=key, Body=json.dumps(value).encode())


def entry(name: str, content: bytes, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        **changed,
    }


def listing() -> list[dict[str, Any]]:
    return [*(entry(name, content) for name, content in MODEL.items()), entry("run.json", b"{}")]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_model_is_downloaded_with_its_names_and_replaces_an_earlier_one(
    bucket: Any, tmp_path: Path
) -> None:
    (tmp_path / "model" / "program").mkdir(parents=True)
    (tmp_path / "model" / "program" / "old.py").write_text("old")
    for url in ("s3://bucket/models/job", f"s3://bucket/{RUN}"):
        assert download.download_model(url, tmp_path, "--model") == tmp_path / "model"
    found = {
        f"model/{name}": (tmp_path / "model" / name).read_bytes()
        for name in tree(tmp_path / "model")
        if (tmp_path / "model" / name).is_file()
    }
    assert found == MODEL
    assert tree(tmp_path) == sorted([*found, "model", "model/program"])


SIZES = [-1, True, 1.5, "10", None, 1e400, 10**400, float("nan")]
NO_MARKERS = [
    b"",
    b"[]",
    b"{}",
    b'{"files": {}}',
    b'{"files": [1]}',
    b'{"a":' + b"[" * 100_000,
    b"\xff",
    b"null",
]
AGAIN = r"Fix: export the model again"


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        *(([{**entry("x", b"evil"), "name": name}], DataError, rf"_SUCCESS\.json is damaged: files\.\d+.* {AGAIN}")
          for name in [*NAMES, *(f"model/{name}" for name in NAMES), 7, None, ["model/evil"]]),
        *(([entry("model/x", b"x", bytes=size)], DataError, r"_SUCCESS\.json") for size in SIZES),
        ([entry("model/x", b"x", bytes=10**15)], StorageError, "no space left for the model: 1,000,000,000,0"),
        ([entry("model/a", b""), entry("model/a/b", b"")], DataError, "lists 'a' as a file and as a folder"),
        *((marker, DataError, rf"_SUCCESS\.json .*\. {AGAIN}") for marker in NO_MARKERS),
        (b" " * 200_001, SettingsError, r"_SUCCESS\.json has more than 200,?000 bytes"),
    ],
)  # fmt: skip
def test_a_hostile_list_of_files_is_rejected_before_anything_is_written(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, more: Any, error: type, message: str
) -> None:
    """In turn: names that lead out of the folder, sizes, clashes, and what is no list; too many bytes to read."""
    monkeypatch.setattr("launcher.io.bucket_export_format.FILE_BYTES", 200_000)
    for key in ("evil", "models/job/evil", RUN + "evil"):
        bucket.put_object(Bucket="bucket", Key=key, Body=b"evil")
    marker = more if isinstance(more, bytes) else json.dumps({"files": [*listing(), *more]}).encode()
    bucket.put_object(Bucket="bucket", Key=RUN + "_SUCCESS.json", Body=marker)
    with pytest.raises(error, match=message):
        download.download_model(f"s3://bucket/{RUN}", tmp_path / "pod" / "work", "training.initModelPath")
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    "changed",
    [{"sha256": "0" * 64, "bytes": 3}, {"bytes": 2}, {"bytes": 0}, {"sha256": ""}, {"sha256": None}],
)
def test_a_file_with_another_size_or_sha256_leaves_the_earlier_model(
    bucket: Any, tmp_path: Path, changed: dict[str, Any]
) -> None:
    download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    before = tree(tmp_path)
    bucket.put_object(Bucket="bucket", Key=RUN + "model/zz", Body=b"new")
    changed = {"sha256": entry("", b"new")["sha256"], "bytes": 2, **changed}
    put(bucket, RUN + "_SUCCESS.json", {"files": [*listing(), entry("model/zz", b"n", **changed)]})
    with pytest.raises(DataError, match=r"Fix: export the model again"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    assert tree(tmp_path) == before


def test_a_download_removes_what_a_killed_download_left(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each container that was killed during the download left its part of the model on the pod's disk."""
    with monkeypatch.context() as patch:
        patch.setattr(
            download.shutil, "rmtree", lambda *_, **__: None
        )  # as if the process had been killed before
        patch.setattr(download.files, "sha256_file", lambda _: "")
        with pytest.raises(DataError):
            download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    assert tree(tmp_path), "a part of the model was downloaded"
    download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_object_that_is_larger_than_listed_is_not_downloaded(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space was checked for the listed size only."""
    bucket.put_object(Bucket="bucket", Key=RUN + "model/model.json", Body=b"x" * 100_000)
    seen = []
    original = download.s3.Bucket.call
    monkeypatch.setattr(
        download.s3.Bucket,
        "call",
        lambda self, method, **given: (seen.append(method), original(self, method, **given))[1],
    )
    with pytest.raises(DataError, match=r"model\.json does not have the sha256"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    assert "download_file" not in seen


@pytest.mark.parametrize(
    "to",
    ["s3://bucket/models/job/..", "s3://bucket/models/job/", "s3://bucket/", "", "..", "a\0", "a\\b", None],
)
def test_an_address_in_latest_json_that_is_no_folder_next_to_it_is_rejected(
    bucket: Any, tmp_path: Path, to: Any
) -> None:
    put(bucket, "models/job/latest.json", {"to": to} if to is not None else {})
    with pytest.raises(LauncherError):
        download.download_model("s3://bucket/models/job", tmp_path, "--model")
    assert tree(tmp_path) == []


def test_latest_json_never_selects_a_folder_of_another_job(bucket: Any, tmp_path: Path) -> None:
    for name, content in MODEL.items():
        bucket.put_object(Bucket="bucket", Key=f"other/secret/{name}", Body=content)
    put(bucket, "other/secret/_SUCCESS.json", {"files": listing()})
    put(bucket, "models/job/latest.json", {"to": "s3://bucket/other/secret/"})
    found = newest_export(download.ExportedModels("s3://bucket/models/job", "--model"))
    assert found is not None
    assert found.address == "s3://bucket/models/job/secret/"
    with pytest.raises(SettingsError, match=r"has no _SUCCESS\.json"):
        found.copy(tmp_path, lambda _: None)


@pytest.mark.parametrize(
    ("reason", "code", "fix"),
    [
        ("S3 answered AccessDenied (403)", "AccessDenied", "allow the role or key .* s3:GetObject"),
        ("S3 answered NoSuchBucket (404)", "NoSuchBucket", "correct the name of the bucket"),
        ("no region. Fix: set the region.", "", "set the region"),
        ("S3 answered Odd (400)", "Odd", "set the folder of an exported run"),
    ],
)
def test_a_rejection_by_s3_is_reported_with_one_fix_for_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, code: str, fix: str
) -> None:
    """Regression: each rejection said that another folder must be set."""

    def reject(*_: object) -> None:
        raise download.s3.S3RejectedError(reason, code)

    monkeypatch.setattr(download.ExportFolder, "open", lambda *_: download.ExportFolder(None, "p/", None))  # type: ignore[arg-type]
    monkeypatch.setattr(download.ExportFolder, "read", reject)
    with pytest.raises(SettingsError, match=rf"--model is 's3://b/p'.*\. Fix: {fix}") as caught:
        download.download_model("s3://b/p", tmp_path, "--model")
    assert str(caught.value).count("Fix: ") == 1
