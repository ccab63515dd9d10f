"""The `config:` section of Pulumi.yaml with the real engine: keys, defaults, types and required values."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from infra import settings
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import Engine

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]


def test_pulumi_config_lists_settings_and_preview_rejects_wrong_ones_before_any_resource(
    dev_stack: Callable[..., Engine], account: Account
) -> None:
    engine = dev_stack("dev", "nodes.max=5")
    listed = json.loads(engine.pulumi("config", "--stack", "dev", "--json").text)
    section = yaml.safe_load(settings.pulumi_yaml())["config"]
    assert {f"paddle-training:{key}" for key in section} <= set(listed)
    assert listed["paddle-training:storage"]["objectValue"] == section["storage"]["default"]
    # A stack's object replaces the default object; the program fills in the missing keys.
    assert listed["paddle-training:nodes"]["objectValue"] == {"auto": True, "min": 0, "max": 5}

    engine.config("paddle-training:nodes.desird=3")
    rejected = engine.preview(fails=True)
    assert "paddle-training:nodes.desird" in rejected.text
    assert "did you mean desired?" in rejected.text
    assert "Traceback" not in rejected.text
    engine.pulumi("config", "set", "--stack", "dev", "nodes", "three")
    rejected = engine.preview(fails=True)
    assert "'nodes' must be of type 'object'" in rejected.text

    engine.pulumi("config", "rm", "--stack", "dev", "nodes")
    hidden = ("--secret", "--path", "values.extraEnv[0].value", "s3cret")
    engine.pulumi("config", "set", "--stack", "dev", *hidden)
    rejected = engine.preview(fails=True)
    assert "paddle-training:values is '(not shown)'" in rejected.text
    assert "valueFrom.secretKeyRef" in rejected.text
    assert "s3cret" not in rejected.text
    assert account.all() == []
