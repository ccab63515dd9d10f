"""Chart values that the chart rejects are reported as problems before the first resource."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import stack_builder
from infra.settings_errors import Problem, SettingsError
from infra.settings_loader import load_settings
from infra.stack_inputs import read_stack_inputs

from .recording_mocks import AWS, LOCAL, REGION, ROOT, aws_settings, config


def _asked(**keys: Any) -> list[Problem]:
    chosen = aws_settings(**keys)
    try:
        stack_builder.check_chart_values(read_stack_inputs(chosen, "paddle-training", "dev", ROOT))
    except SettingsError as error:
        return list(error.problems)
    return []


@pytest.mark.slow
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
        ({"jobPath": "/a:b"}, "jobPath", "does not match pattern"),
        ({"training": {"extraArgs": ["--port=1"]}}, "training.extraArgs", "no value of this chart sets"),
        ({"data": {"source": "ftp://x/y"}}, "data.source", "does not match pattern"),
    ],
)
def test_chart_rejections_become_problems(values: Any, key: str, limit: str) -> None:
    problems = _asked(values=values)
    assert key in [problem.key for problem in problems]
    found = next(problem for problem in problems if problem.key == key)
    assert limit in found.limit
    assert found.reason
    assert found.fix


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "key", "fix"),
    [
        ({"trianers": 3}, "trianers", "did you mean trainers?"),
        ({"training": {"batchsize": 64}}, "training.batchsize", "did you mean batchSize?"),
        ({"xyzzy": 1}, "xyzzy", "correct it in the stack's valuesFiles or values"),
    ],
)
def test_chart_check_misspelt_value_suggests_similar_value(values: Any, key: str, fix: str) -> None:
    (problem,) = _asked(values=values)
    assert (problem.key, problem.fix) == (key, fix)
    assert "trainers" in problem.limit or "batchSize" in problem.limit


@pytest.mark.slow
def test_chart_check_reports_all_rejections() -> None:
    assert len(_asked(values={"peerPort": 7165, "gradientNum": 9})) == 2


@pytest.mark.slow
def test_chart_check_schema_rejection_has_value_and_description() -> None:
    found = _asked(values={"jobName": "UPPER", "training": {"progressDeadlineSeconds": 1}})
    by_key = {problem.key: problem for problem in found}  # helm reports them in random order
    assert {key: problem.value for key, problem in by_key.items()} == {
        "training.progressDeadlineSeconds": 1,
        "jobName": "UPPER",
    }
    assert "DNS label of at most 45 characters" in by_key["jobName"].reason


@pytest.mark.slow
def test_chart_check_old_kubernetes_version_rejects() -> None:
    (problem,) = _asked(cluster={"admins": ["role/Admin"], "version": "1.28"})
    assert "kubeVersion" in str(problem)


@pytest.mark.slow
@pytest.mark.parametrize("image", ["", "registry/launcher@sha256:1"])
@pytest.mark.parametrize(
    "example", sorted(path.name for path in (ROOT / "charts/paddle-training/examples").glob("*.yaml"))
)
def test_chart_check_examples_are_accepted(example: str, image: str) -> None:
    assert _asked(image=image, valuesFiles=[f"charts/paddle-training/examples/{example}"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("keys", [AWS, LOCAL])
def test_build_stack_invalid_values_registers_nothing(keys: dict[str, Any]) -> None:
    region = REGION if keys is AWS else None
    chosen = load_settings(config(region=region, **{**keys, "values": {"port": 65535}}))
    # There is no engine here, not even a mock: a registration would raise another error.
    with pytest.raises(SettingsError, match="TCP ports end at 65535"):
        stack_builder.build_stack(chosen, "paddle-training", "dev", ROOT, REGION)


@pytest.mark.parametrize("keys", [{"compute": "off"}, {"release": {"keepManualValues": True}}])
def test_chart_check_skipped_without_release(keys: dict[str, Any]) -> None:
    assert _asked(**keys, values={"port": 65535}) == []


@pytest.mark.slow
def test_chart_check_without_helm_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(stack_builder.pulumi.log, "warn", said.append)
    monkeypatch.setenv("PATH", str(Path("/nowhere")))
    assert _asked(values={"port": 65535}) == []
    assert len(said) == 1
    assert "helm" in said[0]
