"""Which tools are built, which of a person's own are used, and under which key they are kept."""

from __future__ import annotations

import re

import pytest

from local.errors import LocalError
from local.toolchain import build, modules, own, versions
from local.toolchain.modules import MODULES, Module


@pytest.mark.parametrize(
    ("fits", "text", "expected"),
    [
        (versions.fits_helm, "v3.14.0+gabc", True),
        (versions.fits_helm, "v3.13.9", False),
        (versions.fits_helm, "v4.0.0", False),
        (versions.fits_kubectl, "Client Version: v1.34.1", True),
        (versions.fits_kubectl, "Client Version: v1.36.0-rc.1", True),
        (versions.fits_kubectl, "Client Version: v1.32.4-dispatcher", False),
        (versions.fits_pulumi, "v3.259.0", True),
        (versions.fits_pulumi, "v3.258.9", False),
        (versions.fits_pulumi, "v4.0.0", False),
    ],
)
def test_a_tool_of_ones_own_fits_by_its_version(fits, text, expected):
    assert fits(versions.parse(text)) is expected


def test_what_prints_no_version_has_none():
    assert versions.parse("command not found") is None


def test_the_key_changes_with_a_modules_files_flags_and_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "SOURCES", tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "go.mod").write_text("module m\n")
    one = Module("m", {"p": "example.test/p"})
    first = one.digest()
    assert re.fullmatch(r"[0-9a-f]{12}", first)
    assert Module("m", {"p": "example.test/p"}, {"v": "1"}).digest() != first
    assert Module("m", {"q": "example.test/p"}).digest() != first
    (tmp_path / "m" / "go.mod").write_text("module m\n\ngo 1.26\n")
    assert one.digest() != first


def test_every_module_has_pinned_sources():
    for one in MODULES:
        assert (one.sources / "go.mod").is_file(), one.name
        assert (one.sources / "go.sum").is_file(), one.name


def test_a_named_cluster_with_fitting_tools_builds_nothing():
    assert build.wanted(cluster=False, fitting=["pulumi", "helm", "kubectl"]) == []


def test_ones_own_pulumi_replaces_language_host_and_provider_too():
    names = {one.name for one in build.wanted(cluster=True, fitting=["pulumi"])}
    assert names == {"kubernetes", "coredns", "helm"}


def test_the_own_cache_never_counts_as_a_persons_tools(monkeypatch, tmp_path):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/tools/helm-1:/usr/bin:{tmp_path}-other/bin")
    assert own.outside_path() == f"/usr/bin:{tmp_path}-other/bin"


def test_a_pulumi_without_its_language_host_is_not_used(monkeypatch, tmp_path):
    fake = tmp_path / "pulumi"
    fake.write_text("#!/bin/sh\necho v3.300.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own.found() == {}
    host = tmp_path / "pulumi-language-python"
    host.write_text("#!/bin/sh\n")
    host.chmod(0o755)
    assert own.found() == {"pulumi": fake}


def test_a_build_without_go_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalError, match="Go is not on PATH"):
        build.ensure([modules.module("helm")])


def test_a_failed_build_shows_the_end_of_its_log_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    fake = tmp_path / "go"
    fake.write_text("#!/bin/sh\necho 'verifying module: checksum mismatch' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(LocalError, match="checksum mismatch"):
        build.ensure([modules.module("helm")])
    assert not list((tmp_path / "cache" / "tools").iterdir())


def test_a_built_tool_appears_whole_and_the_clone_stays_clean(monkeypatch, tmp_path):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    fake = tmp_path / "go"
    fake.write_text(
        '#!/bin/sh\ntouch go.sum.new\nfor a; do [ "$last" = -o ] && echo built > "$a"; last=$a; done\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    one = modules.module("helm")
    build.ensure([one])
    assert [file.name for file in one.folder.iterdir()] == ["helm"]
    assert not (one.sources / "go.sum.new").exists()


def test_a_full_disk_is_said_before_anything_is_built(monkeypatch, tmp_path):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_BUILD_GB", 10_000_000.0)
    fake = tmp_path / "go"
    fake.write_text("#!/bin/sh\ntouch /nonexistent/started\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(LocalError, match=r"needs [\d.]+ GB .* has [\d.]+ GB free. Nothing was begun"):
        build.ensure([modules.module("helm")])
