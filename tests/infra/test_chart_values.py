"""Chart values that the program builds from settings, values files and outputs."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import jmespath
import pytest
import yaml

from infra import chart_values, settings, stack_builder
from infra.settings import SettingsError
from launcher.cli import releases
from testkit.written_files import write_files

from .recording_mocks import ROOT, aws_settings, local_settings

TABLES = yaml.safe_load(Path(__file__).with_name("chart_values.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", TABLES["release"], ids=lambda row: row["rule"])
def test_release_values_follow_the_rule(row: dict[str, Any]) -> None:
    chosen = {"aws": aws_settings, "kubeconfig": local_settings}[row.get("target", "kubeconfig")]
    facts = chart_values.StackOutputs("i", file_system_host="fs.host", bucket="b")
    user = copy.deepcopy(row.get("user", {}))
    built = chart_values.release_values(chosen(**row.get("settings", {})), facts, user)
    assert user == row.get("user", {}), "the user's values must not change"
    wanted = row.get("sees", user)
    assert {text: jmespath.search(text, built) for text in wanted} == wanted


@pytest.mark.parametrize("row", TABLES["user"], ids=lambda row: row["rule"])
def test_user_values_follow_the_rule(row: dict[str, Any], tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.yaml" for number, _ in enumerate(row.get("files", ()))]
    for path, content in zip(files, row.get("files", ()), strict=True):
        if content is not None:
            path.write_text(content)
    chosen = local_settings(valuesFiles=[path.name for path in files], values=row.get("values", {}))
    with pytest.raises(SettingsError, match=row["raises"]) if "raises" in row else contextlib.nullcontext():
        assert chart_values.user_values(chosen, tmp_path) == row["gives"]


MERGES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": ""}, {"a": {"b": 1, "c": [3]}, "d": ""}),
    ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
    ({"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {"b": None}}),
    ({"a": {"b": 1}}, {"a": None}, {"a": None}),
    ({"a": None}, {"a": {"b": None, "c": 1}}, {"a": {"b": None, "c": 1}}),
]


@pytest.mark.parametrize(("base", "over", "merged"), MERGES)
def test_program_and_launcher_merge_values_alike(base: Any, over: Any, merged: Any) -> None:
    """A null stays until helm merges the values into the chart's defaults; there it removes the key."""
    assert settings.merge_values(base, over) == merged
    assert releases.merge_values(base, over) == merged


@pytest.mark.slow
def test_helm_merges_files_of_values_like_merge_values(tmp_path: Path) -> None:
    about, template = "apiVersion: v2\nname: x\nversion: 0.1.0\n", "{{ .Values | toJson }}\n"
    files = {"Chart.yaml": about, "values.yaml": "removed: 1\n", "templates/all.yaml": template}
    chart = write_files(tmp_path / "chart", files)
    argv = ["helm", "template", "x", str(chart)]
    for number, pair in enumerate(zip(*((base, over) for base, over, _ in MERGES), strict=True)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps({"removed": None, **{f"m{at}": part for at, part in enumerate(pair)}}))
        argv += ["--values", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    (seen,) = filter(None, yaml.safe_load_all(done.stdout))
    assert seen == {f"m{at}": merged for at, (*_, merged) in enumerate(MERGES)}


def test_null_is_rejected_for_exactly_the_values_without_a_limit_that_have_one_by_default() -> None:
    schema = json.loads((ROOT / chart_values.CHART / "values.schema.json").read_text())

    def nullable(node: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        if "null" in node["type"] and node.get("default") is not None:
            return [path]
        return [
            found
            for key, below in node.get("properties", {}).items()
            for found in nullable(below, (*path, key))
        ]

    assert set(nullable(schema)) == set(chart_values.NO_LIMIT)


def test_release_values_exist_in_chart() -> None:
    chart = yaml.safe_load((ROOT / chart_values.CHART / "values.yaml").read_text())

    def unknown(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
        return [
            key
            for key, value in ours.items()
            if key not in theirs or (isinstance(value, dict) and theirs[key] and unknown(value, theirs[key]))
        ]

    facts = chart_values.StackOutputs("i", "fs-1", "fsap-1", "host", "b")
    for storage in ({"type": "efs-csi"}, {"type": "nfs"}, {"type": "hostPath", "path": "/s"}):
        chosen = aws_settings(storage=storage)
        assert unknown(chart_values.release_values(chosen, facts, {}), chart) == []


def _rejection(**keys: Any) -> str:
    chosen = aws_settings(**keys)
    try:
        chart_values.check_chart(chart_values.read_stack_inputs(chosen, "paddle-training", "dev", ROOT))
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (
            {"values": {"peerPort": 7165, "gradientNum": 9, "hostPorts": True}},
            ["peerPort is 7165, but must be outside 7164 to 7165", "gradientNum is 9, but must be 3"],
        ),
        (
            {"values": {"port": 80, "trianers": 3}},
            ["/port': minimum: got 80, want 1,024", "'trianers' not allowed"],
        ),
        ({"cluster": {"admins": ["role/Admin"], "version": "1.28"}}, ["kubeVersion"]),
    ],
)
def test_rejections_of_chart_are_passed_on_before_any_resource(keys: Any, parts: list[str]) -> None:
    text = _rejection(**keys)
    for part in (*parts, "no resource was created", "Fix: correct the stack's valuesFiles or values"):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize("image", ["", "registry/launcher@sha256:1"])
@pytest.mark.parametrize(
    "example", sorted(path.name for path in (ROOT / "charts/paddle-training/examples").glob("*.yaml"))
)
def test_examples_are_accepted_by_chart(example: str, image: str) -> None:
    assert _rejection(image=image, valuesFiles=[f"charts/paddle-training/examples/{example}"]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("given", [aws_settings, local_settings])
def test_build_stack_invalid_values_registers_nothing(given: Any) -> None:
    # There is no engine here, not even a mock: a registration would raise another error.
    chosen = given(values={"port": 65535})
    with pytest.raises(SettingsError, match="TCP ports end at 65535"):
        stack_builder.build_stack(chosen, "paddle-training", "dev", ROOT)


@pytest.mark.slow
def test_chart_values_without_helm_are_not_checked_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(stack_builder.pulumi.log, "warn", said.append)
    monkeypatch.setattr(stack_builder, "check_cluster", lambda *about: None)
    monkeypatch.setattr(stack_builder, "create_kubeconfig_stack", lambda *about: {"created": "all"})
    monkeypatch.setenv("PATH", "/nowhere")
    chosen = local_settings(values={"port": 65535})
    assert stack_builder.build_stack(chosen, "paddle-training", "dev", ROOT) == {"created": "all"}
    assert "helm is not on PATH" in said[0]


@pytest.mark.parametrize("keys", [{"compute": "off"}, {"release": {"keepManualValues": True}}])
def test_chart_is_not_checked_without_release(keys: dict[str, Any]) -> None:
    assert _rejection(**keys, values={"port": 65535}) == ""
