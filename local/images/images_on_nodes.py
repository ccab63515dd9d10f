"""List, import, pin and remove images in the containerd of each node."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.cluster.daemon_configs import Node
from local.errors import LocalError
from local.external_commands import command_succeeds, indent_last_lines, run_command
from local.images.partial_archive import write_partial_archive

# The kubelet does not garbage-collect a pinned image. Without the label it once deleted the pause image when
# the disk was full.
_PINNED = "io.cri-containerd.pinned=pinned"
_IMPORTED = "paddle-training.imported"  # label with the time of the import in Unix seconds
# Launcher images share all layers but the last, so a few old ones need little space, and Jobs of older
# releases still find their image.
KEPT = 5


def ctr_command(node: Node) -> list[str]:
    """Return the beginning of a `ctr` command for the node's containerd."""
    return ["ctr", "--address", str(node.socket), "--namespace", "k8s.io"]


def image_names(node: Node) -> set[str]:
    """Return the names of the complete images of the node."""
    listed = run_command(
        [*ctr_command(node), "images", "check"], why=f"listing the images of {node.name}"
    ).splitlines()
    return {line.split()[0] for line in listed if " complete " in line and line.rstrip().endswith("true")}


def _blob_digests(node: Node) -> set[str]:
    return set(
        run_command(
            [*ctr_command(node), "content", "ls", "-q"], why=f"listing the layers of {node.name}"
        ).split()
    )


def import_into(node: Node, archive: Path, image: str) -> bool:
    """Import an image into a node unless the node has it.

    Only the missing layers are sent. If containerd deletes an unused layer between the check and the import, the
    image is incomplete, and the complete archive is imported.

    Returns:
        Whether the image was imported.
    """
    if image in image_names(node):
        return False
    for present in (_blob_digests(node), set[str]()):
        _import_layers(node, archive, image, present)
        if image in image_names(node):
            break
    run_command(
        [*ctr_command(node), "images", "label", image, _PINNED, f"{_IMPORTED}={int(time.time())}"],
        why=f"pinning {image} on {node.name}",
    )
    return True


def _import_layers(node: Node, archive: Path, image: str, present: set[str]) -> None:
    command = [*ctr_command(node), "images", "import", "--snapshotter", "overlayfs", "-"]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        broken = False
        try:
            assert child.stdin is not None
            with child.stdin as stream:
                write_partial_archive(archive, stream, image, present)
        except BrokenPipeError:
            broken = True  # ctr failed; its output contains the reason
        code = child.wait(900)
        output.seek(0)
        # A failed import of a partial archive is not an error: the caller tries again with the complete
        # archive.
        if (code or broken) and not present:
            raise LocalError(
                f"Importing {image} into {node.name} failed with {code}. Fix: correct the cause in the output of ctr, "
                f"then run the same command again:\n{indent_last_lines(output.read().decode(errors='replace'))}"
            )


def import_everywhere(nodes: Sequence[Node], archive: Path, image: str) -> int:
    """Import the image into all nodes in parallel; return how many nodes did not have it."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return sum(pool.map(lambda node: import_into(node, archive, image), nodes))


def superseded_images(listing: str, repository: str) -> list[str]:
    """Return the images of `repository` except the `KEPT` most recently imported ones.

    `listing` is the output of `ctr images ls`. Images without a label with an import time are the oldest.
    """
    ages = {}
    for line in listing.splitlines()[1:]:
        reference = line.split()[0]
        if reference.rpartition(":")[0] == repository:
            stamp = re.search(rf"{re.escape(_IMPORTED)}=(\d+)", line)
            ages[reference] = int(stamp[1]) if stamp else 0
    return sorted(ages, key=lambda reference: ages[reference], reverse=True)[KEPT:]


def unnamed_references(listing: str) -> list[str]:
    """Return the references `sha256:…` of images without a name, from the output of `ctr images ls`.

    containerd creates such a reference in addition to each name.
    """
    rows = [line.split()[:3] for line in listing.splitlines()[1:] if len(line.split()) > 2]
    kept = {digest for reference, _, digest in rows if not reference.startswith("sha256:")}
    return [
        reference for reference, _, digest in rows if reference.startswith("sha256:") and digest not in kept
    ]


def remove_old_images(nodes: Sequence[Node], repository: str) -> None:
    """Delete old images of a repository from the nodes, except images that a container still uses."""
    for node in nodes:
        listed = run_command(
            [*ctr_command(node), "containers", "ls"], why=f"listing the containers of {node.name}"
        )
        used = {line.split()[1] for line in listed.splitlines()[1:] if len(line.split()) > 1}
        for choose in (lambda listing: superseded_images(listing, repository), unnamed_references):
            listing = run_command(
                [*ctr_command(node), "images", "ls"], why=f"listing the images of {node.name}"
            )
            old = [reference for reference in choose(listing) if reference not in used]
            if old:
                command_succeeds([*ctr_command(node), "images", "rm", *old], seconds=300)
