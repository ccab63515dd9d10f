"""Images in the nodes' containerds: what is there, side-by-side import, pinning and removal."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.cluster.plan import Node
from local.errors import LocalError
from local.images.slim import write_slim
from local.run import ok, run, tail

# The kubelet's image collection leaves a pinned image alone; without it a full disk once took the pause
# image away.
_PINNED = "io.cri-containerd.pinned=pinned"
_IMPORTED = "paddle-training.imported"  # unix seconds
# Images of one launcher share all but their last layer, so a few old ones cost nothing, and Jobs that are
# still to start their pods find theirs.
KEPT = 5


def ctr(node: Node) -> list[str]:
    return ["ctr", "--address", str(node.socket), "--namespace", "k8s.io"]


def names(node: Node) -> set[str]:
    """Names of the images that the node has, whole ones only."""
    listed = run([*ctr(node), "images", "check"], why=f"listing the images of {node.name}").splitlines()
    return {line.split()[0] for line in listed if " complete " in line and line.rstrip().endswith("true")}


def _blobs(node: Node) -> set[str]:
    return set(run([*ctr(node), "content", "ls", "-q"], why=f"listing the layers of {node.name}").split())


def import_into(node: Node, archive: Path, image: str) -> bool:
    """Import unless a whole image of that name is there; True when it was imported.

    Only layers that the node lacks are handed over. A layer may be collected between the look and the
    import; then the image is incomplete, and everything is handed over once more.
    """
    if image in names(node):
        return False
    for present in (_blobs(node), set[str]()):
        _feed(node, archive, image, present)
        if image in names(node):
            break
    run(
        [*ctr(node), "images", "label", image, _PINNED, f"{_IMPORTED}={int(time.time())}"],
        why=f"pinning {image} on {node.name}",
    )
    return True


def _feed(node: Node, archive: Path, image: str, present: set[str]) -> None:
    command = [*ctr(node), "images", "import", "--snapshotter", "overlayfs", "-"]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said)
        broken = False
        try:
            assert child.stdin is not None
            with child.stdin as stream:
                write_slim(archive, stream, image, present)
        except BrokenPipeError:
            broken = True  # ctr gave up; what it said is the reason
        code = child.wait(900)
        said.seek(0)
        # With layers left out a failure is not final: the caller tries again with all of them.
        if (code or broken) and not present:
            raise LocalError(
                f"Importing {image} into {node.name} failed with "
                f"{code}:\n{tail(said.read().decode(errors='replace'))}"
            )


def import_everywhere(nodes: Sequence[Node], archive: Path, image: str) -> int:
    """Import into all nodes side by side; how many needed it."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        return sum(pool.map(lambda node: import_into(node, archive, image), nodes))


def superseded(listing: str, repository: str) -> list[str]:
    """Images of `repository` beyond the `KEPT` that were imported last.

    listing: what `ctr images ls` prints: reference, …, labels; an image without our label counts as the
    oldest.
    """
    ages = {}
    for line in listing.splitlines()[1:]:
        reference = line.split()[0]
        if reference.rpartition(":")[0] == repository:
            stamp = re.search(rf"{re.escape(_IMPORTED)}=(\d+)", line)
            ages[reference] = int(stamp[1]) if stamp else 0
    return sorted(ages, key=lambda reference: ages[reference], reverse=True)[KEPT:]


def unnamed(listing: str) -> list[str]:
    """References `sha256:…` (which containerd makes beside each name) whose image no name keeps any more.

    listing: what `ctr images ls` prints: reference, type, digest, ….
    """
    rows = [line.split()[:3] for line in listing.splitlines()[1:] if len(line.split()) > 2]
    kept = {digest for reference, _, digest in rows if not reference.startswith("sha256:")}
    return [
        reference for reference, _, digest in rows if reference.startswith("sha256:") and digest not in kept
    ]


def remove_superseded(nodes: Sequence[Node], repository: str) -> None:
    """Drop old images of a repository, unless a container still is of one."""
    for node in nodes:
        listed = run([*ctr(node), "containers", "ls"], why=f"listing the containers of {node.name}")
        used = {line.split()[1] for line in listed.splitlines()[1:] if len(line.split()) > 1}
        for choose in (lambda listing: superseded(listing, repository), unnamed):
            listing = run([*ctr(node), "images", "ls"], why=f"listing the images of {node.name}")
            old = [reference for reference in choose(listing) if reference not in used]
            if old:
                ok([*ctr(node), "images", "rm", *old], seconds=300)
