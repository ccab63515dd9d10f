"""Target aws with mocks: the bucket, its uploads, and the registry."""

from __future__ import annotations

import json

import pytest

from infra.settings_errors import SettingsError

from .recording_mocks import aws_stack, default, everything


def test_pods_role_is_limited_to_its_prefixes() -> None:
    made = default()
    association = made.one("PodIdentityAssociation", "pods").inputs
    assert association["namespace"] == "paddle"
    assert association["serviceAccount"] == "paddle-training"
    role = made.one("aws:iam/role:Role", "dev-pods")
    assert association["roleArn"] == f"arn:aws:mock:::{role.name}"
    policy = json.loads(made.one("RolePolicy", "dev-pods").inputs["policy"])
    bucket = f"arn:aws:mock:::{made.one('aws:s3/bucket:Bucket').name}"
    for statement in policy["Statement"]:
        resources = statement["Resource"]
        assert "*" not in resources
        assert all(r.startswith((bucket, "arn:aws:mock:::paddle-training-dev-key")) for r in resources)
    writes = [s for s in policy["Statement"] if "s3:PutObject" in s["Action"]]
    assert [s["Resource"] for s in writes] == [[f"{bucket}/models/*"]]


def test_pod_identity_is_created_before_nodes() -> None:
    without = aws_stack(image="")
    assert not without.of("Release")
    without.one("PodIdentityAssociation", "pods")
    before = default().before(default().one("PodIdentityAssociation", "pods"))
    assert not [name for name in before if "NodeGroup" in name]


def test_upload_object_changes_with_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_upload_missing_file_raises() -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.uploads"):
        aws_stack(artifacts={"uploads": {"sources/x": "nowhere.csv"}})
