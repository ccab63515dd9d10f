"""Breaks parts of the local cluster, and mends them: daemons, a node's link, a small volume of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local.cluster import lifecycle, node, processes
from local.cluster.plan import Node
from local.demo import start_cluster
from local.paths import POD_UID, SOURCES, STATE
from tests.waiting import until

VOLUMES = STATE / "volumes"


def command(*words: str | Path, check: bool = True) -> bool:
    """Whether a command went well; with `check` a failing one fails the test."""
    ended = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=60
    )
    assert not check or ended.returncode == 0, f"{words}: {ended.stderr}"
    return ended.returncode == 0


def mend() -> None:
    """Starts what was stopped, as `make cluster` does; a whole cluster is left alone."""
    nodes = lifecycle.running_nodes()
    for each in nodes:
        command("ip", "link", "set", each.link, "up")
    start_cluster(len(nodes))


@contextlib.contextmanager
def stopped(*names: str) -> Iterator[None]:
    """These daemons do not run; mended behind it."""
    for name in names:  # as a crash does it: nobody is told
        who = processes.record(name)
        assert who is not None, f"{name} does not run"
        os.kill(who.pid, signal.SIGKILL)
    processes.stop(*names)
    try:
        yield
    finally:
        mend()


def node_named(name: str) -> Node:
    """The node that Kubernetes calls so."""
    return next(each for each in lifecycle.running_nodes() if each.name == name)


def agents(name: str) -> tuple[str, str]:
    """Kubelet and containerd of a node, the former first."""
    containerd, kubelet, _ = node.daemons(node_named(name))
    return kubelet, containerd


def cut(name: str, seconds: float) -> None:
    """No packet reaches or leaves this node, its pods' neither, for so long."""
    link = node_named(name).link
    command("ip", "link", "set", link, "down")
    try:
        time.sleep(seconds)
    finally:
        command("ip", "link", "set", link, "up")


@contextlib.contextmanager
def deaf(pid: int, address: str) -> Iterator[None]:
    """Nothing that `address` sends reaches the pod of this process; what the pod sends arrives there."""
    rule = "INPUT", "-s", address, "-j", "DROP"
    enter = "nsenter", f"--net=/proc/{pid}/ns/net", "iptables", "-w"
    command(*enter, "-I", *rule)
    try:
        yield
    finally:
        command(*enter, "-D", *rule, check=False)  # the pod may be gone, and its rules with it


@dataclass(frozen=True)
class Volume:
    """A small file system of its own in the place of the shared storage."""

    folder: Path
    image: Path

    def mount(self) -> None:
        command("mount", "-o", "loop", self.image, self.folder)

    def unmount(self) -> None:
        """Unmount, and wait until no process has the volume: neither a file nor a copy of the mount.

        A mount namespace that another program made meanwhile keeps such a copy, and with it the aborted
        file system, which a new mount would show again.
        """
        until(lambda: command("umount", self.folder, check=False), f"nobody uses {self.folder}", 30, 0.5)
        until(self._is_free, f"no mount namespace holds {self.image}", 60, 0.5)

    def _is_free(self) -> bool:
        return not subprocess.run(["losetup", "-j", self.image], capture_output=True, check=True).stdout

    def fill(self) -> None:
        """Not one more byte goes in."""
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError), (self.folder / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(b"0")

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def refuse_writes(self) -> None:
        """What a file system does that finds itself damaged: read-only, also for files that are open."""
        command("mount", "-o", "remount,abort", self.folder)

    def accept_writes(self) -> None:
        """Only a check and a new mount do that."""
        self.unmount()
        command("e2fsck", "-p", self.image, check=False)  # it ends with 1 when it mended something
        self.mount()


@contextlib.contextmanager
def volume(name: str, megabytes: int) -> Iterator[Volume]:
    """A volume that belongs to the pods' user, with the examples' data in sources/."""
    made = Volume(VOLUMES / name, VOLUMES / f"{name}.img")
    made.folder.mkdir(parents=True, exist_ok=True)
    with made.image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without space kept for root: pods and this test have the same.
    command("mkfs.ext4", "-q", "-F", "-m", "0", made.image)
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
