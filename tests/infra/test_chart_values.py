"""Chart values that the program builds from settings, values files and outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import chart_values
from infra.settings_errors import SettingsError

from .recording_mocks import ROOT, aws_settings, local_settings


@pytest.mark.parametrize(
    ("storage", "wanted"),
    [
        ({"type": "hostPath", "path": "/s"}, {"type": "hostPath", "hostPath": {"path": "/s"}}),
        ({"type": "nfs", "server": "n"}, {"type": "nfs", "nfs": {"server": "n", "path": "/"}}),
        ({"type": "existingClaim", "claim": "c"}, {"type": "existingClaim", "existingClaim": {"name": "c"}}),
    ],
)
def test_release_values_contain_storage(storage: Any, wanted: Any) -> None:
    built = chart_values.release_values(local_settings(storage=storage), chart_values.StackOutputs("i"), {})
    assert built == {"image": "i", "storage": wanted}


@pytest.mark.parametrize(("machine", "wanted"), [("m7g.large", "arm64"), ("m7i.large", "amd64")])
def test_release_values_of_graviton_nodes_select_their_architecture(machine: str, wanted: str) -> None:
    chosen = aws_settings(nodes={"instanceTypes": [machine]})
    built = chart_values.release_values(chosen, chart_values.StackOutputs("i"), {})
    chart = chart_values.read_yaml(ROOT / chart_values.CHART / "values.yaml", "chart")
    assert chart_values.merge_values(chart, built)["scheduling"]["architecture"] == wanted
    own = {"scheduling": {"architecture": "", "queue": "research"}}
    assert (
        chart_values.release_values(chosen, chart_values.StackOutputs("i"), own)["scheduling"]
        == own["scheduling"]
    )


def test_release_values_of_gpu_nodes_tolerate_their_taint_in_addition_to_own_tolerations() -> None:
    """All pods of the release run on the GPU nodes; the user's list would replace that of the stack."""
    chosen = aws_settings(nodes={"instanceTypes": ["g6.xlarge"]})
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    own = {"key": "team", "operator": "Exists"}
    given = {"scheduling": {"tolerations": [own], "queue": "research"}}
    for user, wanted in (
        ({}, [taint]),
        ({"scheduling": {"tolerations": None}}, [taint]),
        (given, [own, taint]),
    ):
        built = chart_values.release_values(chosen, chart_values.StackOutputs("i"), user)
        assert built["scheduling"]["tolerations"] == wanted
    assert built["scheduling"]["queue"] == "research"
    assert given["scheduling"]["tolerations"] == [own], "the user's values must not change"
    for wrong in ({"scheduling": "x"}, {"scheduling": {"tolerations": "x"}}):
        assert chart_values.release_values(chosen, chart_values.StackOutputs("i"), wrong)["scheduling"]
    assert "scheduling" not in chart_values.release_values(
        local_settings(), chart_values.StackOutputs("i"), {}
    )


def test_release_values_nfs_defaults_to_file_system_of_stack() -> None:
    chosen = aws_settings(storage={"type": "nfs"})
    built = chart_values.release_values(
        chosen, chart_values.StackOutputs("i", file_system_host="fs.host"), {}
    )
    assert built["storage"]["nfs"]["server"] == "fs.host"


def test_user_values_later_files_and_values_override(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: {passes: 1, mode: sync}\nlist: [1, 2]\n")
    (tmp_path / "b.yaml").write_text("training: {passes: 2}\nlist: [3]\n")
    chosen = local_settings(valuesFiles=["a.yaml", "b.yaml"], values={"trainers": 5})
    own = chart_values.user_values(chosen, tmp_path)
    assert own == {"training": {"passes": 2, "mode": "sync"}, "list": [3], "trainers": 5}


def test_user_values_null_restores_default(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: {passes: 1}\n")
    (tmp_path / "b.yaml").write_text("training: {passes: null}\n")
    assert chart_values.user_values(local_settings(valuesFiles=["a.yaml", "b.yaml"]), tmp_path) == {
        "training": {}
    }


def test_user_values_null_for_a_value_without_limit_raises(tmp_path: Path) -> None:
    """Helm passes such a null to the chart; Pulumi's Release omits it, and the default would silently apply."""
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
    (tmp_path / "a.yaml").write_text("training: {deadlineSeconds: null}\n")
    with pytest.raises(SettingsError, match=r"training\.deadlineSeconds.*\n.*\n.*default"):
        chart_values.user_values(local_settings(valuesFiles=["a.yaml"]), tmp_path)
    with pytest.raises(SettingsError, match=r"workDir\.sizeLimit"):
        chart_values.user_values(
            local_settings(valuesFiles=[], values={"workDir": {"sizeLimit": None}}), tmp_path
        )
    # What counts is the last source that contains the value.
    (tmp_path / "b.yaml").write_text("training: {passes: 2}\n")
    with pytest.raises(SettingsError, match=r"training\.deadlineSeconds"):
        chart_values.user_values(local_settings(valuesFiles=["a.yaml", "b.yaml"]), tmp_path)
    later = {"training": {"deadlineSeconds": 60}}
    own = chart_values.user_values(local_settings(valuesFiles=["a.yaml", "b.yaml"], values=later), tmp_path)
    assert own["training"] == {"passes": 2, "deadlineSeconds": 60}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), ("[1]", "list"), ("a: [", "not YAML")]
)
def test_user_values_unusable_file_raises(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        chart_values.user_values(local_settings(valuesFiles=["a.yaml"]), tmp_path)
    assert caught.value.problems[0].key == "paddle-training:valuesFiles"


def test_release_values_replace_bucket_placeholder() -> None:
    chosen = aws_settings()
    own = {"data": {"source": "s3://{bucket}/a"}, "training": {"extraArgs": ["--x={bucket}"]}, "trainers": 3}
    built = chart_values.release_values(chosen, chart_values.StackOutputs("i", bucket="b"), own)
    assert built["data"]["source"] == "s3://b/a"
    assert built["training"]["extraArgs"] == ["--x=b"]
    assert built["trainers"] == 3


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
