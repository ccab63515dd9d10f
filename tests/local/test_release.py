"""The release: versions that must agree, annotations of the charts, and the steps of the release workflow."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import release
from local.errors import LocalError
from local.package_charts import CHARTS, NAMES
from local.paths import CLONE
from local.toolchain.pinned_tools import HELM
from testkit import oci_registry

WORKFLOW = yaml.safe_load((CLONE / ".github/workflows/release.yml").read_text("utf-8"))
VERSION = release.tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["project"]["version"]
TAG = f"v{VERSION}"
SOURCE = "https://git.example/owner/repository"
CHANGELOG = f"""# Changelog

## [Unreleased]

### Added
- Not released yet.

## [{VERSION}] - 2026-01-31

### Renamed
| old | new |
|---|---|

### Upgrade notes
- **Nodes** are in one zone.

### Added
- Value `example` ([page](docs/example.md)).

### Security
- A password is no longer logged.

## [0.0.1] - 2025-01-31

### Added
- Everything.
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the files that a release reads, whose CHANGELOG.md has a section for VERSION."""
    to = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("charts", "local"):
        shutil.copytree(CLONE / folder, to / folder, ignore=ignored)
    for name in ("pyproject.toml", "served/pyproject.toml"):
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copy(CLONE / name, to / name)
    (to / "CHANGELOG.md").write_text(CHANGELOG, "utf-8")
    return to


def test_check_accepts_equal_versions(clone: Path) -> None:
    release.check_versions(TAG, "registry.example:5000/owner", clone)


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3+build", "latest", "v1.2.3 "])
def test_check_other_tag_raises(clone: Path, tag: str) -> None:
    with pytest.raises(LocalError, match=r"is not v and a semantic version\. Fix:"):
        release.check_versions(tag, "registry.example/owner", clone)


@pytest.mark.parametrize(
    "file",
    [
        "pyproject.toml",
        "served/pyproject.toml",
        "charts/paddle-training/Chart.yaml",
        "charts/paddle-serving/Chart.yaml",
    ],
)
def test_check_other_version_in_one_file_raises(clone: Path, file: str) -> None:
    text = (clone / file).read_text("utf-8")
    (clone / file).write_text(
        re.sub(r"^(version\W+)[\d.]+", r"\g<1>9.9.9", text, count=1, flags=re.MULTILINE)
    )
    with pytest.raises(LocalError, match=f"tag {TAG}, but {re.escape(file)} has version 9.9.9. Fix:"):
        release.check_versions(TAG, "registry.example/owner", clone)


@pytest.mark.parametrize(
    "old", ["- 2026-01-31", CHANGELOG[CHANGELOG.index("### Renamed") : CHANGELOG.index("## [0.0.1]")]]
)
def test_check_changelog_without_dated_section_raises(clone: Path, old: str) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG.replace(old, ""), "utf-8")
    with pytest.raises(LocalError, match=rf"no section with the heading `## \[{re.escape(VERSION)}\]"):
        release.check_versions(TAG, "registry.example/owner", clone)


@pytest.mark.parametrize(
    "registry",
    [
        "",
        "registry.example",
        "registry.example/Owner",
        "https://registry.example/owner",
        "registry.example/owner/",
    ],
)
def test_check_unusable_registry_raises(clone: Path, registry: str) -> None:
    with pytest.raises(LocalError, match=r"variable REGISTRY is .*needed: HOST/FOLDER in lower case.* Fix:"):
        release.check_versions(TAG, registry, clone)


def test_changes_have_kinds_of_artifact_hub_and_no_links() -> None:
    section = CHANGELOG[CHANGELOG.index("### Renamed") : CHANGELOG.index("## [0.0.1]")]
    assert release.list_changes(section) == [
        {"kind": "changed", "description": "Nodes are in one zone."},
        {"kind": "added", "description": "Value `example` (page)."},
        {"kind": "security", "description": "A password is no longer logged."},
    ]


@pytest.mark.parametrize(("version", "prerelease"), [("1.0.0", "false"), ("1.0.0-rc.1", "true")])
def test_prerelease_is_that_of_the_version(clone: Path, version: str, prerelease: str) -> None:
    (clone / "CHANGELOG.md").write_text(CHANGELOG.replace(VERSION, version), "utf-8")
    metadata = release.release_metadata(f"v{version}", "image", ["linux/amd64"], SOURCE, clone)
    assert metadata["annotations"]["artifacthub.io/prerelease"] == prerelease


def test_charts_of_image_without_digest_raises(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"--image 'registry.example/image:1' has no digest\. Fix:"):
        release.charts(TAG, "registry.example/image:1", "linux/amd64", SOURCE, tmp_path)


def test_only_the_publishing_job_may_write_and_sign() -> None:
    assert WORKFLOW["permissions"] == {}
    assert WORKFLOW["jobs"]["check"]["permissions"] == {"contents": "read"}
    assert WORKFLOW["jobs"]["publish"]["permissions"] == {
        "contents": "write",
        "packages": "write",
        "id-token": "write",
    }
    assert WORKFLOW["jobs"]["publish"]["needs"] == "check"
    assert WORKFLOW["concurrency"]["cancel-in-progress"] is False
    assert WORKFLOW["defaults"] == {"run": {"shell": "bash"}}, (
        "GitHub's own default has no pipefail, Runner has"
    )


def test_workflow_scripts_get_expressions_as_variables_only() -> None:
    # An expression in a script is text of the script: a tag's name could add commands.
    scripts = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert scripts
    assert [script for script in scripts if "${{" in script] == []


def test_workflows_use_the_pinned_helm() -> None:
    used = [
        step["with"]["version"]
        for path in (CLONE / ".github/workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("azure/setup-helm@")
    ]
    assert len(used) == 2
    assert set(used) == {f"v{HELM}"}


class Runner:
    """Runs the steps of one job as a GitHub runner does, with some programs replaced by recording scripts."""

    def __init__(self, job: str, cwd: Path, folder: Path, values: dict[str, str]) -> None:
        self.steps = {step["name"]: step for step in WORKFLOW["jobs"][job]["steps"] if "run" in step}
        self.declared = WORKFLOW["env"] | WORKFLOW["jobs"][job].get("env", {})
        self.cwd, self.folder, self.values = cwd, folder, values
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.variables = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(folder)}

    def replace_program(self, name: str, script: str) -> None:
        """Replace a program by a script that records the arguments first."""
        words = f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> {self.calls}\n{script}\n'
        (self.bin / name).write_text(words)
        (self.bin / name).chmod(0o755)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run one step; its outputs are known to later steps. An expression without a value fails the test."""
        step = self.steps[name]
        output = self.folder / "output"
        output.write_text("")
        declared = {
            key: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: self.values[found[1]], text)
            for key, text in (self.declared | step.get("env", {})).items()
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.cwd,
            env={**self.variables, **declared, "GITHUB_OUTPUT": str(output)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{key}"] = value
        return done

    def called(self, program: str) -> list[list[str]]:
        """Return the arguments of each call of a replaced program."""
        lines = self.calls.read_text().splitlines()
        return [shlex.split(line)[1:] for line in lines if line.startswith(f"{program} ")]


def github_values(registry: str) -> dict[str, str]:
    """Return the values of the expressions in the workflow."""
    return {
        "github.ref_name": TAG,
        "github.server_url": "https://git.example",
        "github.repository": "owner/repository",
        "github.sha": "0" * 40,
        "github.token": "token",
        "vars.REGISTRY": registry,
        "vars.REGISTRY_USER || github.actor": "owner",
        "secrets.REGISTRY_PASSWORD || github.token": "password",
        "steps.syft.outputs.cmd": "syft",
    }


@pytest.mark.slow
def test_check_step_runs_the_version_check(clone: Path, tmp_path: Path) -> None:
    runner = Runner("check", clone, tmp_path, github_values("registry.example/owner"))
    passed = runner.run("Check the version")
    assert passed.returncode == 0, passed.stdout
    runner.values["vars.REGISTRY"] = ""
    failed = runner.run("Check the version")
    assert failed.returncode == 1
    assert "the repository variable REGISTRY is ''" in failed.stdout


def test_released_version_is_rejected(clone: Path, tmp_path: Path) -> None:
    runner = Runner("publish", clone, tmp_path, github_values("registry.example/owner"))
    runner.replace_program("gh", "exit 1")
    assert runner.run("Reject a version that is already released").returncode == 0
    runner.replace_program("gh", "exit 0")
    again = runner.run("Reject a version that is already released")
    assert again.returncode == 1
    assert f"{TAG} is already released" in again.stdout
    assert runner.called("gh") == [["release", "view", TAG]] * 2


def test_push_that_fails_silently_fails_the_step(clone: Path, tmp_path: Path) -> None:
    runner = Runner("publish", clone, tmp_path, github_values("registry.example/owner"))
    runner.replace_program("sudo", "")  # buildah 1.28 exits with 0 when `manifest push` failed
    failed = runner.run("Build and push the image")
    assert failed.returncode == 1
    assert f"registry.example/owner/paddle-training:{VERSION} was not pushed" in failed.stdout
    assert "steps.image.outputs.reference" not in runner.values


def test_version_with_a_suffix_becomes_a_prerelease(clone: Path, tmp_path: Path) -> None:
    tag = f"{TAG}-rc.1"
    (clone / "CHANGELOG.md").write_text(CHANGELOG.replace(VERSION, tag[1:]), "utf-8")
    (clone / "build" / "assets").mkdir(parents=True)
    (clone / "build" / "charts").write_text("registry.example/charts/paddle-training@sha256:1\n")
    values = github_values("registry.example/owner") | {"steps.image.outputs.reference": "image"}
    runner = Runner("publish", clone, tmp_path, values | {"github.ref_name": tag})
    runner.replace_program("gh", "")
    done = runner.run("Create the GitHub release")
    assert done.returncode == 0, done.stderr
    [created] = runner.called("gh")
    assert created[2] == tag
    assert "--prerelease" in created


def read_manifest(registry: str, path: str) -> tuple[str, dict[str, Any]]:
    """Return digest and content of a manifest in the registry on loopback."""
    kinds = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(f"http://{registry}/v2/{path}", headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the test's own registry
        return answer.headers["Docker-Content-Digest"], json.load(answer)


@pytest.fixture
def published(clone: Path, tmp_path: Path):
    """Run the publishing job against a registry on loopback; yield the runner and the registry's address.

    Real: buildah (with an image of one file, because the machine may not emulate arm64), helm, the registry.
    Replaced: sudo, syft, cosign and gh, which record their arguments.
    """
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs Debian's buildah, and root to build")
    (clone / "launcher").mkdir()
    (clone / "launcher" / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    storage = {"driver": "vfs", "graphroot": str(tmp_path / "images"), "runroot": str(tmp_path / "run")}
    lines = [f'{key} = "{text}"' for key, text in storage.items()]
    (tmp_path / "storage.conf").write_text("\n".join(["[storage]", *lines]))
    with oci_registry.run_registry(tmp_path) as address:
        runner = Runner("publish", clone, tmp_path, github_values(f"{address}/owner"))
        helm, buildah = shutil.which("helm"), shutil.which("buildah")
        # The registry on loopback has no TLS.
        runner.replace_program("helm", f'exec {helm} "$@" --plain-http')
        login = f'login) shift; exec {buildah} login --tls-verify=false "$@";;'
        push = f'manifest) shift 2; exec {buildah} manifest push --tls-verify=false "$@";;'
        runner.replace_program("buildah", f'case "$1" in {login} {push} esac\nexec {buildah} "$@"')
        runner.variables["CONTAINERS_STORAGE_CONF"] = str(tmp_path / "storage.conf")
        runner.replace_program("sudo", 'exec "$@"')
        runner.replace_program("syft", 'for last; do :; done; echo "{}" > "${last#spdx-json=}"')
        runner.replace_program("cosign", "")
        runner.replace_program("gh", '[ "$2" = create ]')
        for name in runner.steps:
            if name != "Python environment":
                done = runner.run(name)
                assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        yield runner, address


@pytest.mark.slow
def test_publish_pushes_image_and_charts_and_signs_their_digests(published, tmp_path: Path) -> None:
    runner, address = published
    digest, index = read_manifest(address, f"owner/paddle-training/manifests/{VERSION}")
    image = f"{address}/owner/paddle-training@{digest}"
    assert sorted(one["platform"]["architecture"] for one in index["manifests"]) == ["amd64", "arm64"]

    charts = []
    for name in NAMES:
        chart_digest, _ = read_manifest(address, f"owner/charts/{name}/manifests/{VERSION}")
        charts.append(f"{address}/owner/charts/{name}@{chart_digest}")
    signed = [argv[-1] for argv in runner.called("cosign") if argv[0] == "sign"]
    assert sorted(signed) == sorted([image, *charts])
    attested = [argv for argv in runner.called("cosign") if argv[0] == "attest"]
    assert [argv[-1] for argv in attested] == [image, image]
    scanned = {argv[argv.index("--platform") + 1]: argv[1] for argv in runner.called("syft")}
    assert scanned == dict.fromkeys(("linux/amd64", "linux/arm64"), f"registry:{image}")
    assert {argv[argv.index("--predicate") + 1] for argv in attested} == {
        argv[-1].removeprefix("spdx-json=") for argv in runner.called("syft")
    }

    created = runner.called("gh")[-1]
    assert created[:4] == ["release", "create", TAG, "--verify-tag"]
    assert "--prerelease" not in created
    assets = {Path(word).name for word in created if word.startswith("build/assets/")}
    assert assets == {
        *(f"{name}-{VERSION}.tgz" for name in NAMES),
        "image-linux-amd64.spdx.json",
        "image-linux-arm64.spdx.json",
    }
    notes = (runner.cwd / created[created.index("--notes-file") + 1]).read_text()
    assert "### Security" in notes
    assert "Not released yet" not in notes
    assert all(f"- `{one}`" in notes for one in [image, *(f"oci://{chart}" for chart in charts)])


@pytest.mark.slow
def test_published_chart_renders_like_its_folder_and_says_its_image(published, tmp_path: Path) -> None:
    runner, address = published
    helm = [shutil.which("helm"), "template", "demo"]
    for name, values in (("paddle-training", "minimal"), ("paddle-serving", "claim")):
        settings = ["-f", str(CHARTS / name / "ci" / f"{values}.yaml")]
        remote = [f"oci://{address}/owner/charts/{name}", "--version", VERSION, "--plain-http"]
        pulled = subprocess.run([*helm, *settings, *remote], capture_output=True, text=True, check=True)
        here = subprocess.run(
            [*helm, *settings, str(CHARTS / name)], capture_output=True, text=True, check=True
        )
        assert list(yaml.safe_load_all(pulled.stdout)) == list(yaml.safe_load_all(here.stdout))

        with tarfile.open(runner.cwd / "build" / "assets" / f"{name}-{VERSION}.tgz") as archive:
            about = yaml.safe_load(archive.extractfile(f"{name}/Chart.yaml"))
        notes = {key.removeprefix("artifacthub.io/"): text for key, text in about["annotations"].items()}
        digest, _ = read_manifest(address, f"owner/paddle-training/manifests/{VERSION}")
        assert yaml.safe_load(notes["images"]) == [
            {
                "name": "paddle-training",
                "image": f"{address}/owner/paddle-training@{digest}",
                "platforms": ["linux/amd64", "linux/arm64"],
            }
        ]
        assert {one["kind"] for one in yaml.safe_load(notes["changes"])} == {"changed", "added", "security"}
        assert notes["containsSecurityUpdates"] == "true"
        assert notes["license"] == "Apache-2.0"
        assert notes["category"] == "ai-machine-learning"
        assert {one["name"] for one in yaml.safe_load(notes["links"])} == {"documentation", "support"}
        assert about["sources"] == [f"{SOURCE}/tree/{TAG}"]
