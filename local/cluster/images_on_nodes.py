"""List, import and pin images in the containerd of each node."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from local.cluster.daemon_configs import Node
from local.external_commands import LocalError, indent_last_lines, run_command

# The kubelet does not garbage-collect a pinned image. Without the label it once deleted the pause image when
# the disk was full.
_PINNED = "io.cri-containerd.pinned=pinned"
_NAME = "io.containerd.image.name"  # containerd's annotation with the name of an imported image


def _run_ctr(node: Node, *words: str) -> str:
    return run_command([*_ctr(node), *words], why=f"reading or changing the images of {node.name}")


def _ctr(node: Node) -> list[str]:
    return ["ctr", "--address", str(node.socket), "--namespace", "k8s.io"]


def image_names(node: Node) -> set[str]:
    """Return the names of the complete images of the node."""
    listed = _run_ctr(node, "images", "check").splitlines()
    return {line.split()[0] for line in listed if " complete " in line and line.rstrip().endswith("true")}


def import_into(node: Node, layout: Path, image: str) -> bool:
    """Import an image into a node unless the node has it.

    Only layers that the node does not have are sent. If containerd deletes one of its unused layers in the meantime,
    the imported image is incomplete. In this case all layers are sent again.

    Returns:
        Whether the image was imported.
    """
    if image in image_names(node):
        return False
    for present in (set(_run_ctr(node, "content", "ls", "-q").split()), set[str]()):
        _import_layers(node, layout, image, present)
        if image in image_names(node):
            break
    else:
        raise LocalError(
            f"{image} is incomplete in {node.name}, although all its layers were imported. Fix: repeat the command "
            "that you typed; if that does not help: python3 local/bootstrap.py down --wipe, then make demo"
        )
    _run_ctr(node, "images", "label", image, _PINNED)
    return True


def _import_layers(node: Node, layout: Path, image: str, present: set[str]) -> None:
    command = [*_ctr(node), "images", "import", "--snapshotter", "overlayfs", "-"]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        broken = False
        try:
            assert child.stdin is not None
            with child.stdin as stream:
                write_archive(layout, stream, image, present)
        except BrokenPipeError:
            broken = True  # ctr failed; its output contains the reason
        code = child.wait(900)
        output.seek(0)
        # A failed import without all layers is not an error: the caller tries again with all of them.
        if (code or broken) and not present:
            shown = indent_last_lines(output.read().decode(errors="replace"))
            raise LocalError(
                f"Importing {image} into {node.name} failed with {code}. Fix: correct the cause, then repeat the "
                f"command that you typed. The end of ctr's output:\n{shown}"
            )


def write_archive(layout: Path, out: IO[bytes], image: str, present: Collection[str]) -> None:
    """Write an OCI archive of an image to a stream. Leave out the blobs that the node already has.

    Only one small layer of the launcher's image contains the launcher. So a changed launcher is imported in 1 s.

    Args:
        layout: Folder with the image as an OCI image layout.
        out: Stream to write the archive to.
        image: Name of the image in the archive.
        present: Digests (`sha256:<hex>`) of the blobs to leave out.
    """
    with tarfile.open(fileobj=out, mode="w|") as target:
        for path in sorted(layout.rglob("*")):
            name = path.relative_to(layout).as_posix()
            if not path.is_file() or ":".join(path.parts[-2:]) in present:
                continue
            entry = tarfile.TarInfo(name)  # not `gettarinfo`, which writes links for what two images share
            entry.size = path.stat().st_size
            with path.open("rb") as stream:
                if name != "index.json":
                    target.addfile(entry, stream)
                    continue
                index = json.load(stream)
            for manifest in index["manifests"]:
                manifest["annotations"] = {_NAME: image}
            data = json.dumps(index).encode()
            entry.size = len(data)
            target.addfile(entry, io.BytesIO(data))


def import_everywhere(nodes: Sequence[Node], layout: Path, image: str) -> int:
    """Import the image into all nodes in parallel. Return the number of nodes that did not have the image."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return sum(pool.map(lambda node: import_into(node, layout, image), nodes))
