"""No secret becomes plain text in a release: Pulumi secrets in the stack's settings are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.settings import SettingsError, load_settings, read_stack_config

from .recording_mocks import AWS, config

HIDDEN = {
    "values": {"training": {"extraArgs": [{"secure": "v1:x"}]}},
    "values.extraEnv": {"extraEnv": [{"name": "A", "value": {"secure": "v1:x"}}]},
    "image": {"secure": "v1:x"},
}


@pytest.mark.parametrize("key", ["values", "image", "valuesFiles"])
def test_pulumi_secret_in_a_setting_is_rejected_without_showing_it(key: str) -> None:
    given = config(**AWS, values={"extraEnv": [{"name": "A", "value": "s3cret"}], "nonsense": 1})
    with pytest.raises(SettingsError) as error:
        load_settings(given, secrets=[f"paddle-training:{key}", "aws:secretKey"])
    (problem,) = error.value.problems
    assert problem.key == f"paddle-training:{key}"
    assert "s3cret" not in str(error.value)
    assert "kubectl create secret" in problem.fix
    assert "valueFrom.secretKeyRef" in problem.fix


def test_secret_of_the_provider_is_no_setting_of_the_program() -> None:
    load_settings(config(**AWS), secrets=["aws:secretKey"])


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN)
def test_encrypted_value_in_a_stack_file_is_rejected(tmp_path: Path, value: Any) -> None:
    key = "image" if "secure" in value else "values"
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps({"config": {f"paddle-training:{key}": value}}))
    with pytest.raises(SettingsError, match=rf"paddle-training:{key}"):
        load_settings(read_stack_config(tmp_path, "dev"))
    other = {"config": {"aws:secretKey": {"secure": "v1:x"}, "aws:region": "us-west-2"}}
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps(other))
    with pytest.raises(SettingsError, match="aws:secretKey is"):
        load_settings(read_stack_config(tmp_path, "dev"))
