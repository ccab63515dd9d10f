"""`make push` speaks to docker, podman or buildah, keeps no login, and sets the digest."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import pytest

from infra.naming import folder_digest
from local import push
from local.errors import LocalError
from local.paths import CLONE

REGISTRY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/paddle-training-dev"
DIGEST = "sha256:" + "ab" * 32


class _MissingError(Exception):
    pass


class _Ecr:
    exceptions = SimpleNamespace(ImageNotFoundException=_MissingError)

    def __init__(self, there):
        self.there = there
        self.asked = 0

    def describe_images(self, repositoryName, imageIds):  # noqa: N803 - boto3's names
        assert repositoryName == "paddle-training-dev"
        assert imageIds == [{"imageTag": folder_digest(CLONE / "launcher")[:12]}]
        self.asked += 1
        if not self.there and self.asked == 1:
            raise _MissingError
        return {"imageDetails": [{"imageDigest": DIGEST}]}

    def get_authorization_token(self):
        return {"authorizationData": [{"authorizationToken": base64.b64encode(b"AWS:hush").decode()}]}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Commands that were run, by fake pulumi and builders that write down their words."""
    log = tmp_path / "log"
    log.write_text("")
    for name, body in {
        "pulumi": f'[ "$2" = output ] && echo {REGISTRY}; :',
        "docker": 'case "$*" in *password-stdin*) [ "$(cat)" = hush ] || exit 3;; esac',
    }.items():
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{body}\n')
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda: log.read_text().splitlines()


def test_the_image_is_built_pushed_and_set_by_digest(ran):
    assert push.push("dev", "base:1", _Ecr(there=False)) == f"{REGISTRY}@{DIGEST}"
    output, build, login, pushed, config = ran()
    assert output == "pulumi stack output registry --stack dev"
    assert " build --platform linux/amd64" in build
    assert "--build-arg BASE=base:1" in build
    assert login.endswith(f"login --username AWS --password-stdin {REGISTRY.partition('/')[0]}")
    assert " --config /" in login.replace("docker", "")  # a folder of this run, not the person's
    assert f"push {REGISTRY}:" in pushed
    assert config == f"pulumi config set paddle-training:image {REGISTRY}@{DIGEST} --stack dev"


def test_an_image_that_is_there_is_not_built_again(ran):
    push.push("dev", "base:1", _Ecr(there=True))
    assert [line.split()[0] for line in ran()] == ["pulumi", "pulumi"]


def test_podman_and_buildah_keep_the_login_in_a_file_of_this_run(tmp_path):
    for program, verb in (("podman", "build"), ("buildah", "bud")):
        tool = push.Builder(program)
        assert tool.build(tmp_path, "b", "i")[:2] == [program, verb]
        for words in (tool.login(tmp_path, "h"), tool.push(tmp_path, "i")):
            assert str(tmp_path / "auth.json") in words


def test_what_is_no_ecr_address_is_refused():
    with pytest.raises(LocalError, match="no ECR repository"):
        push.region("docker.io/library/x")


def test_without_any_builder_the_message_names_them(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match="docker, podman or buildah"):
        push.builder()
