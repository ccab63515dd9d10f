"""The comment on a pull request shows changes, failures, and what was not compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from aws import preview_comment as comments
from tests.aws_tools.conftest import ROOT
from tests.chart.chart_tools import tool

CHART = "charts/paddle-training"


def make(**changes) -> str:
    about = {"stack": "dev", "code": 0, "preview": "+ create", "chart": "", "unreachable": "", **changes}
    return comments.build_comment(**about)


def test_comment_without_changes_is_short_and_has_marker() -> None:
    text = make()
    assert text.startswith("<!-- paddle-training preview of dev -->")
    assert "```diff\n+ create\n```" in text
    assert "does not change" in text
    assert "Not compared" not in text


def test_comment_failed_preview_shows_exit_code() -> None:
    assert "**The preview failed** (exit code 255)" in make(code=255, preview="error: no")


def test_comment_without_cluster_names_excluded_resources() -> None:
    text = make(unreachable="10.0.0.9: timed out", chart="-  trainers: 3")
    assert "**Not compared:** namespace and release" in text
    assert "10.0.0.9: timed out" in text
    assert "-  trainers: 3" in text


@pytest.mark.parametrize("chart", ["", "c\n" * 200_000])
def test_comment_too_long_is_cut_with_note(chart: str) -> None:
    text = make(preview="line\n" * 100_000, chart=chart)
    assert len(text) < 65_536
    assert re.search(r"… \d+ more lines", text)
    assert "### Rendered chart" in text


def test_comment_text_cannot_close_its_code_block() -> None:
    text = make(preview="```\n@everyone\x1b[31m red\x1b[0m")
    assert "````diff\n```\n@everyone red\n````" in text


def test_unreachable_returns_reason_only_without_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = {"clusters": [{"cluster": {"server": f"https://127.0.0.1:{port}"}}]}
        assert comments.why_unreachable(json.dumps(config)) == ""
    assert comments.why_unreachable(json.dumps(config)) == "127.0.0.1: Connection refused"
    assert comments.why_unreachable("not: one") == "the stack has no kubeconfig"


@pytest.mark.slow
def test_preview_excludes_kubernetes_only_if_unreachable(tmp_path: Path, monkeypatch) -> None:
    fake = tmp_path / "pulumi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def preview(port: int) -> tuple[int, str, str]:
        there = {"clusters": [{"cluster": {"server": f"https://127.0.0.1:{port}"}}]}
        answer = json.dumps({"kubeconfig": json.dumps(there)})
        fake.write_text(f"#!/bin/sh\nif [ $1 = stack ]; then echo '{answer}'; else echo \"$@\"; exit 3; fi\n")
        fake.chmod(0o755)
        return comments.run_preview("dev")

    code, text, why = preview(1)
    assert (code, why) == (3, "127.0.0.1: Connection refused")
    assert "--exclude **kubernetes:** --exclude-dependents" in text
    with socket.create_server(("127.0.0.1", 0)) as server:
        code, text, why = preview(server.getsockname()[1])
    assert (code, why) == (3, "")
    assert "--exclude" not in text


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    """Return two checkouts with settings and chart only."""
    tool("helm")
    both = tmp_path / "base", tmp_path / "head"
    for folder in both:
        shutil.copytree(ROOT / CHART, folder / CHART)
        shutil.copy(ROOT / "Pulumi.dev.yaml", folder)
    return both


@pytest.mark.slow
def test_chart_diff_compares_both_checkouts(checkouts: tuple[Path, Path]) -> None:
    base, head = checkouts
    assert comments.chart_diff(base, head, "dev") == ""
    template = head / CHART / "templates" / "service.yaml"
    template.write_text(
        template.read_text().replace("publishNotReadyAddresses: true", "publishNotReadyAddresses: false")
    )
    diff = comments.chart_diff(base, head, "dev").splitlines()
    assert "-  publishNotReadyAddresses: true" in diff
    assert "+  publishNotReadyAddresses: false" in diff


@pytest.mark.slow
def test_chart_diff_rendering_fails_returns_reason(checkouts: tuple[Path, Path]) -> None:
    base, head = checkouts
    (base / "Pulumi.dev.yaml").unlink()
    assert comments.chart_diff(base, head, "dev").startswith("The base could not be rendered")


def test_code_of_the_branch_never_runs_with_the_right_to_write_the_comment() -> None:
    text = (ROOT / ".github" / "workflows" / "preview.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    rights = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert rights == {
        "preview": {"contents": "read", "id-token": "write"},
        "comment": {"pull-requests": "write"},
    }
    steps = workflow["jobs"]["comment"]["steps"]
    assert [step["uses"].partition("@")[0] for step in steps] == [
        "actions/download-artifact",
        "actions/github-script",
    ]
    script = steps[1]["with"]["script"]
    assert "${{" not in script, "a text of the branch would become code"
    marker = comments.MARKER.format(stack="${process.env.STACK}")
    assert f"const marker = `{marker}`;" in script, "a text of the branch would select another comment"
    uploads = [
        step for step in workflow["jobs"]["preview"]["steps"] if "upload-artifact" in step.get("uses", "")
    ]
    assert [step["with"]["name"] for step in uploads] == [steps[0]["with"]["name"]]
