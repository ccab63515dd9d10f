"""All tools use the credentials of the environment; credentials in the settings of a stack are rejected."""

from __future__ import annotations

import json
import os

import pytest

from aws.stack_access import read_stack
from infra import training
from infra.settings import SettingsError, load_settings
from tests.infra.recording_mocks import AWS, aws_stack, config

NAMES = ["assumeRoles", "accessKey", "sharedCredentialsFiles", "profile"]


@pytest.mark.parametrize("name", NAMES)
def test_read_stack_credentials_in_settings_raises(name: str) -> None:
    with pytest.raises(
        SettingsError,
        match=rf"aws:{name} .*not `pulumi login`, kubectl.*\n.*config rm aws:{name}.*AWS_PROFILE=",
    ):
        read_stack("dev", [f"aws:{name}=[x]"])


@pytest.mark.parametrize("name", NAMES)
def test_program_credentials_in_settings_raises(name: str) -> None:
    with pytest.raises(SettingsError, match=f"aws:{name} "):
        load_settings({**config(**AWS), f"aws:{name}": "work"})


def test_read_stack_leaves_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI gets keys for each run, and has no profile."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-run")
    before = dict(os.environ)
    read_stack("dev")
    assert dict(os.environ) == before


def test_kubeconfig_names_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "read_revisions", lambda *where: [])
    monkeypatch.setenv("AWS_PROFILE", "work")
    providers = [r for r in aws_stack().resources if r.typ == "pulumi:providers:kubernetes"]
    assert providers
    for provider in providers:
        [user] = json.loads(provider.inputs["kubeconfig"])["users"]
        assert "profile" not in str(user)
        assert not user["user"]["exec"].get("env"), "the command inherits the environment of its user"
