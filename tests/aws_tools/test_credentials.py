"""The provider, cluster tokens and the aws commands use the same credentials; others are rejected."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pulumi
import pytest

from aws.stack_access import make_clients, read_stack
from infra import release_drift
from infra.settings_errors import SettingsError
from tests.aws_tools.conftest import REGION
from tests.infra.recording_mocks import aws_stack

PROFILE = """
[profile work]
aws_access_key_id = of-the-profile
aws_secret_access_key = secret
"""


@pytest.mark.parametrize("name", ["assumeRoles", "accessKey", "sharedCredentialsFiles"])
def test_read_stack_provider_only_credentials_raises(name: str) -> None:
    with pytest.raises(
        SettingsError, match=f"aws:{name} .*\n.*\n.*only Pulumi's AWS provider .*\n.*set aws:profile"
    ):
        read_stack("dev", [f"aws:{name}=[x]"])


def test_read_stack_uses_aws_profile_of_stack(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config").write_text(PROFILE)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "another")  # so that monkeypatch restores it afterwards
    read_stack("dev", ["aws:profile=work"])
    assert os.environ["AWS_PROFILE"] == "work"
    signer = make_clients(REGION)("sts")._request_signer
    assert signer._credentials.access_key == "of-the-profile"


def test_kubeconfig_uses_aws_profile_of_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_drift, "read_revisions", lambda *where: [])

    def tokens_of(recorder) -> list[list[str]]:
        providers = [r for r in recorder.resources if r.typ == "pulumi:providers:kubernetes"]
        return [json.loads(p.inputs["kubeconfig"])["users"][0]["user"]["exec"]["args"] for p in providers]

    before = tokens_of(aws_stack())
    pulumi.runtime.set_config("aws:profile", "work")
    try:
        after = tokens_of(aws_stack())
    finally:
        pulumi.runtime.set_all_config({})  # the state before this test
    assert before
    assert [args[-2:] for args in after] == [["--profile", "work"]] * len(before)
    assert "--profile" not in str(before)
