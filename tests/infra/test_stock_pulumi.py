"""The program with stock tools: a clone, a file backend, the local cluster, and manual changes with helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit.aws_emulator.pulumi_engine import python_command

from .recording_mocks import ROOT

KUBECONFIG = Path("/var/lib/paddle-training/kubeconfig")
TOOLS = ("pulumi", "pulumi-language-python", "pulumi-resource-kubernetes")


def _pulumi(project: Path, home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run pulumi with this Python and nothing of the user's environment, except for the variables `more`."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PULUMI_HOME": str(home / "pulumi"),
        "PULUMI_BACKEND_URL": f"file://{home}",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
    } | more
    return subprocess.run(
        ["pulumi", "--non-interactive", *arguments],
        cwd=project, env=environment, capture_output=True, text=True, timeout=720, check=False,
    )  # fmt: skip


def _project(tmp_path: Path, name: str, **values: object) -> tuple[Path, Path]:
    """Return a copy of the program with its own stack `local` in the namespace `name`, and its stack file."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or not os.access(KUBECONFIG, os.R_OK):
        pytest.skip(f"needs {', '.join(missing) or KUBECONFIG} (make cluster; make env prints the PATH)")
    project = tmp_path / "somewhere" / "else"
    project.mkdir(parents=True)
    for folder in ("infra", "charts", "launcher"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("__main__.py", "Pulumi.yaml"):
        shutil.copy(ROOT / file, project)
    settings = yaml.safe_load((ROOT / "local/Pulumi.local.yaml").read_text())
    settings["config"] |= {"paddle-training:namespace": {"name": name}, "paddle-training:values": values}
    config = project / "Pulumi.local.yaml"
    config.write_text(yaml.safe_dump(settings))
    assert _pulumi(project, tmp_path, "stack", "init", "local").returncode == 0
    return project, config


@pytest.mark.e2e
@pytest.mark.seconds(100)
def test_manual_upgrade_shows_in_preview_and_up_reverts_it(tmp_path: Path) -> None:
    name = f"drift-{uuid.uuid4().hex[:8]}"
    own = {"jobName": name, "training": {"passes": 2, "args": ["--l2=0.1"]}, "data": {"enabled": False}}
    project, config = _project(tmp_path, name, **own, scheduling={"suspend": True})
    fast = {"PULUMI_PYTHON_CMD": str(python_command(tmp_path))}

    def pulumi(*words: str, **more: str) -> str:
        ended = _pulumi(project, tmp_path, *words, "-s", "local", **more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def helm(*words: str) -> str:
        argv = ["helm", "--kubeconfig", str(KUBECONFIG), "-n", name, *words]
        return subprocess.run(argv, cwd=project, capture_output=True, text=True, check=True).stdout

    def effective() -> dict[str, Any]:
        return dict(yaml.safe_load(helm("get", "values", "paddle-training", "--all", "-o", "yaml")))

    try:
        assert "5 created" in pulumi("up", "--yes", "--skip-preview")
        before = effective()
        by_hand = tmp_path / "by_hand.yaml"
        given = yaml.safe_load(helm("get", "values", "paddle-training", "-o", "yaml"))
        given["training"] = {
            "passes": 2,
            "keepCheckpoints": 7,
            "batchSize": 33,
            "config": given["training"]["config"],
        }
        by_hand.write_text(yaml.safe_dump({**given, "trainers": 2, "podLabels": {"by": "hand"}}))
        upgrade = ("upgrade", "paddle-training", "charts/paddle-training", "--reset-values", "-f")
        helm(*upgrade, str(by_hand))
        changed = (
            "training.keepCheckpoints",
            "training.batchSize",
            "trainers",
            "podLabels.by",
            "training.args",
        )
        # A refresh merges the live values into those of the state, and must not hide the drift.
        for command in (["preview"], ["up", "--yes", "--refresh", "--skip-preview"]):
            drift = pulumi(*command, "--diff", **fast)
            assert [key for key in changed if key not in drift] == [], drift
            assert "training.passes" not in drift
        assert effective() == before
        pulumi("preview", "--refresh", "--expect-no-changes", **fast)

        # Changes of the stack's settings are not drift, and neither is a manual upgrade to the same values.
        config.write_text(config.read_text().replace("passes: 2", "passes: 3"))
        assert "manual changes" not in pulumi("up", "--yes", "--skip-preview", "--diff", **fast)
        helm("upgrade", "paddle-training", "charts/paddle-training", "--reuse-values")
        pulumi("preview", "--refresh", "--expect-no-changes", **fast)
    finally:
        pulumi("destroy", "--yes", "--skip-preview", **fast)
