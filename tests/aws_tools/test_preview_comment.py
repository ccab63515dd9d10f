"""The comment on a pull request shows changes, failures, and what was not compared; the branch cannot write it."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from testkit.written_files import write_files, write_script
from tests.aws_emulator.conftest import account, moto
from tests.aws_tools.conftest import ROOT
from tests.chart.chart_tools import tool
from tests.infra.recording_mocks import aws_stack
from tests.infra_emulated.conftest import dev_stack

__all__ = ["account", "dev_stack", "moto"]

SCRIPT, CHART = ROOT / ".github" / "preview.sh", "charts/paddle-training"
IMAGE = "example.com/launcher@sha256:" + "0" * 64
PULUMI = """#!/bin/bash
if [ "$1" = stack ]; then cat {folder}/kubeconfig; else echo "$@"; cat {folder}/output; exit "$(cat {folder}/code)"; fi
"""
Write = Callable[..., str]


@pytest.fixture
def comment(tmp_path: Path) -> Write:
    """Return a function that writes the comment for a cluster at `server`, with a fake pulumi, and returns its text."""
    tool("helm")
    for side in ("base", "head"):
        for folder in ("infra", "aws", CHART):
            shutil.copytree(
                ROOT / folder, tmp_path / side / folder, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "Pulumi.dev.yaml", tmp_path / side)
    fake = write_script(tmp_path / "bin" / "pulumi", PULUMI.format(folder=tmp_path))
    environment = {**os.environ, "STACK": "dev", "PYTHON": sys.executable, "PYTHONPATH": ""}
    environment["PATH"] = f"{fake.parent}:{os.environ['PATH']}"

    def write(server: str = "", output: str = "+ create\n", code: int = 0) -> str:
        cluster = {"clusters": [{"cluster": {"server": server}}]}
        kubeconfig = json.dumps(cluster) if server else ""
        write_files(tmp_path, {"kubeconfig": kubeconfig, "output": output, "code": str(code)})
        argv = ["bash", str(SCRIPT), str(tmp_path / "comment.md")]
        done = subprocess.run(
            argv, cwd=tmp_path / "head", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return (tmp_path / "comment.md").read_text()

    return write


@pytest.mark.slow
def test_comment_shows_failure_unreachable_cluster_and_limits_text(comment: Write) -> None:
    text = comment()
    assert "--exclude" not in text, "without a cluster there is nothing to exclude"
    assert "The rendered chart does not change." in text
    assert "failed" not in text
    text = comment("https://127.0.0.1:1", output="```\n`````@everyone\n" + "line\n" * 20_000, code=3)
    assert "**The preview failed** (exit code 3)" in text
    assert re.search(r"\*\*Not compared:\*\* namespace and release, .*\(curl: .*127\.0\.0\.1", text)
    assert "--exclude **kubernetes:** --exclude-dependents" in text
    assert "\n```\n```@everyone\n" in text, "no line closes the code block of four backticks"
    assert len(text) < 40_000
    assert "… cut here" in text
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as api:
        threading.Thread(target=api.handle_request, daemon=True).start()
        text = comment(f"http://127.0.0.1:{api.server_port}")
    assert "--exclude" not in text, "an API server that rejects a request is reachable"
    assert "Not compared" not in text


@pytest.mark.slow
def test_comment_has_diff_of_rendered_chart_or_why_there_is_none(comment: Write, tmp_path: Path) -> None:
    template = tmp_path / "head" / CHART / "templates" / "service.yaml"
    template.write_text(
        template.read_text().replace("publishNotReadyAddresses: true", "publishNotReadyAddresses: false")
    )
    lines = comment().splitlines()
    assert {"-  publishNotReadyAddresses: true", "+  publishNotReadyAddresses: false"} <= set(lines)
    (tmp_path / "base" / "Pulumi.dev.yaml").unlink()
    assert "-The base could not be rendered, so the comparison is incomplete." in comment()


def test_code_of_the_branch_never_runs_with_the_right_to_write_the_comment() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "preview.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights == {
        "preview": {"contents": "read", "id-token": "write"},
        "comment": {"pull-requests": "write"},
    }
    download, limit, post = workflow["jobs"]["comment"]["steps"]
    assert download["uses"].startswith("actions/download-artifact@")
    assert limit["run"].startswith("head --bytes=65000 "), "GitHub's limit, whatever the first job wrote"
    assert "${{" not in limit["run"], "a text of the branch would become code"
    assert post["uses"].startswith("marocchino/sticky-pull-request-comment@")
    assert set(post["with"]) == {"header", "path"}
    uploads = [s for s in workflow["jobs"]["preview"]["steps"] if "upload-artifact" in s.get("uses", "")]
    assert [step["with"]["name"] for step in uploads] == [download["with"]["name"]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_preview_unreachable_cluster_excludes_only_namespace_and_release(dev_stack) -> None:
    engine = dev_stack("dev", f"image={IMAGE}")
    (flags,) = re.findall(r"exclude=\((--.*)\)", SCRIPT.read_text())
    part = engine.preview(*shlex.split(flags))
    created = {step.type for step in part.steps if step.op == "create"}
    registered = {args.typ for args in aws_stack(image=IMAGE).resources}
    assert "kubernetes:helm.sh/v3:Release" in registered
    assert {kind for kind in registered - created if not kind.startswith("kubernetes:")} == set()
    # The provider stays in the preview; without resources, it does not contact the cluster.
    assert {kind for kind in created if kind.startswith("kubernetes:")} == set()
