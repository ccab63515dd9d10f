"""Values that the chart refuses are refused before the first resource, in the settings' own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import settings, stack
from infra.problems import Problem, SettingsError

from .support import AWS, LOCAL, REGION, ROOT, config


def _asked(**keys: Any) -> list[Problem]:
    chosen = settings.load(config(**{**AWS, **keys}))
    try:
        stack.ask_the_chart(stack.plan(chosen, "paddle-training", "dev", ROOT))
    except SettingsError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    ("values", "key", "limit"),
    [
        ({"port": 65535}, "port", "1024 to 65534"),
        ({"port": 80}, "port", "1024 to"),
        ({"peerPort": 7165}, "peerPort", "outside 7164 to 7165"),
        ({"peerPort": 65536}, "peerPort", "1024 to 65535"),
        ({"hostPorts": True, "port": 10249}, "port", "port 10250 stays free"),
        ({"hostPorts": True, "port": 30000}, "port", "outside 30000 to 32767"),
        ({"gradientNum": 2}, "gradientNum", "trainers, which is 3"),
        ({"data": {"splitCount": 2}}, "data.splitCount", "trainers, which is 3"),
        ({"jobName": "x" * 46}, "jobName", "45 characters"),
        ({"training": {"extraArgs": ["--port=1"]}}, "training.extraArgs", "no value of this chart sets"),
        ({"data": {"source": "ftp://x/y"}}, "data.source", "s3://BUCKET/PREFIX"),
    ],
)
def test_values_that_the_chart_refuses_are_told_as_settings_are(values: Any, key: str, limit: str) -> None:
    problems = _asked(values=values)
    assert key in [problem.key for problem in problems]
    found = next(problem for problem in problems if problem.key == key)
    assert limit in found.limit
    assert found.reason
    assert found.mend


def test_what_the_schema_refuses_is_passed_on() -> None:
    (problem,) = _asked(values={"trianers": 3})
    assert "'trianers' not allowed" in str(problem)


def test_all_of_the_charts_faults_are_in_one_message() -> None:
    assert len(_asked(values={"peerPort": 7165, "jobName": "UPPER"})) == 2


def test_a_cluster_too_old_for_the_chart_is_refused() -> None:
    (problem,) = _asked(cluster={"admins": ["role/Admin"], "version": "1.28"})
    assert "kubeVersion" in str(problem)


@pytest.mark.parametrize("image", ["", "registry/launcher@sha256:1"])
@pytest.mark.parametrize(
    "example", sorted(path.name for path in (ROOT / "charts/paddle-training/examples").glob("*.yaml"))
)
def test_the_examples_are_accepted_with_and_without_an_image(example: str, image: str) -> None:
    assert _asked(image=image, valuesFiles=[f"charts/paddle-training/examples/{example}"]) == []


@pytest.mark.parametrize("keys", [AWS, LOCAL])
def test_nothing_is_registered_before_the_chart_was_asked(keys: dict[str, Any]) -> None:
    region = REGION if keys is AWS else None
    chosen = settings.load(config(region=region, **{**keys, "values": {"port": 65535}}))
    # There is no engine here, not even a mocked one: a registration would be another error.
    with pytest.raises(SettingsError, match="TCP ports end at 65535"):
        stack.build(chosen, "paddle-training", "dev", ROOT, REGION)


@pytest.mark.parametrize("keys", [{"compute": "off"}, {"release": {"keepManualValues": True}}])
def test_values_that_no_release_gets_are_not_looked_at(keys: dict[str, Any]) -> None:
    assert _asked(**keys, values={"port": 65535}) == []


def test_without_helm_it_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(stack.pulumi.log, "warn", said.append)
    monkeypatch.setenv("PATH", str(Path("/nowhere")))
    assert _asked(values={"port": 65535}) == []
    assert len(said) == 1
    assert "helm" in said[0]
