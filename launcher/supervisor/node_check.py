"""Check the nodes before training (`training.nodeCheck`): each pod measures its node, and rank 0 compares the results.

Each pod measures its processor, its own disk, and the network to the pod of the next rank, which takes about three
seconds. The pods measure at the same time, before they start their processes. A bad node is only reported, and the run
continues.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from launcher.log import log
from launcher.runtimes.runtime_protocol import RankAttempt
from launcher.supervisor.coordinator.members import Member
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.messages import NodeSpeeds
from launcher.supervisor.peers.peer_server import PeerServer, build_check_path

SECONDS = 1.0
"""Seconds that the measurements of the processor and the network take. A file is written to the disk for at most this
time and then synced. Then the file is read to its end, or until three times this time have passed since the
beginning."""
DISK_BYTES = 1 << 25
"""At most this many bytes are written to the disk."""
ANSWER_SECONDS = 8.0
"""Longest wait in seconds for the answer of the next rank, which may start the check a little later."""
BAD_FACTOR = 2.0
"""A node is bad if the median of the nodes is at least this many times its speed."""
LEAST_RANKS = 3
"""With fewer ranks, the median does not show which node differs from the others, so nodes are compared with LIMITS
only."""
LIMITS = {
    "processor": ("MB/s compressed", 0.0, float("inf")),
    "disk": ("MB/s", 0.0, 200.0),
    "network": ("MB/s", 10.0, 500.0),
    "round_trips": ("round trips/s", 20.0, 2000.0),
}
"""Field of NodeSpeeds → (its unit, the speed below which a node is always bad, the speed from which on a node is never
bad).

The lower limits of the network are a tenth of 1 Gbit/s and round trips of 50 ms; the upper limits are 4 Gbit/s and
round trips of 0.5 ms.
"""
CHUNK = 1 << 20
CONNECTS = 10


class NodeCheck:
    """Measures this pod's node.

    Attributes:
        speeds: the newest result; None before the first check.
    """

    def __init__(self, folder: Path, network: PodNetwork) -> None:
        """Create the check; it measures nothing before `run`.

        `folder` is on the disk to measure, the pod's own disk.
        """
        self._folder, self._network = folder, network
        self._hosts: tuple[str, ...] = ()
        """The addresses of the pods of the newest check."""
        self.speeds: NodeSpeeds | None = None

    def run(self, gang: RankAttempt, server: PeerServer, credential: str) -> None:
        """Measure this pod's node; store the result in `speeds`, and log it.

        Nothing is measured if the pods of `gang` are the same as in the newest check. The check takes about three
        seconds, and at most two times ANSWER_SECONDS more. From now on, `server` lets another rank measure its network
        to this pod. `credential` is the credential of the run.
        """
        if gang.hosts == self._hosts:
            return
        self._hosts, server.check_path = gang.hosts, build_check_path(credential)
        following = gang.hosts[(gang.rank + 1) % len(gang.hosts)]
        disk, processor = _measure_disk(self._folder), _measure_processor()
        self.speeds = NodeSpeeds(processor, disk)
        if following != gang.host:
            speed, trips = self._measure_network(following, gang.settings.peer_port, server.check_path)
            self.speeds = NodeSpeeds(processor, disk, speed, trips)
        shown = (f"{name} {getattr(self.speeds, name):,.0f} {unit}" for name, (unit, *_) in LIMITS.items())
        log.info("node check: %s", ", ".join(shown))

    def _measure_network(self, host: str, port: int, path: str) -> tuple[float, float]:
        """Return (MB/s received from pod `host`, round trips a second to that pod); (0, 0) if it does not answer."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._download(host, port, path), self._count_round_trips(host, port)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() >= deadline:
                    log.warning(
                        "node check: no answer from %s within %.0f s: %r", host, ANSWER_SECONDS, error
                    )
                    return 0.0, 0.0
                time.sleep(0.1)

    def _count_round_trips(self, host: str, port: int) -> float:
        """Return the round trips a second: 1 divided by the shortest time that one of CONNECTS connects took."""
        times = [time.monotonic()]
        for _ in range(CONNECTS):
            self._network.connect(host, port, ANSWER_SECONDS).close()
            times.append(time.monotonic())
        return 1 / max(min(end - start for start, end in itertools.pairwise(times)), 1e-6)

    def _download(self, host: str, port: int, path: str) -> float:
        connection = http.client.HTTPConnection(host, port)
        connection.sock = self._network.connect(host, port, ANSWER_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise http.client.HTTPException(f"HTTP status {answer.status}")
            size, began = 0, time.monotonic()
            while time.monotonic() - began < SECONDS and (block := answer.read1(CHUNK)):
                size += len(block)
        return size / 1e6 / max(time.monotonic() - began, 1e-6)


def _measure_processor() -> float:
    """Return the MB/s that one thread compresses."""
    block, size, began = random.Random(0).randbytes(CHUNK), 0, time.monotonic()  # noqa: S311 - no secret
    while time.monotonic() - began < SECONDS:
        zlib.compress(block)
        size += CHUNK
    return size / 1e6 / (time.monotonic() - began)


def _measure_disk(folder: Path) -> float:
    """Return the MB/s of writing, syncing and reading a file; 0 if the disk fails."""
    block, size, began = os.urandom(CHUNK), 0, time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while size < DISK_BYTES and time.monotonic() - began < SECONDS:
                size += file.write(block)
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # do not read from memory
            file.seek(0)
            while (time.monotonic() - began < 3 * SECONDS) and (found := file.read(CHUNK)):
                size += len(found)
    except OSError as error:
        log.warning("node check: the disk of %s failed: %s", folder, error)
        return 0.0
    return size / 1e6 / (time.monotonic() - began)


def describe_bad_nodes(members: Sequence[Member]) -> str:
    """Return a text that says which nodes are too slow, with a fix; empty if no node is, or if none was measured.

    Either of two pods may be the cause of a slow network between them. So each pod is judged by the better of its two
    connections, the one to the next rank and the one to the rank before. For this, `members` must be the ranks of one
    attempt in the order of their places.
    """
    found = [(each.label, each.state.node_speeds) for each in members if each.state.node_speeds is not None]
    bad: list[str] = []
    for name, (unit, least, enough) in LIMITS.items():
        is_link = name in ("network", "round_trips")
        own = [float(getattr(speeds, name)) for _, speeds in found]
        values = [max(own[i - 1], own[i]) for i in range(len(own))] if is_link else own
        median = statistics.median(values) if len(values) >= LEAST_RANKS else 0.0
        if is_link and len(values) == 1:
            continue
        for (label, _), value in zip(found, values, strict=True):
            if value < least or (value < enough and value * BAD_FACTOR <= median):
                others = f" (median of the ranks {median:,.0f})" if median else ""
                bad.append(f"{label}: {name.replace('_', ' ')} {value:,.0f} {unit}{others}")
    if not bad:
        return ""
    return (
        f"Bad nodes, by training.nodeCheck: {'; '.join(bad)}. Fix: see what else runs on that node, or cordon it and "
        "delete the pod: Kubernetes replaces it on another node."
    )
