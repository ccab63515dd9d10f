"""A gang of real launchers on loopback: shared folder, an address a rank, the fake `paddle`, what is left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE, until

HERE = Path(__file__).parent
REPO = HERE.parents[2]
# Short, but a machine that is busy for a second or two changes nothing.
FAST = {
    "poll": 0.05,
    "calm": 0.2,
    "hold": 0.3,
    "silence": 4.0,
    "orphan": 4.0,
    "stuck": 20.0,
    "ready": 5.0,
    "stop": 1.0,
    "servers_end": 1.5,
    "server_early": 1.0,
    "twin": 6.0,
    "tell": 4.0,
    "farewell": 5.0,
    "lock_beat": 0.3,
    "lock_lease": 4.0,
    "lock_stale": 5.5,
    "lock_wait": 16.0,
    "lock_settle": 0.4,
    "status": 0.2,
    "reach": 15.0,
    "export": 30.0,
    "export_base": 0.05,
}
# Gangs of tests that run at the same time in other processes have other addresses.
_subnet = [os.getpid() % 200 + 20, os.getpid() // 200]


def environ(**changes: str) -> dict[str, str]:
    """The smallest environment of a training pod."""
    base = {
        "JOB_NAME": "quick-start",
        "JOB_NAMESPACE": "paddle",
        "PADDLE_LAUNCHER_RELEASE": "paddle-training",
        "PADDLE_LAUNCHER_K8S_JOB": "quick-start-0a1b2c3d",
        "PADDLE_LAUNCHER_DATA_DIGEST": "d1",
        "TRAIN_CONFIG_DIR": "mine",
        "JOB_COMPLETION_INDEX": "0",
        "PADDLE_LAUNCHER_TRAINERS": "3",
        "PADDLE_LAUNCHER_SERVICE": "paddle-training",
    }
    return {**base, **changes}


def write_data(job: Path, shards: int, digest: str = "d1") -> dict[str, Any]:
    """A job's folder as the data Job leaves it, and a program `mine`."""

    def write(path: Path, text: str) -> dict[str, Any]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return {"bytes": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}

    manifest: dict[str, Any] = {
        "version": 2, "dataDigest": digest, "source": "file://x", "sha256": "", "member": "",
        "format": "lines", "seed": 0, "testFraction": 0.1, "splitCount": shards, "lines": shards,
        "shards": [],
    }  # fmt: skip
    for i in range(shards):
        entry = write(job / str(i) / "data" / "train.txt", f"line of {digest} shard {i}\n")
        manifest["shards"].append({"index": i, "lines": 1, **entry})
        (job / str(i) / "data" / "train.list").write_text("./data/train.txt\n")
        (job / str(i) / "data" / "test.list").write_text("./data/test.txt\n")
    manifest["test"] = {"lines": 1, **write(job / "test.txt", "test line\n")}
    manifest["tables"] = [{"name": "items.txt", **write(job / "tables" / "items.txt", "1 item\n")}]
    write(job / "mine" / "trainer_config.py", "settings()\n")
    (job / "manifest.json").write_text(json.dumps(manifest))
    return manifest


