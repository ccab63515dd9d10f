"""Target aws with mocks: the file system and its access rules."""

from __future__ import annotations

import pytest

from .recording_mocks import aws_stack, default


def test_file_system_has_backups_only_on_request() -> None:
    made = aws_stack(storage={"backup": True, "protect": False})
    assert made.one("BackupPolicy").inputs["backupPolicy"] == {"status": "ENABLED"}
    assert "stay in AWS Backup for 35 days" in made.outputs["destroyLoses"]
    assert "AWS Backup" not in default().outputs["destroyLoses"]


def test_file_system_without_archive_has_no_lifecycle_policy() -> None:
    files = aws_stack(storage={"archiveAfterDays": 0}).one("FileSystem").inputs
    assert files.get("lifecyclePolicies", []) == []


@pytest.mark.parametrize("protect", [True, False])
def test_unprotected_bucket_and_registry_are_emptied(protect: bool) -> None:
    made = aws_stack(storage={"protect": protect})
    assert made.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    assert made.one("Repository").inputs["forceDelete"] is not protect
