"""Target aws with mocks: the bucket, its uploads, and the registry."""

from __future__ import annotations

import pytest

from infra.settings_errors import SettingsError

from .recording_mocks import aws_stack, default, everything


def test_pod_identity_is_created_before_nodes() -> None:
    before = default().before(default().one("PodIdentityAssociation", "pods"))
    assert not [name for name in before if "NodeGroup" in name]


def test_upload_object_changes_with_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_upload_missing_file_raises() -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.uploads"):
        aws_stack(artifacts={"uploads": {"sources/x": "nowhere.csv"}})
