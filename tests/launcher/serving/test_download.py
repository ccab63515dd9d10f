"""Download of exported models: messages about rejections by S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import SettingsError
from launcher.io import s3
from launcher.io.bucket_export_format import ExportFolder
from launcher.serving import download


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
        raise s3.S3RejectedError(reason, code)

    monkeypatch.setattr(ExportFolder, "open", lambda *_: ExportFolder(None, "p/", None))  # type: ignore[arg-type]
    monkeypatch.setattr(ExportFolder, "read", reject)
    with pytest.raises(SettingsError, match=rf"--model is 's3://b/p'.*\. Fix: {fix}") as caught:
        download.download_model("s3://b/p", tmp_path, "--model")
    assert str(caught.value).count("Fix: ") == 1
