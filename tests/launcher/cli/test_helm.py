"""Errors of helm, and which fix their messages give."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from launcher.cli import releases
from launcher.cli.errors import CliError
from launcher.cli.releases import Helm

CHART = str(Path(__file__).resolve().parents[3] / "charts" / "paddle-training")
HELM = """#!/bin/sh
[ $1 = show ] && exec cat {chart}/values.yaml
case "$*" in
*--dry-run*) cat dry.json ;;
*) echo "jobName: theirs" > kept.yaml; cat $(echo "$*" | grep -o '[^ ]*kept.yaml') > sent.yaml ;;
esac
{end}
"""


def fake_helm(here: Path, monkeypatch: pytest.MonkeyPatch, end: str = "") -> Helm:
    """Put a stand-in for helm on PATH; an upgrade overwrites kept.yaml, and writes the received values to sent.yaml."""
    run = {"kind": "ConfigMap", "metadata": {"name": "paddle-training-run"}}
    manifest = yaml.safe_dump({**run, "data": {"run.json": json.dumps({"k8sJob": "mine-1"})}})
    (here / "dry.json").write_text(json.dumps({"manifest": manifest}))
    (here / "bin").mkdir()
    (here / "bin" / "helm").write_text(HELM.format(chart=CHART, end=end))
    (here / "bin" / "helm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    return Helm(CHART, "paddle")


@pytest.mark.slow
@pytest.mark.parametrize(
    "printed",
    [
        "Error: UPGRADE FAILED: release: already exists",
        "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress",
        'Error: create: failed to create: secrets "sh.helm.release.v1.x.v1" already exists',
        "Error: INSTALLATION FAILED: cannot reuse a name that is still in use",
    ],
)
def test_a_conflict_with_another_helm_is_reported_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    helm = fake_helm(tmp_path, monkeypatch, f"echo '{printed}' >&2; exit 1")
    for call in (helm.check, functools.partial(helm.upgrade, description="mine")):
        with pytest.raises(CliError, match=r"Fix: .*helm history x -n paddle.*helm rollback x") as raised:
            call("x", "", "", Path("kept.yaml"))
        assert raised.value.exit_code == 3, "the values are not to blame"


def test_run_upgrades_with_the_option_that_removes_what_a_failed_upgrade_has_created() -> None:
    assert "--cleanup-on-fail" in Helm(CHART, "paddle").upgrade_command("x", Path("kept.yaml"))


@pytest.mark.slow
def test_a_field_that_another_client_has_changed_is_reported_with_its_name_and_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = (
        "Error: UPGRADE FAILED: conflict occurred while applying object paddle/x-1 batch/v1, Kind=Job: Apply failed "
        'with 1 conflict: conflict with "kubectl-patch" using batch/v1: .spec.suspend'
    )
    monkeypatch.chdir(tmp_path)
    helm = fake_helm(tmp_path, monkeypatch, f"echo '{printed}' >&2; exit 1")
    with pytest.raises(
        CliError, match=r"\.spec\.suspend\nAnother client .* Fix: remove the fields from your values"
    ):
        helm.upgrade("x", "", "", Path("kept.yaml"), "mine")


def test_a_helm_that_times_out_does_not_blame_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    monkeypatch.setattr(
        releases, "subprocess", SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    )
    monkeypatch.setattr(releases.shutil, "which", lambda _: "helm")
    helm = Helm(CHART, "paddle")
    with pytest.raises(
        CliError, match=r"^helm upgrade timed out .* Fix: check that the cluster answers"
    ) as raised:
        helm.check("x", "", "", Path("kept.yaml"))
    assert raised.value.exit_code == 3
