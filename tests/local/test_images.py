"""Tests of the images of the local cluster: partial archives and the package mirror."""

from __future__ import annotations

import io
import json
import tarfile

from local import launcher_image
from local.cluster import images_on_nodes


def test_a_partial_archive_has_no_present_blobs_and_the_new_image_name(tmp_path):
    files = {"index.json": b'{"manifests": [{}]}', "blobs/sha256/a": b"1", "blobs/sha256/b": b"2"}
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    out = io.BytesIO()
    images_on_nodes.write_partial_archive(tmp_path / "1.tar", out, "localhost/new:2", {"sha256:a"})
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert tar.getnames() == ["index.json", "blobs/sha256/b"]
        index = json.load(tar.extractfile("index.json"))
    assert index["manifests"][0]["annotations"]["io.containerd.image.name"] == "localhost/new:2"


def test_find_mirror_returns_the_machines_mirror_of_the_suite():
    targets = "http://a.test/debian-security bookworm-security\nhttp://b.test/debian bookworm\n"
    assert launcher_image.find_mirror(targets) == "http://b.test/debian"
    assert launcher_image.find_mirror("http://c.test/debian trixie\n") == ""
