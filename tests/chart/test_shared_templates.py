"""Secrets in plain values are rejected by both charts, and both have the same file of shared templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from chart_tools import CHART, ONE_MACHINE, SERVING, helm_template, one, render, run_json

pytestmark = pytest.mark.slow

SECRETS = yaml.safe_load((Path(__file__).parent / "secrets.yaml").read_text("utf-8"))


def rejected(variables: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names among the variables that the training chart rejects as secrets."""
    env = [{"name": name, "value": value} for name, value in variables]
    done = helm_template(ONE_MACHINE, values={"extraEnv": env, "runtime": "v1"})
    shown = [value for _, value in variables if len(value) > 12 and value in done.stderr]
    assert not shown, "a value is shown"
    faults = [line for line in done.stderr.splitlines() if '"(not shown)"' in line]
    assert all("extraEnv" in fault and "Put it into a Secret" in fault for fault in faults)
    return [fault.split()[2] for fault in faults]


def test_variables_with_a_secret_are_rejected_without_showing_it() -> None:
    assert rejected(SECRETS["secret"]) == [name for name, _ in SECRETS["secret"]]


def test_variables_about_tokens_keys_and_passwords_pass() -> None:
    assert rejected(SECRETS["plain"]) == []


def test_serving_chart_rejects_secrets_by_the_same_templates() -> None:
    name = "_shared.tpl"
    assert (SERVING / "templates" / name).read_text() == (CHART / "templates" / name).read_text()
    values = {"image": "example.org/a", "extraEnv": [{"name": "HF_TOKEN", "value": "hidden"}]}
    done = helm_template(SERVING / "ci" / "export.yaml", values=values, chart=SERVING)
    assert "extraEnv HF_TOKEN must be given by valueFrom.secretKeyRef" in done.stderr
    assert "hidden" not in done.stderr


def test_option_of_a_script_with_a_secret_is_rejected_without_showing_it() -> None:
    values = {"training": {"args": ["--wandb-api-key=hidden", "--max_tokens=3", "--url=https://h/?sig=x"]}}
    done = helm_template(CHART / "ci" / "collective.yaml", values=values)
    for option in ("wandb-api-key", "url"):
        assert f"training.args --{option} is" in done.stderr
    assert "max_tokens" not in done.stderr
    assert "hidden" not in done.stderr


@pytest.mark.parametrize("url", SECRETS["signed"])
@pytest.mark.parametrize("key", ["source", "testSource"])
def test_signed_address_is_rejected_with_the_way_by_a_secret(key: str, url: str) -> None:
    data = {"source": "file://a", key: url}
    done = helm_template(ONE_MACHINE, values={"data": data})
    assert f'data.{key} is "(not shown)"' in done.stderr
    assert "hidden" not in done.stderr
    if "@" not in url and key == "source":
        assert "set data.sourceSecret.name and .key to it" in done.stderr


def test_source_in_a_secret_is_identified_by_reference_and_sha256() -> None:
    reference = {"sourceSecret": {"name": "addresses", "key": "train"}, "sha256": "a" * 64}
    data = {"source": "", **reference, "member": "", "tables": []}
    others = ({"sourceSecret": {"name": "other", "key": "train"}}, {"sha256": "b" * 64}, {"seed": 7})
    found = [
        run_json(render(ONE_MACHINE, values={"data": data | other}))["dataDigest"] for other in ({}, *others)
    ]
    assert len(set(found)) == 4


def test_config_map_has_neither_variables_nor_queries_of_addresses() -> None:
    env = [{"name": "MY_VARIABLE", "value": "mine"}]
    data = {"source": "https://h/a.csv?x=unusual", "testSource": "https://h/b.csv?x=unusual"}
    config = one(render(ONE_MACHINE, values={"extraEnv": env, "data": data}), "ConfigMap")
    assert set(config["data"]) == {"run.json"}
    text = yaml.safe_dump(config)
    assert "MY_VARIABLE" not in text
    assert "unusual" not in text
    shown = json.loads(config["data"]["run.json"])["data"]
    assert (shown["source"], shown["testSource"]) == ("https://h/a.csv", "https://h/b.csv")
