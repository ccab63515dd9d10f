"""`make push` builds the image for the architecture of the nodes, and returns its digest."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from aws import image_push
from aws.stack_access import CommandError
from local.external_commands import free_port
from testkit.waiting import running_server
from testkit.written_files import write_files, write_script

HOST = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
URL = f"{HOST}/launcher"
LOGIN = base64.b64encode(b"AWS:secret").decode()
BASE = "python:3.11-slim-bookworm"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Return a folder whose image builds fast: one file on an empty base image."""
    dockerfile = "ARG BASE=none\nFROM ${BASE}\nCOPY hello /hello\n"
    return write_files(tmp_path / "launcher", {"Dockerfile": dockerfile, "hello": "hello"})


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str | None]]:
    """Record the builder's commands and their input instead of running them."""
    commands: list[tuple[list[str], str | None]] = []
    monkeypatch.setattr(
        image_push, "run_command", lambda argv, given=None, environ=None: commands.append((argv, given))
    )
    return commands


@pytest.mark.parametrize("tool", image_push.BUILDERS)
def test_build_passes_platform_base_and_tag(tool, context: Path, ran) -> None:
    image_push.ImageBuild("arm64", "mirror/python:3.11", "collective").run(tool, context, f"{URL}:t")
    [(built, _)] = ran
    assert built[:2] == [tool, "build"]
    assert built[built.index("--platform") + 1] == "linux/arm64"
    assert {"BASE=mirror/python:3.11", "RUNTIME=collective"} < set(built)
    assert built[-1] == str(context)


# `docker` without its component buildx: the classic builder does not know the flags of buildx.
DOCKER = """#!/bin/sh
case "$*" in *--provenance*) echo "unknown flag: --provenance" >&2; exit 125 ;; esac
echo "$BUILDX_NO_DEFAULT_ATTESTATIONS $*" > "$0.ran"
"""


def test_docker_builds_with_and_without_buildx(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(context.parent / "docker", DOCKER)
    monkeypatch.setenv("PATH", f"{context.parent}:/usr/bin:/bin")
    image_push.ImageBuild("amd64", BASE).run("docker", context, f"{URL}:t")
    ran = (context.parent / "docker.ran").read_text().split()
    assert ran[:4] == ["1", "build", "--platform", "linux/amd64"], "buildx makes no attestations, so no index"


def test_upload_docker_uses_user_context_and_temporary_login(ran) -> None:
    # With --config, docker would ignore the user's context and connect to another daemon.
    image_push.upload_image("docker", f"{URL}:t", LOGIN)
    login = ["docker", "login", "--username", "AWS", "--password-stdin", HOST]
    push_and_logout = [(["docker", "push", f"{URL}:t"], None), (["docker", "logout", HOST], None)]
    assert ran == [(login, "secret"), *push_and_logout]


def test_tag_depends_on_launcher_architecture_base_and_custom_dockerfile(
    context: Path, tmp_path: Path
) -> None:
    found = {
        image_push.ImageBuild(arch, base, runtime).tag(context)
        for arch in ("amd64", "arm64")
        for base in (BASE, "other")
        for runtime in image_push.RUNTIMES
    }
    for words in ("RUN one", "RUN two"):
        own = write_files(tmp_path / "own", {"Dockerfile": f"FROM {image_push.LAUNCHER}\n{words}\n"})
        found.add(image_push.ImageBuild("amd64", BASE, custom=own).tag(context))
    (context / "hello").write_text("changed")
    found.add(image_push.ImageBuild("amd64", BASE).tag(context))
    assert len(found) == 11


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (URL, {"custom": Path("/nowhere")}, f"has no Dockerfile.* FROM {image_push.LAUNCHER}"),
        ("example.com/x", {}, "not an ECR repository"),
        (URL, {"runtime": "v1"}, "RUNTIME=v1: this command builds images only for fleet"),
    ],
)
def test_push_of_what_cannot_be_built_or_stored_raises(context: Path, url, options, message) -> None:
    with pytest.raises(CommandError, match=message):
        image_push.push_image(url, context, image_push.ImageBuild("amd64", BASE, **options), None)


def test_push_without_builder_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandError, match="neither buildah nor docker is on PATH"):
        image_push.find_builder()


def test_push_existing_image_is_not_rebuilt(account, client, context, monkeypatch) -> None:
    ecr, ran = client("ecr"), []
    ecr.create_repository(repositoryName="launcher", imageTagMutability="IMMUTABLE")

    def run(argv, given=None, environ=None) -> None:
        if argv[1] in ("build", "push"):
            ran.append(argv)
        if argv[1] == "push":
            manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []})
            tag = argv[-1].rpartition(":")[2]
            ecr.put_image(repositoryName="launcher", imageManifest=manifest, imageTag=tag)

    monkeypatch.setattr(image_push, "run_command", run)
    monkeypatch.setattr(image_push, "find_builder", lambda: "buildah")
    own = write_files(context.parent / "own", {"Dockerfile": f"FROM {image_push.LAUNCHER}"})
    for custom, steps in ((None, 2), (own, 3)):
        build = image_push.ImageBuild("arm64", BASE, custom=custom)
        first = image_push.push_image(URL, context, build, ecr)
        assert first.startswith(f"{URL}@sha256:")
        assert first == image_push.push_image(URL, context, build, ecr)
        assert len(ran) == steps
        assert ran[-1][-1] == f"{URL}:{build.tag(context)}"
        if custom is not None:
            about = [(argv[-1], argv[argv.index("--tag") + 1]) for argv in ran[:-1]]
            assert about == [(str(context), image_push.LAUNCHER), (str(own), ran[-1][-1])]
            assert f"BASE={image_push.LAUNCHER}" in ran[1]
        ran.clear()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield the address of a real registry on loopback, which buildah uses without TLS."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs Debian's buildah, and root to build")
    if shutil.which("docker-registry") is None:
        pytest.skip("needs Debian's docker-registry (`make tools` installs it)")
    address = f"127.0.0.1:{free_port()}"
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
        "log": {"level": "error"},
    }
    (tmp_path / "registry.json").write_text(json.dumps(config))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    argv = ["docker-registry", "serve", str(tmp_path / "registry.json")]
    with running_server(argv, environment, f"http://{address}/v2/", tmp_path / "registry.log"):
        known = f'unqualified-search-registries = []\n[[registry]]\nlocation = "{address}"\ninsecure = true\n'
        (tmp_path / "registries.conf").write_text(known)
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
        yield address


@pytest.mark.slow
def test_push_builds_for_architecture_of_nodes(registry: str, context: Path) -> None:
    dockerfile = f"FROM {image_push.LAUNCHER}\nCOPY more /more\n"
    own = write_files(context.parent / "own", {"Dockerfile": dockerfile, "more": "more"})
    name = f"{registry}/launcher:one"
    try:
        image_push.ImageBuild("arm64", "scratch", custom=own).run("buildah", context, name)
        image_push.upload_image("buildah", name, LOGIN)
    finally:
        subprocess.run(["buildah", "rmi", name, image_push.LAUNCHER], check=False, capture_output=True)

    def stored(path: str) -> dict:
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        asked = urllib.request.Request(f"http://{registry}/v2/launcher/{path}", headers={"Accept": kind})
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - the test's own registry
            return json.load(answer)

    manifest = stored("manifests/one")
    assert len(manifest["layers"]) == 2, "a layer of the launcher image, and a custom one on top"
    assert stored(f"blobs/{manifest['config']['digest']}")["architecture"] == "arm64"
