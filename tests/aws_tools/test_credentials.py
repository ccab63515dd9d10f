"""As whom the provider asks AWS, cluster tokens and these commands ask too; what cannot be so is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pulumi
import pytest

from aws.stack import clients, read
from infra.problems import SettingsError
from tests.aws_tools.conftest import REGION
from tests.infra.support import aws_stack

PROFILE = """
[profile work]
aws_access_key_id = of-the-profile
aws_secret_access_key = secret
"""


@pytest.mark.parametrize("name", ["assumeRoles", "accessKey", "sharedCredentialsFiles"])
def test_credentials_that_only_the_provider_would_have_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"aws:{name} .*\n.*\n.*only the provider .*\n.*set aws:profile"):
        read("dev", [f"aws:{name}=[x]"])


def test_the_stacks_profile_is_whose_name_these_commands_ask_in(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config").write_text(PROFILE)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "another")  # so that it is put back afterwards
    read("dev", ["aws:profile=work"])
    assert os.environ["AWS_PROFILE"] == "work"
    signer = clients(REGION)("sts")._request_signer
    assert signer._credentials.access_key == "of-the-profile"


def test_the_stacks_profile_is_whose_token_the_cluster_gets() -> None:
    def tokens_of(recorder) -> list[list[str]]:
        providers = [r for r in recorder.resources if r.typ == "pulumi:providers:kubernetes"]
        return [json.loads(p.inputs["kubeconfig"])["users"][0]["user"]["exec"]["args"] for p in providers]

    before = tokens_of(aws_stack())
    pulumi.runtime.set_config("aws:profile", "work")
    try:
        after = tokens_of(aws_stack())
    finally:
        pulumi.runtime.set_all_config({})  # as before: the settings come to the stack otherwise
    assert before
    assert [args[-2:] for args in after] == [["--profile", "work"]] * len(before)
    assert "--profile" not in str(before)
