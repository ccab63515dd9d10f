"""Tests of the toolchain: which tools are built, how, and their cache keys."""

from __future__ import annotations

import re

import pytest

from local import go_tools
from local.external_commands import LocalError
from local.go_tools import Tool, find_tool
from testkit.written_files import write_files, write_script


def test_cache_key_of_a_tool_changes_with_sources_packages_and_names(tmp_path, monkeypatch):
    one = Tool("t", ("example.test/p",))
    first = one.folder
    assert re.fullmatch(r"t-[0-9a-f]{12}", first.name)
    assert Tool("t", ("example.test/q",)).folder != first
    assert Tool("t", ("example.test/p",), names=("q",)).folder != first
    monkeypatch.setattr(go_tools, "module_digest", lambda _: "another")
    assert one.folder != first


def test_digest_of_a_go_module_changes_only_with_its_own_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(go_tools, "SOURCES", tmp_path)
    modules = (".", "helm", "language")

    def digests() -> list[str]:
        return [go_tools.module_digest.__wrapped__(module) for module in modules]

    def changed_by_writing(file: str) -> list[str]:
        before = digests()
        write_files(tmp_path, {file: "module m\n"})
        return [m for m, old, new in zip(modules, before, digests(), strict=True) if old != new]

    assert changed_by_writing("go.mod") == ["."]
    assert changed_by_writing("left-out/pulumi/go.mod") == ["."]
    assert changed_by_writing("helm/go.mod") == ["helm"]
    assert changed_by_writing("language/go.sum") == ["language"]


def test_another_cluster_needs_only_the_tools_of_a_stack():
    names = [one.name for one in go_tools.tools_to_build(cluster=False)]
    assert names == ["helm", "pulumi", "language"]


def test_tools_of_the_cluster_are_built_first_and_each_go_module_by_one_command():
    everything = go_tools.tools_to_build(tests=True)
    assert everything == [*go_tools.TOOLS]
    assert tuple(one.name for one in everything[:2]) == go_tools.CLUSTER
    assert [folder.name for folder, _, _ in go_tools._group_by_go_module(everything)] == [
        *("src", "helm", "src", "language")
    ]


@pytest.mark.parametrize(
    ("go", "message"),
    [
        ("", "Go is not on PATH"),
        ("echo go1.19.8", r"Go on PATH is go1\.19\.8, .*Fix: install Go 1\.26"),  # that of Debian 12
    ],
)
def test_a_build_without_a_new_go_raises_an_error_with_a_fix(monkeypatch, tmp_path, go, message):
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    if go:
        write_script(tmp_path / "go", f"#!/bin/sh\n{go}\n")
    with pytest.raises(LocalError, match=message):
        go_tools.ensure_tools([find_tool("helm")])


GO = """#!/bin/sh
for package; do :; done
case "$1" in
list) echo "$package" ;;
build) while [ "$1" != -o ]; do shift; done
  echo "$package"; [ -e FOLDER/broken ] && echo 'verifying module: checksum mismatch' >&2 && seq 50 && exit 1
  echo built > "$2/${package##*/}" ;;
esac
"""


@pytest.fixture
def go(monkeypatch, tmp_path):
    """Put a fake `go` on PATH; it fails while the file `broken` exists."""
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(go_tools, "create_source_folder", lambda work: (work / "helm").mkdir(parents=True))
    write_script(tmp_path / "go", GO.replace("FOLDER", str(tmp_path)))
    (tmp_path / "main.go").write_text("package main")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_failed_build_raises_its_compiler_errors_and_leaves_no_tool(go):
    (go / "broken").touch()
    with pytest.raises(LocalError, match="checksum mismatch"):
        go_tools.ensure_tools([find_tool("helm")])
    assert not (go / "cache" / "tools").exists()


def test_a_built_tool_has_all_its_names_and_the_build_caches_are_deleted(go):
    one = find_tool("kubernetes")
    go_tools.ensure_tools([one])
    assert {file.name for file in one.folder.iterdir()} == {"kubernetes", *one.names}
    assert (one.folder / "kubectl").read_text() == "built\n"
    assert not (go / "cache" / "build").exists()


def test_build_caches_are_kept_until_all_tools_are_built(go):
    with go_tools.tool_builder([find_tool("helm"), find_tool("coredns")]) as make:
        make([find_tool("helm")])
        assert find_tool("helm").is_built()
        assert (go / "cache" / "build").exists()
        make([find_tool("helm"), find_tool("coredns")])
    assert find_tool("coredns").is_built()


def test_a_full_disk_is_reported_before_anything_is_built(go, monkeypatch):
    monkeypatch.setattr(go_tools, "_BUILD_GB", 10_000_000.0)
    with pytest.raises(LocalError, match=r"needs [\d.]+ GB .* has [\d.]+ GB free. Nothing was started"):
        go_tools.ensure_tools([find_tool("helm")])


def test_link_missing_files_keeps_replaced_files_and_rejects_files_unknown_to_the_module(tmp_path):
    original = write_files(tmp_path / "original", {"a/x.go": "original", "a/y.go": "original"})
    trimmed = write_files(tmp_path / "trimmed", {"a/x.go": "trimmed"})
    go_tools.link_missing_files(trimmed, original)
    assert [(trimmed / name).read_text() for name in ("a/x.go", "a/y.go")] == ["trimmed", "original"]
    (trimmed / "a/gone.go").write_text("trimmed")
    with pytest.raises(
        LocalError, match=r"left-out/trimmed/a/gone.go replaces a file that original does not have"
    ):
        go_tools.link_missing_files(trimmed, original)
