"""Tests of the images of the local cluster: layers that images share or nodes have, and the package mirror."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from local import launcher_image
from local.cluster import images_on_nodes
from local.cluster.daemon_configs import plan_nodes
from local.external_commands import LocalError
from testkit.written_files import write_files


def test_an_archive_has_no_present_blobs_and_the_new_image_name(tmp_path):
    layout, blobs = tmp_path / "layout", tmp_path / "layout" / "blobs" / "sha256"
    write_files(layout, {"index.json": '{"manifests": [{}]}'})
    write_files(blobs, {"a": "a", "b": "b", "c": "c"})
    (blobs / "d").hardlink_to(blobs / "c")  # as layers of two images; an archive has no links
    out = io.BytesIO()
    images_on_nodes.write_archive(layout, out, "localhost/new:2", {"sha256:a"})
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        content = {name: tar.extractfile(name).read() for name in tar.getnames()}
    index = json.loads(content.pop("index.json"))
    assert content == {"blobs/sha256/b": b"b", "blobs/sha256/c": b"c", "blobs/sha256/d": b"c"}
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/new:2"


def test_an_image_links_the_layers_of_an_earlier_one_and_has_no_others(tmp_path, monkeypatch):
    def copy(argv, why):
        folder = Path(argv[-1].split(":")[1])
        blobs = folder / "blobs" / "sha256"
        assert {path.name for path in blobs.iterdir()} == {"base", "earlier"}
        manifest = '{"layers": [{"digest": "sha256:base"}, {"digest": "sha256:code"}]}'
        write_files(blobs, {"code": "code", "manifest": manifest})
        write_files(folder, {"index.json": '{"manifests": [{"digest": "sha256:manifest"}]}'})

    monkeypatch.setattr(launcher_image, "run_command", copy)
    layers, more = (tmp_path / name / "blobs" / "sha256" for name in "12")
    write_files(layers, {"base": "base", "earlier": "earlier"})
    launcher_image._write_layout("localhost/a:2", tmp_path / "2")
    assert {path.name for path in more.iterdir()} == {"base", "code", "manifest"}
    assert (more / "base").samefile(layers / "base")


def test_find_mirror_returns_the_machines_mirror_of_the_suite():
    targets = "http://a.test/debian-security bookworm-security\nhttp://b.test/debian bookworm\n"
    assert launcher_image.find_mirror(targets) == "http://b.test/debian"
    assert launcher_image.find_mirror("http://c.test/debian trixie\n") == ""


def test_an_old_image_of_the_other_runtime_stays_because_its_next_build_needs_its_layers(
    tmp_path, monkeypatch
):
    tags = ("old", "new", "old-collective", "older-collective")
    folders = {tag: tmp_path / "layouts" / tag for tag in tags}
    for folder in folders.values():
        folder.mkdir(parents=True)
    removed = []

    def run(command, *words):
        if command == "rmi":
            removed.append(words[0].rpartition(":")[2])
            return ""
        return "\n".join(f"{launcher_image.REPOSITORY}:{tag}" for tag in tags) + "\nlocalhost/other:old\n"

    monkeypatch.setattr(launcher_image, "run_buildah", run)
    monkeypatch.setattr(
        launcher_image, "layout_path", lambda name: tmp_path / "layouts" / name.rpartition(":")[2]
    )
    monkeypatch.setattr(launcher_image, "image_name", lambda runtime: f"{launcher_image.REPOSITORY}:new")
    launcher_image._remove_old_images("fleet")
    assert removed == ["old"]
    assert {tag for tag, folder in folders.items() if folder.is_dir()} == {
        "new",
        "old-collective",
        "older-collective",
    }


@pytest.mark.parametrize("imports", [1, 2, 3])
def test_an_incomplete_import_is_repeated_with_all_layers_and_then_an_error(tmp_path, monkeypatch, imports):
    """It is incomplete until it was imported `imports` times."""
    given = []
    monkeypatch.setattr(images_on_nodes, "_run_ctr", lambda node, *words: "sha256:a\n")
    monkeypatch.setattr(
        images_on_nodes, "_import_layers", lambda node, layout, image, present: given.append(present)
    )
    monkeypatch.setattr(
        images_on_nodes, "image_names", lambda node: {"new"} if len(given) >= imports else set()
    )
    [node] = plan_nodes(1)
    if imports > 2:
        with pytest.raises(LocalError, match=r"new is incomplete in node1, .*Fix: "):
            images_on_nodes.import_into(node, tmp_path, "new")
    else:
        assert images_on_nodes.import_into(node, tmp_path, "new")
    assert given == [{"sha256:a"}, set()][:imports]
