"""Wiring of target aws, by mocks: the bucket, its uploads, and the registry."""

from __future__ import annotations

import json

import pytest

from infra.problems import SettingsError

from .support import aws_stack, default, everything


def test_the_bucket_is_private_encrypted_and_versioned() -> None:
    made = default()
    block = made.one("BucketPublicAccessBlock").inputs
    assert all(block[key] for key in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls"))
    assert block["restrictPublicBuckets"]
    assert made.one("BucketVersioning").inputs["versioningConfiguration"] == {"status": "Enabled"}
    statement = json.loads(made.one("BucketPolicy").inputs["policy"])["Statement"][0]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_pods_role_reaches_their_part_of_the_bucket_only() -> None:
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


def test_pods_may_use_the_bucket_long_before_the_first_of_them_is_made() -> None:
    without = aws_stack(image="")
    assert not without.of("Release")
    without.one("PodIdentityAssociation", "pods")
    before = default().before(default().one("PodIdentityAssociation", "pods"))
    assert not [name for name in before if "NodeGroup" in name]


def test_uploads_become_objects_that_change_with_their_file() -> None:
    made = everything().one("BucketObjectv2").inputs
    assert made["key"] == "sources/readme"
    assert len(made["sourceHash"]) == 64


def test_an_upload_that_is_not_there_is_refused_before_any_resource() -> None:
    with pytest.raises(SettingsError, match=r"artifacts\.uploads"):
        aws_stack(artifacts={"uploads": {"sources/x": "nowhere.csv"}})


def test_a_pushed_tag_never_means_another_image() -> None:
    repository = default().one("Repository").inputs
    assert repository["imageTagMutability"] == "IMMUTABLE"
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}
