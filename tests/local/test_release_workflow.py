"""The workflow that releases a version: who may write, and its shell steps (actions cannot run here)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from local.go_tools import HELM
from local.paths import CLONE
from testkit.written_files import write_files, write_script

WORKFLOW = yaml.safe_load((CLONE / ".github/workflows/release.yml").read_text("utf-8"))
[VERSION] = re.findall(r'^version = "(.*)"$', (CLONE / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
CHANGELOG = f"""## [Unreleased]
- Later.

## [{VERSION}] - 2026-01-31
### Added
- A value.

## [0.0.1] - 2025
- Old.
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the files that a release reads, whose CHANGELOG.md has a section for VERSION."""
    names = (
        "pyproject.toml",
        "served/pyproject.toml",
        *(f"charts/paddle-{x}/Chart.yaml" for x in ("training", "serving")),
    )
    signed = {"build/signed": "registry.example/paddle-training@sha256:1\n"}
    copied = {name: (CLONE / name).read_bytes() for name in names}
    return write_files(tmp_path, {**copied, **signed, "CHANGELOG.md": CHANGELOG})


def run_step(job: str, name: str, clone: Path, tag: str) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner of GitHub does, with a script in place of `gh` that prints its arguments."""
    [step] = [step for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == name]
    write_script(clone / "gh", '#!/bin/sh\necho "$@"\n')
    env = {**os.environ, "TAG": tag, "PATH": f"{clone}:{os.environ['PATH']}"}
    argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(argv, cwd=clone, env=env, capture_output=True, text=True, check=False)


def test_equal_versions_with_a_dated_section_pass_the_check(clone: Path) -> None:
    done = run_step("check", "Check the version", clone, f"v{VERSION}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "file", ["served/pyproject.toml", "charts/paddle-serving/Chart.yaml", "CHANGELOG.md"]
)
def test_another_version_in_one_file_fails_the_check(clone: Path, file: str) -> None:
    text = (clone / file).read_text("utf-8")
    (clone / file).write_text(text.replace(VERSION, "9.9.9"), "utf-8")
    done = run_step("check", "Check the version", clone, f"v{VERSION}")
    assert done.returncode == 1
    assert f"::error file={file}::" in done.stdout
    assert "Fix: " in done.stdout


@pytest.mark.parametrize(("suffix", "is_prerelease"), [("", False), ("-rc.1", True)])
def test_release_has_the_section_of_its_version_and_the_signed_artifacts(
    clone: Path, suffix: str, is_prerelease: bool
) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG.replace(f"[{VERSION}]", f"[{VERSION}{suffix}]"), "utf-8")
    done = run_step("publish", "Create the GitHub release", clone, f"v{VERSION}{suffix}")
    assert done.returncode == 0, done.stderr
    assert ("--prerelease" in done.stdout) == is_prerelease
    notes = (clone / "build" / "notes.md").read_text("utf-8")
    signed = "### Signed artifacts\n- `registry.example/paddle-training@sha256:1`\n"
    assert notes == f"### Added\n- A value.\n\n\n{signed}"


def test_only_the_publishing_job_may_write_and_scripts_contain_no_expressions() -> None:
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {}
    assert jobs["check"]["permissions"] == {"contents": "read"}
    assert jobs["publish"]["permissions"] == {"contents": "write", "packages": "write", "id-token": "write"}
    assert jobs["publish"]["needs"] == "check"
    # An expression in a script is text of the script: a tag's name could add commands.
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_workflows_use_the_pinned_helm() -> None:
    texts = [path.read_text("utf-8") for path in (CLONE / ".github/workflows").glob("*.yml")]
    used = [
        version for text in texts for version in re.findall(r"setup-helm@.*\n *with:\n *version: (\S+)", text)
    ]
    assert used == [f"v{HELM}"] * 2
