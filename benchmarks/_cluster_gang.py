"""Run a gang (all launchers of one job) in three pods of the local cluster, to compare with loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

import yaml

from benchmarks._example_trainings import RANKS, events, read
from launcher.cli.launch_training import merge_values
from launcher.paths import POD_WORK_DIR, WorkPaths
from local.paths import KUBECONFIG
from testkit.local_cluster import CHART, Training, find_cluster
from testkit.waiting import until

INDEX = "batch.kubernetes.io/job-completion-index"
KILL = """
import os, pathlib, signal, sys, time
killed = time.time()
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try: words = path.joinpath("comm").read_text().split()
    except OSError: continue
    if words[:1] == sys.argv[1:2]: os.kill(int(path.name), signal.SIGKILL)
print(killed)
"""
BEGAN = """
import os, time
ticks = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19])
print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK"))
"""


def prepare_cluster() -> bool:
    """Give every node of the local cluster the launcher image; return whether such a cluster is running."""
    if not KUBECONFIG.exists():
        return False
    try:
        find_cluster().kubectl("get", "nodes", seconds=10)
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    subprocess.run([sys.executable, "-m", "local", "image"], stdout=sys.stderr, check=True)
    return True


class PodGang:
    """One release in its own namespace; a context manager that removes everything at the end."""

    def __init__(self, example: str, number: int) -> None:
        self.cluster = find_cluster()
        name = f"bench-{example.replace('_', '-')}-{number}"
        values = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
        changes = {
            "image": self.cluster.image,
            "imagePullPolicy": "Never",
            "jobName": name,
            "logFormat": "json",
            "portsNum": 1,
            "portsNumSparse": 1,
            "storage": {"type": "hostPath", "hostPath": {"path": str(self.cluster.shared)}},
            "training": {"passes": 100000, "restarts": 100},
        }
        self.training = Training(self.cluster, name, merge_values(values, changes))
        self._pods: dict[int, str] = {}

    def __enter__(self) -> PodGang:
        self.cluster.kubectl("create", "namespace", self.training.namespace)
        try:
            self.training.upgrade()
            until(self._find, "three pods that run", 180, 0.5)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.training.remove()

    def _find(self) -> bool:
        """Find the running pod of each rank; return whether all ranks have one."""
        running = [p for p in self.training.pods() if p["status"].get("phase") == "Running"]
        self._pods = {int(p["metadata"]["labels"][INDEX]): p["metadata"]["name"] for p in running}
        return len(self._pods) == len(RANKS)

    def _python(self, rank: int, code: str, *words: str) -> str:
        """Run Python `code` with the arguments `words` in a rank's pod and return its output."""
        pod = "exec", self._pods[rank], "-n", self.training.namespace
        return self.cluster.kubectl(*pod, "--", "python3", "-c", code, *words)

    def began(self) -> float:
        """Return when the launcher of the last pod started (Unix seconds)."""
        return max(float(self._python(rank, BEGAN)) for rank in RANKS)

    def trains(self, after: float) -> bool:
        """Return whether every rank has completed its first batch after the time `after` (Unix seconds)."""
        status: dict[str, Any] = read(self.training.output / "status.json")
        restarted = max((r["at"] for r in status.get("restarts", [])), default=0.0)
        # Until a kill is detected, the newest restart is older than it; a first start has no restart.
        has_restarted = not status.get("attempt") or restarted > after
        fresh = status.get("updated", 0.0) > after and has_restarted
        if not fresh or any(r["state"] != "training" for r in status["ranks"]):
            time.sleep(0.4)
            return False
        return all(self.marks(rank).get("first_batch", 0.0) > after for rank in RANKS)

    def marks(self, rank: int) -> dict[str, float]:
        """Return when (Unix seconds) a rank's trainer reached each point of its start (`imported`, `joined`, …)."""
        code = f"print(open({str(WorkPaths(POD_WORK_DIR).progress)!r}).read())"
        return dict(json.loads(self._python(rank, code)).get("marks", {}))

    def events(self, rank: int) -> list[tuple[float, str]]:
        """Return (Unix seconds, message) of each log line of a rank's launcher."""
        return events(self.cluster.kubectl("logs", self._pods[rank], "-n", self.training.namespace))

    def kill(self, rank: int, role: str) -> float:
        """Kill a rank's `trainer` or `pserver` (the role), and return when (Unix seconds)."""
        return float(self._python(rank, KILL, role))
