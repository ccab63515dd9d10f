"""Which tools are built, which of a person's own are used, and under which key they are kept."""

from __future__ import annotations

import re

import pytest

from local.errors import LocalError
from local.toolchain import build, left_out, own, progress, tools, versions
from local.toolchain.tools import Tool, tool


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


def test_the_key_changes_with_the_sources_and_with_what_is_built(tmp_path, monkeypatch):
    one = Tool("t", ("example.test/p",))
    first = one.folder
    assert re.fullmatch(r"t-[0-9a-f]{12}", first.name)
    assert Tool("t", ("example.test/q",)).folder != first
    assert Tool("t", ("example.test/p",), names=("q",)).folder != first
    digests = []
    for content in ("module m\n", "module m\n\ngo 1.26\n"):
        (tmp_path / "go.mod").write_text(content)
        digests.append(tools.sources_digest.__wrapped__(tmp_path))
    assert digests[0] != digests[1]
    monkeypatch.setattr(tools, "sources_digest", lambda: digests[0])
    assert one.folder != first


def test_a_named_cluster_with_fitting_tools_builds_nothing():
    assert build.wanted(cluster=False, fitting=["pulumi", "helm", "kubectl"]) == []


def test_ones_own_pulumi_replaces_language_host_and_provider_too():
    names = {one.name for one in build.wanted(cluster=True, fitting=["pulumi"])}
    assert names == {"kubernetes", "coredns", "helm"}


def test_the_cluster_is_built_first_and_each_go_module_at_one_go():
    everything = build.wanted(tests=True)
    assert tuple(one.name for one in everything[:2]) == build.CLUSTER
    assert [folder.name for folder, _, _ in build._commands(everything)] == ["src", "language"]


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
        build.ensure([tool("helm")])


GO = """#!/bin/sh
for package; do :; done
case "$1" in
list) printf '%s\\t%s\\tmain.go\\n' "$package" FOLDER ;;
build) while [ "$1" != -o ]; do shift; done
  echo "$package"; [ -e FOLDER/broken ] && echo 'verifying module: checksum mismatch' >&2 && seq 50 && exit 1
  echo built > "$2/${package##*/}" ;;
esac
"""


@pytest.fixture
def go(monkeypatch, tmp_path):
    """A `go` that lists one package and builds one file; it fails once there is a file `broken`."""
    monkeypatch.setenv("PADDLE_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(left_out, "lay", lambda work, _: work.mkdir(parents=True))
    fake = tmp_path / "go"
    fake.write_text(GO.replace("FOLDER", str(tmp_path)))
    fake.chmod(0o755)
    (tmp_path / "main.go").write_text("package main")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_failed_build_shows_its_errors_among_the_packages_and_leaves_no_tool(go):
    (go / "broken").touch()
    with pytest.raises(LocalError, match="checksum mismatch"):
        build.ensure([tool("helm")])
    assert not (go / "cache" / "tools").exists()


def test_a_built_tool_appears_whole_under_all_its_names_and_go_s_caches_are_dropped(go):
    one = tool("kubernetes")
    build.ensure([one])
    assert {file.name for file in one.folder.iterdir()} == {"kubernetes", *one.names}
    assert (one.folder / "kubectl").read_text() == "built\n"
    assert not (go / "cache" / "build").exists()


def test_what_was_compiled_stays_until_all_that_was_asked_for_is_built(go):
    with build.building([tool("helm"), tool("coredns")]) as make:
        make([tool("helm")])
        assert tool("helm").built()
        assert (go / "cache" / "build").exists()
        make([tool("helm"), tool("coredns")])
    assert tool("coredns").built()


def test_a_full_disk_is_said_before_anything_is_built(go, monkeypatch):
    monkeypatch.setattr(build, "_BUILD_GB", 10_000_000.0)
    with pytest.raises(LocalError, match=r"needs [\d.]+ GB .* has [\d.]+ GB free. Nothing was begun"):
        build.ensure([tool("helm")])


def test_the_progress_counts_packages_once_and_tells_the_time_left_by_their_size(tmp_path):
    (tmp_path / "small.go").write_text("s" * 100)
    (tmp_path / "large.go").write_text("l" * 300)
    listed = f"a/small\t{tmp_path}\tsmall.go\nunsafe\t{tmp_path}\t\na/large\t{tmp_path}\tlarge.go\n"
    now = 0.0
    counter = progress.Counter(progress.weights(listed), clock=lambda: now)
    assert str(counter) == "0 of 2 packages"
    now = 60.0
    for line in ("go: downloading example.test/p\n", "a/small\n", "a/small\n"):
        counter.count(line)
    assert str(counter) == "1 of 2 packages, about 3 min left"
    counter.count("a/large\n")
    assert counter.fraction == 1.0


def test_left_out_files_lie_over_their_module_and_must_have_a_counterpart(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for file, text in ((whole / "a/x.go", "whole"), (whole / "a/y.go", "whole"), (cut / "a/x.go", "cut")):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    left_out.fill(cut, whole)
    assert [(cut / name).read_text() for name in ("a/x.go", "a/y.go")] == ["cut", "whole"]
    (cut / "a/gone.go").write_text("cut")
    with pytest.raises(
        LocalError, match=r"left-out/cut/a/gone.go stands for a file that whole does not have"
    ):
        left_out.fill(cut, whole)
