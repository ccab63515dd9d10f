"""The program as a person with stock tools runs it: a clone, a file backend and `pulumi preview`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .support import ROOT

KUBECONFIG = Path("/var/lib/paddle-training/kubeconfig")
TOOLS = ("pulumi", "pulumi-language-python", "pulumi-resource-kubernetes")


def _pulumi(project: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PULUMI_HOME": str(home / "pulumi"),
        "PULUMI_BACKEND_URL": f"file://{home}",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "1",
    }
    return subprocess.run(
        ["pulumi", "--non-interactive", *arguments],
        cwd=project, env=environment, capture_output=True, text=True, timeout=720, check=False,
    )  # fmt: skip


@pytest.mark.e2e
def test_a_stock_preview_needs_neither_root_nor_go_nor_local(tmp_path: Path) -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or not os.access(KUBECONFIG, os.R_OK):
        pytest.skip(f"needs {', '.join(missing) or KUBECONFIG} (make cluster; make env prints the PATH)")
    project = tmp_path / "somewhere" / "else"
    project.mkdir(parents=True)
    for name in ("infra", "charts", "launcher"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__main__.py", "Pulumi.yaml", "local/Pulumi.local.yaml"):
        shutil.copy(ROOT / name, project)
    config = project / "Pulumi.local.yaml"
    own = "config:\n  paddle-training:namespace: {name: stock-preview}"
    config.write_text(config.read_text().replace("config:", own, 1))
    assert _pulumi(project, tmp_path, "stack", "init", "local").returncode == 0
    preview = _pulumi(project, tmp_path, "preview", "-s", "local")
    assert preview.returncode == 0, preview.stdout + preview.stderr
    assert "5 to create" in preview.stdout

    config.write_text(config.read_text().replace(str(KUBECONFIG), str(tmp_path / "none")))
    refused = _pulumi(project, tmp_path, "preview", "-s", "local")
    assert refused.returncode != 0
    assert "paddle-training:kubeconfig.path" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr
