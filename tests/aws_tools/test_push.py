"""`make push`: the image for the nodes' architecture, into a registry, by its digest."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from aws import push
from aws.stack import CommandError
from tests import registry as registry_of_tests

HOST = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
URL = f"{HOST}/launcher"
LOGIN = base64.b64encode(b"AWS:secret").decode()
BASE = "python:3.11-slim-bookworm"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A folder that builds in no time: one file on an empty base."""
    folder = tmp_path / "launcher"
    folder.mkdir()
    (folder / "Dockerfile").write_text("ARG BASE=none\nFROM ${BASE}\nCOPY hello /hello\n")
    (folder / "hello").write_text("hello")
    return folder


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str | None]]:
    """The builder's commands with their input, instead of running them."""
    commands: list[tuple[list[str], str | None]] = []
    monkeypatch.setattr(push, "run", lambda argv, given=None: commands.append((argv, given)))
    return commands


@pytest.mark.parametrize("tool", push.BUILDERS)
def test_the_builder_gets_platform_base_and_tag(tool, context: Path, ran) -> None:
    push.build(tool, context, f"{URL}:t", "arm64", "mirror/python:3.11")
    [(built, _)] = ran
    assert built[:2] == [tool, "build"]
    assert built[built.index("--platform") + 1] == "linux/arm64"
    assert built[built.index("--build-arg") + 1] == "BASE=mirror/python:3.11"
    assert built[-1] == str(context)


def test_docker_pushes_by_the_persons_own_context_and_with_our_login_only(ran) -> None:
    # With --config, docker would lose the person's context and look for its daemon elsewhere.
    push.upload("docker", f"{URL}:t", LOGIN)
    login = ["docker", "login", "--username", "AWS", "--password-stdin", HOST]
    push_and_logout = [(["docker", "push", f"{URL}:t"], None), (["docker", "logout", HOST], None)]
    assert ran == [(login, "secret"), *push_and_logout]


def test_another_launcher_architecture_or_base_is_another_tag(context: Path) -> None:
    before = {push.tag(context, arch, base) for arch in ("amd64", "arm64") for base in (BASE, "other")}
    (context / "hello").write_text("changed")
    assert len(before | {push.tag(context, "amd64", BASE)}) == 5


def test_what_is_put_upon_the_launcher_makes_another_tag(context: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    found = {push.tag(context, "amd64", BASE)}
    for words in ("RUN one", "RUN two"):
        (own / "Dockerfile").write_text(f"FROM {push.LAUNCHER}\n{words}\n")
        found.add(push.tag(context, "amd64", BASE, own))
    assert len(found) == 3


def test_a_folder_without_a_dockerfile_is_refused_before_anything_is_built(
    context: Path, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=f"has no Dockerfile.* FROM {push.LAUNCHER}"):
        push.push(URL, context, "m6i.large", base=BASE, ecr=None, upon=tmp_path)


def test_without_a_builder_it_says_which_ones_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandError, match="neither buildah nor docker is on PATH"):
        push.builder()


def test_a_registry_that_is_none_of_ecr_is_refused(context: Path) -> None:
    with pytest.raises(CommandError, match="not an ECR repository"):
        push.push("example.com/x", context, "m6i.large", base=BASE, ecr=None)


def test_an_image_that_is_there_is_not_built_again(account, client, context, monkeypatch) -> None:
    ecr, ran = client("ecr"), []
    ecr.create_repository(repositoryName="launcher", imageTagMutability="IMMUTABLE")

    def run(argv, given=None) -> None:
        if argv[1] in ("build", "push"):
            ran.append(argv)
        if argv[1] == "push":
            manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []})
            tag = argv[-1].rpartition(":")[2]
            ecr.put_image(repositoryName="launcher", imageManifest=manifest, imageTag=tag)

    monkeypatch.setattr(push, "run", run)
    monkeypatch.setattr(push, "builder", lambda: "buildah")
    own = context.parent / "own"
    own.mkdir()
    (own / "Dockerfile").write_text(f"FROM {push.LAUNCHER}")
    for upon, steps in ((None, 2), (own, 3)):
        first = push.push(URL, context, "m7g.large", base=BASE, ecr=ecr, upon=upon)
        assert first.startswith(f"{URL}@sha256:")
        assert first == push.push(URL, context, "m7g.large", base=BASE, ecr=ecr, upon=upon)
        assert len(ran) == steps
        assert ran[-1][-1] == f"{URL}:{push.tag(context, 'arm64', BASE, upon)}"
        if upon is not None:
            about = [(argv[-1], argv[argv.index("--tag") + 1]) for argv in ran[:-1]]
            assert about == [(str(context), push.LAUNCHER), (str(own), ran[-1][-1])]
            assert f"BASE={push.LAUNCHER}" in ran[1]
        ran.clear()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A real registry on loopback, to which buildah talks without TLS; ended afterwards."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("needs Debian's buildah, and root to build")
    with registry_of_tests.running(tmp_path) as address:
        known = f'unqualified-search-registries = []\n[[registry]]\nlocation = "{address}"\ninsecure = true\n'
        (tmp_path / "registries.conf").write_text(known)
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
        yield address


def test_images_are_built_and_pushed_for_the_nodes_architecture(registry: str, context: Path) -> None:
    own = context.parent / "own"
    own.mkdir()
    (own / "Dockerfile").write_text(f"FROM {push.LAUNCHER}\nCOPY more /more\n")
    (own / "more").write_text("more")
    name = f"{registry}/launcher:one"
    try:
        push.build("buildah", context, push.LAUNCHER, "arm64", "scratch")
        push.build("buildah", own, name, "arm64", push.LAUNCHER)
        push.upload("buildah", name, LOGIN)
    finally:
        subprocess.run(["buildah", "rmi", name, push.LAUNCHER], check=False, capture_output=True)

    def stored(path: str) -> dict:
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        asked = urllib.request.Request(f"http://{registry}/v2/launcher/{path}", headers={"Accept": kind})
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - the test's own registry
            return json.load(answer)

    manifest = stored("manifests/one")
    assert len(manifest["layers"]) == 2, "the launcher's file, and one's own upon it"
    assert stored(f"blobs/{manifest['config']['digest']}")["architecture"] == "arm64"
