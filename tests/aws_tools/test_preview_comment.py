"""The comment under a pull request says what changes, what failed, and what was not compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from aws import preview_comment as comments
from tests.aws_tools.conftest import ROOT
from tests.chart.chart_tools import tool

CHART = "charts/paddle-training"


def make(**changes) -> str:
    about = {"stack": "dev", "code": 0, "preview": "+ create", "chart": "", "unreachable": "", **changes}
    return comments.comment(**about)


def test_a_quiet_preview_is_short_and_can_be_found_again() -> None:
    text = make()
    assert text.startswith("<!-- paddle-training preview of dev -->")
    assert "```diff\n+ create\n```" in text
    assert "does not change" in text
    assert "Not compared" not in text


def test_a_failed_preview_is_posted_too() -> None:
    assert "**The preview failed** (exit code 255)" in make(code=255, preview="error: no")


def test_without_the_cluster_it_says_what_was_not_compared() -> None:
    text = make(unreachable="10.0.0.9: timed out", chart="-  trainers: 3")
    assert "**Not compared:** namespace and release" in text
    assert "10.0.0.9: timed out" in text
    assert "-  trainers: 3" in text


@pytest.mark.parametrize("chart", ["", "c\n" * 200_000])
def test_it_never_exceeds_what_github_takes_and_says_what_it_left_out(chart: str) -> None:
    text = make(preview="line\n" * 100_000, chart=chart)
    assert len(text) < 65_536
    assert re.search(r"… \d+ more lines", text)
    assert "### Rendered chart" in text


def test_a_text_cannot_end_its_own_block_and_loses_its_colours() -> None:
    text = make(preview="```\n@everyone\x1b[31m red\x1b[0m")
    assert "````diff\n```\n@everyone red\n````" in text


def test_the_cluster_is_left_out_only_when_its_api_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = {"clusters": [{"cluster": {"server": f"https://127.0.0.1:{port}"}}]}
        assert comments.unreachable(json.dumps(config)) == ""
    assert comments.unreachable(json.dumps(config)) == "127.0.0.1: Connection refused"
    assert comments.unreachable("not: one") == "the stack has no kubeconfig"


def test_the_preview_runs_without_kubernetes_only_when_the_api_is_away(tmp_path: Path, monkeypatch) -> None:
    fake = tmp_path / "pulumi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def preview(port: int) -> tuple[int, str, str]:
        there = {"clusters": [{"cluster": {"server": f"https://127.0.0.1:{port}"}}]}
        answer = json.dumps({"kubeconfig": json.dumps(there)})
        fake.write_text(f"#!/bin/sh\nif [ $1 = stack ]; then echo '{answer}'; else echo \"$@\"; exit 3; fi\n")
        fake.chmod(0o755)
        return comments.preview("dev")

    code, text, why = preview(1)
    assert (code, why) == (3, "127.0.0.1: Connection refused")
    assert "--exclude **kubernetes:** --exclude-dependents" in text
    with socket.create_server(("127.0.0.1", 0)) as server:
        code, text, why = preview(server.getsockname()[1])
    assert (code, why) == (3, "")
    assert "--exclude" not in text


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkouts: settings and chart only."""
    tool("helm")
    both = tmp_path / "base", tmp_path / "head"
    for folder in both:
        shutil.copytree(ROOT / CHART, folder / CHART)
        shutil.copy(ROOT / "Pulumi.dev.yaml", folder)
    return both


def test_the_rendered_charts_of_both_sides_are_compared(checkouts: tuple[Path, Path]) -> None:
    base, head = checkouts
    assert comments.chart_diff(base, head, "dev") == ""
    template = head / CHART / "templates" / "service.yaml"
    template.write_text(
        template.read_text().replace("publishNotReadyAddresses: true", "publishNotReadyAddresses: false")
    )
    diff = comments.chart_diff(base, head, "dev").splitlines()
    assert "-  publishNotReadyAddresses: true" in diff
    assert "+  publishNotReadyAddresses: false" in diff


def test_a_side_that_cannot_be_rendered_is_told_in_its_place(checkouts: tuple[Path, Path]) -> None:
    base, head = checkouts
    (base / "Pulumi.dev.yaml").unlink()
    assert comments.chart_diff(base, head, "dev").startswith("The base could not be rendered")
