"""Test `make demo` and what a user does next: preview, manual upgrade, `pulumi up` again, destroy."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from testkit.local_cluster import ROOT, Cluster, Training, run_checked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]

IGNORED = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "*.pyc", "venv", ".venv", ".hypothesis")


def user_env(cluster: Cluster) -> dict[str, str]:
    """Return the environment of a shell after `eval "$(make -s env)"`."""
    printed = run_checked(["make", "-s", "env"], cluster.env).stdout
    shell = run_checked(["sh", "-c", f"{printed}\nenv -0"], cluster.env).stdout
    return dict(entry.split("=", 1) for entry in shell.split("\0") if "=" in entry)


def pulumi(
    env: dict[str, str], *words: str, cwd: Path = ROOT, check: bool = True, seconds: float = 240
) -> str:
    ended = run_checked(
        ["pulumi", *words, "--non-interactive", "--color=never"], env, cwd=cwd, check=check, seconds=seconds
    )
    return ended.stdout + ended.stderr


def git_status() -> str:
    return run_checked(["git", "status", "--porcelain"], os.environ).stdout


@pytest.mark.seconds(180)
def test_make_demo_trains_and_pulumi_detects_manual_upgrades_afterwards(
    cluster: Cluster, tmp_path: Path
) -> None:
    before = git_status()
    # With CONFIG, because the stack keeps the example that somebody has tried on this machine before.
    demo = run_checked(["make", "demo", "CONFIG=quick_start"], cluster.env, seconds=600).stdout
    assert git_status() == before, "the demo does not change the clone"
    quick_start = Training(cluster, "paddle", {"jobName": "quick-start"})
    assert (quick_start.output / "model").is_dir()
    assert "curve.png" in demo
    assert "served: POST /predict" in demo
    assert 0 < quick_start.record()["score"]["error"] < 0.3
    # The file has the seconds of each pass, so that a second training would not write the same.
    metrics = (quick_start.output / "metrics.csv").read_bytes()

    env = user_env(cluster)
    other = tmp_path / "another" / "clone"
    shutil.copytree(ROOT, other, ignore=IGNORED)
    pulumi(env, "preview", "-s", "local", "--refresh", "--expect-no-changes", cwd=other)

    base = tmp_path / "base.yaml"
    base.write_text(run_checked(["python", "-m", "launcher", "base"], env).stdout)
    upgrade = (
        f"helm upgrade paddle-training charts/paddle-training -n paddle --reset-values -f {base} "
        "-f charts/paddle-training/examples/recommendation.yaml"
    )
    run_checked(shlex.split(upgrade), env)
    other_training = Training(cluster, "paddle", {"jobName": "recommendation"})
    other_training.wait_for_data()
    manifest = other_training.manifest()
    assert "recbole" in manifest["source"], "the other training uses its own data"
    assert "mac-roman" not in json.dumps(other_training.described()), "no value of the first one stays"
    assert manifest["dataDigest"] != quick_start.manifest()["dataDigest"]
    assert (quick_start.output / "model").is_dir(), "the first training's output stays"

    output = pulumi(env, "up", "-s", "local", "--yes", "--refresh", "--diff")
    drift, update, _ = output.partition("Updating (local)")
    assert update, output
    assert "recommendation" in drift, "the preview of `up` shows the manual upgrade"
    assert "quick-start" in drift
    assert quick_start.described()["jobName"] == "quick-start"
    quick_start.complete()
    assert (quick_start.output / "metrics.csv").read_bytes() == metrics, "a complete run is not trained again"
    same = "helm upgrade paddle-training charts/paddle-training -n paddle --reuse-values"
    run_checked(shlex.split(same), env)  # a manual upgrade to the same values is no drift
    pulumi(env, "preview", "-s", "local", "--refresh", "--expect-no-changes")

    pulumi(env, "destroy", "-s", "local", "--yes", "--skip-preview")
    left = cluster.kubectl("get", "namespace", "paddle", "--ignore-not-found", "-o", "name")
    assert not left or cluster.get("pods", "paddle") == [], "destroy waits for the pods"
    assert (quick_start.output / "model").is_dir(), "destroy leaves the data"
