"""Tests of the images of the local cluster: names on the nodes, pause image, partial archives, package mirror."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from local.errors import LocalError
from local.images import base_image, images_on_nodes, partial_archive, pause_image


def test_superseded_images_returns_only_the_oldest_images_of_the_repository():
    rows = [
        f"localhost/a:{n} t d 1 p io.x=y,paddle-training.imported={n}"
        for n in range(10, 10 + images_on_nodes.KEPT)
    ]
    others = ["localhost/pause:1 t d 1 p -", "localhost/ab:1 t d 1 p -", "sha256:12 t d 1 p -"]
    listing = "\n".join(["REF TYPE DIGEST SIZE PLATFORMS LABELS", *rows, *others])
    assert images_on_nodes.superseded_images(listing, "localhost/a") == []
    older = "\nlocalhost/a:9 t d 1 p paddle-training.imported=9\nlocalhost/a:unlabelled t d 1 p -"
    assert images_on_nodes.superseded_images(listing + older, "localhost/a") == [
        "localhost/a:9",
        "localhost/a:unlabelled",
    ]


def test_unnamed_references_returns_only_references_of_images_without_a_name():
    listing = "REF TYPE DIGEST SIZE\na:1 t sha256:k 1\nsha256:c1 t sha256:k 1\nsha256:c2 t sha256:gone 1\n"
    assert images_on_nodes.unnamed_references(listing) == ["sha256:c2"]


def test_the_pause_archive_of_one_program_always_has_the_same_bytes(tmp_path):
    program = tmp_path / "catatonit"
    program.write_bytes(b"#!")
    one = pause_image.write_pause_archive(tmp_path / "1.tar", "localhost/pause:1", program).read_bytes()
    assert (
        pause_image.write_pause_archive(tmp_path / "2.tar", "localhost/pause:1", program).read_bytes() == one
    )


def test_a_missing_catatonit_is_reported(tmp_path):
    with pytest.raises(LocalError, match="catatonit"):
        pause_image.write_pause_archive(tmp_path / "1.tar", "x", tmp_path / "catatonit")


def test_a_partial_archive_has_no_present_blobs_and_the_new_image_name(tmp_path):
    program = tmp_path / "p"
    program.write_bytes(b"#!")
    archive = pause_image.write_pause_archive(tmp_path / "1.tar", "localhost/other:1", program)
    with tarfile.open(archive) as tar:
        blobs = [m.name for m in tar if m.name.startswith("blobs/")]
    out = io.BytesIO()
    assert (
        partial_archive.write_partial_archive(
            archive, out, "localhost/new:2", {"sha256:" + blobs[0].rpartition("/")[2]}
        )
        == 1
    )
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert [m.name for m in tar if m.name.startswith("blobs/")] == blobs[1:]
        index = json.load(tar.extractfile("index.json"))
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/new:2"


def test_find_mirror_returns_the_machines_mirror_of_the_suite():
    targets = "http://a.test/debian-security bookworm-security\nhttp://b.test/debian bookworm\n"
    assert base_image.find_mirror(targets) == "http://b.test/debian"
    assert base_image.find_mirror("http://c.test/debian trixie\n") == ""
