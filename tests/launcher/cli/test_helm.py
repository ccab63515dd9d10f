"""helm as `run` calls it: its values, its cluster, and its own messages."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from launcher.cli import releases
from launcher.cli.errors import CliError, UsageError
from launcher.cli.releases import Helm
from testkit.written_files import write_script

from .fake_cluster import FakeCluster

HELM = """#!/bin/sh
echo "$@" >> calls
env | grep ^HELM_KUBE >> calls
case "$*" in
history*) echo '[{{"revision": 7, "status": "superseded"}}, {{"revision": 8, "status": "deployed"}},' \
    '{{"revision": 9, "status": "failed"}}]' ;;
get*) echo '{{"image": "x", "training": {{"passes": null}}}}' ;;
*--dry-run*) cat > checked.yaml; cat dry.json ;;
*) cat > sent.yaml ;;
esac
{end}
"""


def fake_helm(here: Path, monkeypatch: pytest.MonkeyPatch, end: str = "") -> Helm:
    """Put a stand-in for helm on PATH, and return its Helm; it writes calls and the values of an upgrade to files."""
    run = {"kind": "ConfigMap", "metadata": {"name": "paddle-training-run"}}
    manifest = yaml.safe_dump({**run, "data": {"run.json": json.dumps({"k8sJob": "mine-1"})}})
    (here / "dry.json").write_text(json.dumps({"manifest": manifest}))
    write_script(here / "bin" / "helm", HELM.format(end=end))
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    return Helm(FakeCluster())


@pytest.mark.slow
def test_helm_gets_the_values_and_the_cluster_of_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HELM_KUBECONTEXT", "HELM_KUBEAPISERVER", "HELM_KUBETOKEN"):
        monkeypatch.setenv(name, "other")
    helm = fake_helm(here, monkeypatch)
    values = {**helm.read_values("paddle-training"), "jobName": "é"}
    assert helm.check("paddle-training", values) == "mine-1"
    helm.upgrade("paddle-training", values, "run by me")
    for file in ("checked.yaml", "sent.yaml"):
        assert yaml.safe_load((here / file).read_text()) == {
            "image": "x",
            "training": {"passes": None},
            "jobName": "é",
        }, "without the null, helm would use the chart's default again"
    cluster = "-n paddle --kube-context test"
    calls = (here / "calls").read_text().splitlines()
    assert calls[:2] == [
        f"history paddle-training -o json {cluster}",
        f"get values paddle-training --revision 8 -o json {cluster}",
    ]
    upgrade = f"upgrade --install paddle-training {releases.find_chart()} {cluster} --reset-values"
    assert calls[2:] == [
        f"{upgrade} --cleanup-on-fail -f - --dry-run=server -o json",
        f"{upgrade} --cleanup-on-fail -f - --description run by me",
    ]


@pytest.mark.slow
def test_a_message_of_helm_is_passed_on_with_a_fix(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress"
    helm = fake_helm(here, monkeypatch, f"echo '{printed}' >&2; exit 1")
    expected = r"is in progress. Fix: correct what helm reports.* helm rollback"
    with pytest.raises(UsageError, match=expected):
        helm.check("x", {})
    with pytest.raises(CliError, match=expected):
        helm.upgrade("x", {}, "mine")


def test_a_missing_helm_and_a_time_out_are_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    helm = Helm(FakeCluster())
    monkeypatch.setattr(
        releases, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    )
    monkeypatch.setattr(releases.shutil, "which", lambda _: "helm")
    with pytest.raises(CliError, match=r"^helm uninstall timed out .* Fix: check that the cluster answers"):
        helm.uninstall("x")
    monkeypatch.setattr(releases.shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="helm is not on PATH"):
        helm.uninstall("x")
