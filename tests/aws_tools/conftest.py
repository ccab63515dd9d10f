"""Fixtures: stack dev, an AWS account emulated by moto in this process, and clients. No network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from aws.stack_access import AwsStack, make_clients, read_stack
from tests.infra.conftest import event_loop_of_the_main_thread  # noqa: F401 - tests with mocks need it

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-west-2"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set fake credentials, so that no test uses real ones."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # no test needs them; they take half a second


@pytest.fixture
def account() -> Iterator[None]:
    """Emulate an account that has only its default VPC."""
    with mock_aws():
        yield


@pytest.fixture
def dev() -> Callable[..., AwsStack]:
    """Return a function that reads stack dev of this repository, with three fixed nodes and `key=value` changes."""

    def make(*changes: str) -> AwsStack:
        return read_stack("dev", ["cluster.admins=[role/Admin]", "nodes.auto=false", *changes])

    return make


@pytest.fixture(scope="session")
def client():
    """Return clients of the region, created once for all tests, because that is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        known = make_clients(REGION)
        for service in ("ec2", "ecr", "s3", "kms", "sts", "route53", "resourcegroupstaggingapi"):
            known(service)
    return known
