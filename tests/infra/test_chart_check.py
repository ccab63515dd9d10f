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
        ({"port": 65535}, "port", "at most 6553"),
        ({"port": 80}, "port", "got 80, want 1,024"),
        ({"peerPort": 7165}, "peerPort", "outside 7164 to 7165"),
        ({"peerPort": 65536}, "peerPort", "want 65,535"),
        ({"hostPorts": True, "port": 10249}, "port", "ports 10250 to 10250 stay free"),
        ({"hostPorts": True, "port": 30000}, "port", "ports 30000 to 32767 stay free"),
        ({"gradientNum": 2}, "gradientNum", "3, the number of trainers"),
        ({"data": {"splitCount": 2}}, "data.splitCount", "3, the number of trainers"),
        ({"jobName": "x" * 46}, "jobName", "does not match pattern"),
        ({"training": {"extraArgs": ["--port=1"]}}, "training.extraArgs", "no value of this chart sets"),
        ({"data": {"source": "ftp://x/y"}}, "data.source", "does not match pattern"),
    ],
)
def test_values_that_the_chart_refuses_are_told_as_settings_are(values: Any, key: str, limit: str) -> None:
    problems = _asked(values=values)
    assert key in [problem.key for problem in problems]
    found = next(problem for problem in problems if problem.key == key)
    assert limit in found.limit
    assert found.reason
    assert found.mend


@pytest.mark.parametrize(
    ("values", "key", "mend"),
    [
        ({"trianers": 3}, "trianers", "did you mean trainers?"),
        ({"training": {"batchsize": 64}}, "training.batchsize", "did you mean batchSize?"),
        ({"xyzzy": 1}, "xyzzy", "correct it in the stack's valuesFiles or values"),
    ],
)
def test_a_misspelt_value_is_told_with_the_one_that_is_like_it(values: Any, key: str, mend: str) -> None:
    (problem,) = _asked(values=values)
    assert (problem.key, problem.mend) == (key, mend)
    assert "trainers" in problem.limit or "batchSize" in problem.limit


def test_all_of_the_charts_faults_are_in_one_message() -> None:
    assert len(_asked(values={"peerPort": 7165, "gradientNum": 9})) == 2


def test_what_the_schema_refuses_inside_is_told_with_its_value_and_what_it_is_for() -> None:
    found = _asked(values={"jobName": "UPPER", "training": {"stallSeconds": 1}})
    told = {problem.key: problem for problem in found}  # helm has no order of its own
    assert {key: problem.value for key, problem in told.items()} == {
        "training.stallSeconds": 1,
        "jobName": "UPPER",
    }
    assert "DNS label of at most 45 characters" in told["jobName"].reason


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
