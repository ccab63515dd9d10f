"""Tests of a pod that cannot get credentials for S3."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from botocore import utils

from launcher.errors import UnfitError
from launcher.io import s3


def test_an_unavailable_agent_of_the_pod_identity_lets_another_pod_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it may have credentials of another test
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
    monkeypatch.setattr(utils.ContainerMetadataFetcher, "SLEEP_TIME", 0)
    with pytest.raises(UnfitError, match=r"container-role.* Fix: give the pods' service account a role"):
        s3.Bucket("name").list_page("", 1)
