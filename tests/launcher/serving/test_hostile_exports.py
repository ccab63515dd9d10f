"""Exports in a bucket that somebody else wrote: names, sizes and checksums of _SUCCESS.json and latest.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import DataError, LauncherError, SettingsError, StorageError
from launcher.serving import download
from launcher.serving.serve import newest_export
from tests.launcher.io.test_hostile_files import NAMES

pytest.importorskip("moto", reason="moto is only in the environment of the tests")

RUN = "models/job/run-1/"
MODEL = {"model/model.json": b"{}", "model/program/train.py": b"pass\n", "model/n\u00e4me": b"\0"}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create a bucket in moto with a complete export; return a client of S3."""
    import boto3
    from moto import mock_aws

    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(download, "TRIES", 1)
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for name, content in MODEL.items():
            client.put_object(Bucket="bucket", Key=RUN + name, Body=content)
        put(client, RUN + "_SUCCESS.json", {"files": listing()})
        put(client, "models/job/latest.json", {"to": f"s3://bucket/{RUN}"})
        yield client


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


@pytest.mark.parametrize("name", [*NAMES, *(f"model/{name}" for name in NAMES), 7, None, ["model/evil"]])
def test_a_name_that_leads_out_of_the_folder_or_is_none_is_rejected_before_anything_is_written(
    bucket: Any, tmp_path: Path, name: Any
) -> None:
    for key in ("evil", "models/job/evil", RUN + "evil"):
        bucket.put_object(Bucket="bucket", Key=key, Body=b"evil")
    evil = {**entry("x", b"evil"), "name": name}
    put(bucket, RUN + "_SUCCESS.json", {"files": [*listing(), evil]})
    into = tmp_path / "pod" / "work"
    with pytest.raises(
        DataError, match=r"_SUCCESS\.json is damaged: files\.\d+.* Fix: export the model again"
    ):
        download.download_model(f"s3://bucket/{RUN}", into, "training.initModelPath")
    assert tree(tmp_path) == []


@pytest.mark.parametrize("size", [-1, True, 1.5, "10", None, 1e400, 10**400, float("nan")])
def test_a_size_that_is_no_number_of_bytes_is_rejected(bucket: Any, tmp_path: Path, size: Any) -> None:
    put(bucket, RUN + "_SUCCESS.json", {"files": [*listing(), entry("model/x", b"x", bytes=size)]})
    with pytest.raises(DataError, match=r"_SUCCESS\.json"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
    assert tree(tmp_path) == []


def test_a_model_that_does_not_fit_on_the_disk_is_rejected_before_the_download(
    bucket: Any, tmp_path: Path
) -> None:
    put(bucket, RUN + "_SUCCESS.json", {"files": [*listing(), entry("model/x", b"x", bytes=10**15)]})
    with pytest.raises(StorageError, match="no space left for the model: 1,000,000,000,0"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")
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


def test_a_name_that_is_both_a_file_and_a_folder_is_rejected(bucket: Any, tmp_path: Path) -> None:
    more = [entry("model/a", b""), entry("model/a/b", b"")]
    put(bucket, RUN + "_SUCCESS.json", {"files": [*listing(), *more]})
    with pytest.raises(DataError, match="lists 'a' as a file and as a folder"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"files": {}}', b'{"files": [1]}', b'{"a":' + b"[" * 100_000, b"\xff", b"null"],
)
def test_a_marker_of_another_kind_is_one_message(bucket: Any, tmp_path: Path, content: bytes) -> None:
    bucket.put_object(Bucket="bucket", Key=RUN + "_SUCCESS.json", Body=content)
    with pytest.raises(DataError, match=r"_SUCCESS\.json .*\. Fix: export the model again"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")


def test_a_huge_marker_is_not_read_into_memory(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.io.bucket_export_format.FILE_BYTES", 100)
    with pytest.raises(SettingsError, match=r"_SUCCESS\.json has more than 100 bytes"):
        download.download_model(f"s3://bucket/{RUN}", tmp_path, "--model")


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
