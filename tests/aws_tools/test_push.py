"""`make push`: the image for the nodes' architecture, into a registry, by its digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from aws import push
from aws.stack import CommandError

URL = "123456789012.dkr.ecr.us-west-2.amazonaws.com/launcher"
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


def test_the_nodes_first_type_decides_the_architecture() -> None:
    assert push.architecture(["m7g.large", "m6g.large"]) == "arm64"
    assert push.architecture(["m6i.large"]) == "amd64"


@pytest.mark.parametrize("tool", push.BUILDERS)
def test_the_builder_gets_platform_base_and_tag_and_no_secret(
    tool: str, context: Path, tmp_path: Path
) -> None:
    built = push.build_argv(tool, context, f"{URL}:t", "arm64", "mirror/python:3.11")
    assert built[:2] == [tool, "build"]
    assert built[built.index("--platform") + 1] == "linux/arm64"
    assert built[built.index("--build-arg") + 1] == "BASE=mirror/python:3.11"
    assert built[-1] == str(context)
    pushed = push.push_argv(tool, f"{URL}:t", tmp_path)
    assert str(tmp_path) in " ".join(pushed)
    assert "--tls-verify=false" not in pushed


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
    with pytest.raises(CommandError, match=f"has no Dockerfile, .* FROM {push.LAUNCHER}"):
        push.push(URL, context, ["m6i.large"], base=BASE, ecr=None, upon=tmp_path)


def test_without_a_builder_it_says_which_ones_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CommandError, match="no buildah and no docker on PATH"):
        push.builder()


def test_a_registry_that_is_none_of_ecr_is_refused(context: Path) -> None:
    with pytest.raises(CommandError, match="no ECR repository"):
        push.push("example.com/x", context, ["m6i.large"], base=BASE, ecr=None)


def test_an_image_that_is_there_is_not_built_again(account, client, context, monkeypatch) -> None:
    ecr = client("ecr")
    ecr.create_repository(repositoryName="launcher", imageTagMutability="IMMUTABLE")
    built = []

    def build(tool, folder, reference, **about):
        assert about["login"].user == "AWS"
        built.append((reference, about["arch"]))
        manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "layers": []})
        tag = reference.rpartition(":")[2]
        return ecr.put_image(repositoryName="launcher", imageManifest=manifest, imageTag=tag)["image"][
            "imageId"
        ]["imageDigest"]

    monkeypatch.setattr(push, "build_and_push", build)
    monkeypatch.setattr(push, "builder", lambda wanted: "buildah")
    first = push.push(URL, context, ["m7g.large"], base=BASE, ecr=ecr)
    again = push.push(URL, context, ["m7g.large"], base=BASE, ecr=ecr)
    assert first == again
    assert first.startswith(f"{URL}@sha256:")
    assert built == [(f"{URL}:{push.tag(context, 'arm64', BASE)}", "arm64")]


def test_docker_pushes_by_the_persons_own_context_and_with_our_login_only(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = tmp_path / "docker", []
    about = own / "contexts" / "meta" / hashlib.sha256(b"colima").hexdigest() / "meta.json"
    about.parent.mkdir(parents=True)
    host = "unix:///colima/docker.sock"
    endpoint = {"Name": "colima", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
    about.write_text(json.dumps(endpoint))
    (own / "config.json").write_text(
        json.dumps({"currentContext": "colima", "credsStore": "desktop", "auths": {"else.where": {}}})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(own))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)

    def run(argv, folder, *, capture=False, **more):
        if "push" in argv:
            config = Path(argv[argv.index("--config") + 1])
            seen.append(json.loads((config / "config.json").read_text()))
            seen.append((config / "contexts" / about.relative_to(own / "contexts")).read_text())
            if shutil.which("docker"):
                asked = ["docker", "--config", str(config), "context", "inspect"]
                seen.append(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
        return json.dumps([f"{URL}@sha256:1"]) if capture else ""

    monkeypatch.setattr(push, "run", run)
    login = push.Login("AWS", "secret")
    push.build_and_push("docker", context, f"{URL}:t", arch="amd64", base=BASE, login=login)
    assert list(seen[0]["auths"]) == [URL.partition("/")[0]]
    assert (seen[0]["currentContext"], "credsStore" in seen[0]) == ("colima", False)
    assert all(host in text for text in seen[1:])


@pytest.fixture
def registry(tmp_path: Path):
    """A real registry on loopback, ended afterwards."""
    if not all(map(shutil.which, ("docker-registry", "buildah"))) or os.geteuid() != 0:
        pytest.skip("needs Debian's docker-registry and buildah, and root to build")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
        "log": {"level": "error"},
    }
    (tmp_path / "registry.json").write_text(json.dumps(config))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    argv = ["docker-registry", "serve", str(tmp_path / "registry.json")]
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://{address}/v2/", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "registry.log").read_text()
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_pushed_image_is_in_the_registry_under_its_digest(registry: str, context: Path) -> None:
    name = f"{registry}/launcher"
    login = push.Login("AWS", "not-asked-for")
    try:
        digest = push.build_and_push(
            "buildah", context, f"{name}:one", arch="arm64", base="scratch", login=login, tls=False
        )
    finally:
        subprocess.run(["buildah", "rmi", f"{name}:one"], check=False, capture_output=True)
    kinds = f"{MANIFEST}, application/vnd.docker.distribution.manifest.v2+json"
    asked = urllib.request.Request(
        f"http://{registry}/v2/launcher/manifests/{digest}", headers={"Accept": kinds}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - the test's own registry
        body = answer.read()
    assert digest == "sha256:" + hashlib.sha256(body).hexdigest()
    blob = json.loads(body)["config"]["digest"]
    with urllib.request.urlopen(f"http://{registry}/v2/launcher/blobs/{blob}", timeout=10) as answer:
        assert json.load(answer)["architecture"] == "arm64"


def test_a_dockerfile_of_ones_own_is_built_upon_the_launchers_image(
    registry: str, context: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "Dockerfile").write_text(f"FROM {push.LAUNCHER}\nCOPY more /more\n")
    (own / "more").write_text("more")
    name = f"{registry}/launcher"
    try:
        digest = push.build_and_push(
            *("buildah", context, f"{name}:two"),
            arch="amd64",
            base="scratch",
            login=None,
            tls=False,
            upon=own,
        )
    finally:
        subprocess.run(["buildah", "rmi", f"{name}:two", push.LAUNCHER], check=False, capture_output=True)
    with urllib.request.urlopen(f"http://{registry}/v2/launcher/manifests/{digest}", timeout=10) as answer:
        assert len(json.load(answer)["layers"]) == 2, "the launcher's file, and one's own upon it"
