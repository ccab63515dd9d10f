"""Inject faults into the local cluster and repair them: stopped daemons, disconnected nodes, a small volume."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.cluster import cluster_lifecycle
from local.cluster.supervisor import HELD
from local.paths import POD_UID, SOURCES, STATE
from testkit.waiting import until

VOLUMES = STATE / "volumes"


def run_command(*words: str | Path, check: bool = True) -> bool:
    """Return whether a command exits with 0; fail the test otherwise if `check` is set."""
    ended = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=60
    )
    assert not check or ended.returncode == 0, f"{words}: {ended.stderr}"
    return ended.returncode == 0


def in_cluster(*words: str | Path, check: bool = True) -> bool:
    """Run a command in the mounts and the network of the cluster's control plane; see `run_command`."""
    process = cluster_lifecycle.supervisor_process()
    return run_command("nsenter", f"--target={process}", "--mount", "--net", *words, check=check)


def repair_cluster() -> None:
    """Let stopped daemons start again, and wait until the cluster is ready."""
    nodes = cluster_lifecycle.running_nodes()
    for each in nodes:
        in_cluster("ip", "link", "set", each.link, "up")
    for file in HELD.glob("*"):
        file.unlink(missing_ok=True)
    until(lambda: set(cluster_lifecycle.daemon_states().values()) == {"running"}, "all daemons", 60)
    assert not cluster_lifecycle.start_cluster(len(nodes)), "the cluster was started with other settings"


@contextlib.contextmanager
def stopped_daemons(*names: str) -> Iterator[None]:
    """Kill these daemons, keep them stopped during the block, and repair the cluster afterwards."""
    HELD.mkdir(exist_ok=True)
    for name in names:  # as in a crash, no client is notified
        (HELD / name).touch()
    try:
        until(
            lambda: {cluster_lifecycle.daemon_states()[name] for name in names} == {"exited with -9"},
            names,
            10,
        )
        yield
    finally:
        repair_cluster()


def kubelet_and_containerd(node: str) -> tuple[str, str]:
    """Return the names of a node's kubelet and containerd daemons."""
    return f"{node}-kubelet", f"{node}-containerd"


def disconnect_node(name: str, seconds: float) -> None:
    """Drop all packets from and to this node and its pods for so many seconds."""
    [link] = [node.link for node in cluster_lifecycle.running_nodes() if node.name == name]
    in_cluster("ip", "link", "set", link, "down")
    try:
        time.sleep(seconds)
    finally:
        in_cluster("ip", "link", "set", link, "up")


@contextlib.contextmanager
def dropped_packets(pid: int, address: str) -> Iterator[None]:
    """Drop what `address` sends to the pod of process `pid` during the block; the other direction works."""
    rule = "INPUT", "-s", address, "-j", "DROP"
    enter = "nsenter", f"--net=/proc/{pid}/ns/net", "iptables", "-w"
    run_command(*enter, "-I", *rule)
    try:
        yield
    finally:
        run_command(*enter, "-D", *rule, check=False)  # the pod may be gone, and its rules with it


@dataclass(frozen=True)
class Volume:
    """A small file system that is used as the shared storage."""

    folder: Path
    image: Path

    def mount(self) -> None:
        """Mount the volume on this machine and in the cluster."""
        run_command("mount", "-o", "loop", self.image, self.folder)
        in_cluster("mount", self._loop_device(), self.folder)

    def unmount(self) -> None:
        """Unmount the volume and wait until no process uses a file of it or a copy of the mount.

        A mount namespace that another program created meanwhile keeps such a copy, and with it the aborted
        file system, which a new mount would show again.

        """
        unused = f"nobody uses {self.folder}"
        until(lambda: in_cluster("umount", self.folder, check=False), unused, 30, 0.5)
        until(lambda: run_command("umount", self.folder, check=False), unused, 30, 0.5)
        until(lambda: not self._loop_device(), f"no mount namespace holds {self.image}", 60, 0.5)

    def _loop_device(self) -> str:
        """Return the loop device that uses the image, or an empty string."""
        command = ["losetup", "--noheadings", "--output", "NAME", "-j", self.image]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def fill(self) -> None:
        """Fill the volume to the last byte."""
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError), (self.folder / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(b"0")

    def free(self) -> None:
        """Delete the file that fills the volume."""
        (self.folder / "filler").unlink()

    def refuse_writes(self) -> None:
        """Remount the volume read-only, as a file system does that finds itself damaged; open files too."""
        run_command("mount", "-o", "remount,abort", self.folder)

    def accept_writes(self) -> None:
        """Check and mount the volume again, the only way to make it writable."""
        self.unmount()
        run_command("e2fsck", "-p", self.image, check=False)  # exits with 1 when it repaired something
        self.mount()


@contextlib.contextmanager
def small_volume(name: str, megabytes: int) -> Iterator[Volume]:
    """Yield a volume that belongs to the pods' user and has the examples' data in sources/."""
    made = Volume(VOLUMES / name, VOLUMES / f"{name}.img")
    made.folder.mkdir(parents=True, exist_ok=True)
    with made.image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without space kept for root: pods and this test have the same.
    run_command("mkfs.ext4", "-q", "-F", "-m", "0", made.image)
    made.mount()
    try:
        # The wheels alone: what else a person has brought there may be larger than the volume.
        (made.folder / "sources").mkdir()
        for wheel in SOURCES.glob("*.whl"):
            shutil.copy(wheel, made.folder / "sources")
        for path in (made.folder, made.folder / "sources"):
            os.chown(path, POD_UID, POD_UID)
        yield made
    finally:
        made.unmount()
        made.image.unlink()
        made.folder.rmdir()