class LoopbackGang:
    """Launchers of one run. Use as a context: whatever is left at its end is killed."""

    def __init__(
        self,
        root: Path,
        *,
        trainers: int = 3,
        run: str = "quick-start-0a1b2c3d",
        fake: dict[str, Any] | None = None,
        timings: dict[str, float] | None = None,
        servers_end_themselves: bool = False,
        trainer_waits: bool = False,
        forked: bool = False,
        nics: dict[str, list[str]] | None = None,
        **env: str,
    ) -> None:
        self.root, self.trainers, self.run = root, trainers, run
        self.mark = uuid.uuid4().hex
        self.job = root / "shared" / env.get("JOB_NAME", "quick-start")
        self.output = self.job / "output"
        self.timings = {**FAST, **(timings or {})}
        self.fake, self.env, self.nics = fake or {}, env, nics
        self.servers_end_themselves, self.trainer_waits = servers_end_themselves, trainer_waits
        self.forked = forked
        _subnet[1] += 1
        self.addresses = [f"127.{_subnet[0]}.{_subnet[1] % 250}.{i + 2}" for i in range(trainers)]
        self.names = [f"{run}-{i}.paddle-training" for i in range(trainers)]
        self.hosts = dict(zip(self.names, self.addresses, strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.folder = root / f"gang-{self.mark[:8]}"
        (self.folder / "bin").mkdir(parents=True)
        binary = self.folder / "bin" / "paddle"
        binary.write_text(f"#!{sys.executable} -S\n{(HERE / 'fake_paddle.py').read_text()}")
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        if not (self.job / "manifest.json").exists():
            write_data(self.job, trainers)

    def __enter__(self) -> LoopbackGang:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def config(self, rank: int) -> dict[str, Any]:
        work = self.folder / f"work-{rank}"
        own = {
            "JOB_PATH": str(self.root / "shared"),
            "JOB_COMPLETION_INDEX": str(rank),
            "PADDLE_LAUNCHER_K8S_JOB": self.run,
            "PADDLE_LAUNCHER_TRAINERS": str(self.trainers),
            "PADDLE_LAUNCHER_POD_NAME": f"{self.run}-{rank}-x",
            "PADDLE_LAUNCHER_POD_IP": self.addresses[rank],
            "PADDLE_LAUNCHER_NODE_NAME": f"node-{rank}",
            "PADDLE_LAUNCHER_RUNTIME": "v1",
            "PADDLE_LAUNCHER_PASSES": "3",
            "PADDLE_LAUNCHER_RENDEZVOUS_SECONDS": "8",
            "PADDLE_LAUNCHER_RESTARTS": "0",
            "PADDLE_LAUNCHER_DATA_WAIT_SECONDS": "5",
            "PADDLE_LAUNCHER_WORK_DIR": str(work),
            "PADDLE_LAUNCHER_TERMINATION_LOG": str(self.folder / f"termination-{rank}"),
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "FAKE": json.dumps(self.fake),
            "FAKE_HOSTS": json.dumps(self.hosts),
            "FAKE_OWN": self.names[rank],
            "FAKE_STOP": str(self.folder / "stop"),
            "GANG_MARK": self.mark,
        }
        return {
            "environ": environ(**{**own, **self.env}),
            "hosts": self.hosts,
            "nics": self.nics or {"lo": ["127.0.0.1"], "eth0": [self.addresses[rank]]},
            "own": self.addresses[rank],
            "renamed": str(self.folder / "names.json"),
            "jumps": str(self.folder / "jumps.json"),
            "timings": self.timings,
            "servers_end_themselves": self.servers_end_themselves,
            "trainer_waits": self.trainer_waits,
            "forked": self.forked,
        }

    def start(self, *ranks: int, prefix: tuple[str, ...] = (), **env: str) -> LoopbackGang:
        """Starts the launchers of `ranks` (all, when none is named)."""
        for rank in ranks or range(self.trainers):
            config = self.config(rank)
            config["environ"].update(env)
            path = self.folder / f"config-{rank}.json"
            path.write_text(json.dumps(config))
            with (self.folder / f"pod-{rank}.log").open("ab") as log:
                self.processes[rank] = subprocess.Popen(
                    [*prefix, sys.executable, "-m", "tests.launcher.core.rank_main", str(path)],
                    cwd=REPO,
                    env={"PATH": os.environ["PATH"], "GANG_MARK": self.mark, "PYTHONPATH": str(REPO)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        return self

    def wait(self, seconds: float = 80) -> list[int]:
        """All exit codes in rank order; fails when a launcher does not end."""
        deadline = time.monotonic() + seconds * PATIENCE
        codes = []
        for rank, process in sorted(self.processes.items()):
            try:
                codes.append(process.wait(timeout=max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} still runs:\n{self.pod_log(rank)}") from None
        return codes

    def until(self, condition: Callable[[], object], seconds: float = 45) -> None:
        """Waits for `condition()`; in vain with what the launchers said."""
        until(condition, seconds=seconds, words=lambda: "\n".join(map(self.pod_log, self.processes)))

    def said(self, rank: int, name: str = "train.log") -> str:
        """What a rank's child has said so far, on its pod's own disk; empty before it began."""
        path = self.folder / f"work-{rank}" / "logs" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def training(self) -> bool:
        """Whether all trainers have begun."""
        return all("Pass=" in self.said(rank) for rank in range(self.trainers))

    def alive(self) -> list[int]:
        """Processes of this gang, launchers and all their descendants."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"GANG_MARK={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def child(self, rank: int, command: str) -> int:
        """The pid of a rank's `paddle <command>`."""
        for pid in self.alive():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if command.encode() in words and f"JOB_COMPLETION_INDEX={rank}".encode() in env:
                return pid
        raise AssertionError(f"rank {rank} has no {command}")

    def has(self, rank: int, command: str) -> bool:
        """Whether a rank's `paddle <command>` lives."""
        try:
            self.child(rank, command)
        except AssertionError:
            return False
        return True

    def rename(self, name: str, address: str) -> None:
        """From now on `name` resolves to `address` in every launcher that lives."""
        (self.folder / "names.json").write_text(json.dumps({name: address}))

    def jump(self, seconds: dict[int, float]) -> None:
        """From now on the time of day of these ranks' launchers is so much later."""
        jumps = {self.addresses[rank]: by for rank, by in seconds.items()}
        (self.folder / "jumps.new").write_text(json.dumps(jumps))
        (self.folder / "jumps.new").rename(self.folder / "jumps.json")

    def pod_log(self, rank: int) -> str:
        return (self.folder / f"pod-{rank}.log").read_text(errors="replace")

    def termination(self, rank: int) -> str:
        path = self.folder / f"termination-{rank}"
        return path.read_text() if path.exists() else ""

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the output."""
        value: dict[str, Any] = json.loads((self.output / name).read_text())
        return value
