"""Run one rank's launcher in a process: the product's agent with a loopback network and short deadlines."""

import json
import os
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from launcher import runtimes
from launcher.errors import LauncherError
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.supervisor import process_group
from launcher.supervisor.agent import Agent
from launcher.supervisor.coordinator import coordinator
from launcher.supervisor.peers.addresses import PodNetwork, has_connection
from launcher.supervisor.timings import Timings

REPO = Path(__file__).resolve().parents[3]


class LoopbackNetwork(PodNetwork):
    """A network in which each rank has its own address in 127/8 and names resolve as the test specifies."""

    def __init__(self, config: dict) -> None:
        self._hosts, self.bind_host = config["hosts"], os.environ["PADDLE_LAUNCHER_POD_IP"]

    def resolve(self, name):
        found = self._hosts.get(name, name if name[0].isdigit() else None)
        return [found] if found else []

    def interfaces(self):
        return {"lo": "127.0.0.1", "eth0": self.bind_host}

    def connect(self, host, port, timeout):
        slow = (
            list(self._hosts.values())[int(os.environ["SLOW_NETWORK"])]
            if "SLOW_NETWORK" in os.environ
            else ""
        )
        if slow in (host, self.bind_host):  # the round trips of this rank take long
            time.sleep(0.06)
        return super().connect(self._hosts.get(host, host), port, timeout)


FORKS = """
import json, os
from launcher.trainer import fork_server
fork_server.serve(lambda: None)
argv = json.loads(os.environ["FAKE_ARGV"])
os.execvpe(argv[0], argv, os.environ)
"""


class FakeV1(V1Runtime):
    """Runtime v1 with a fake `paddle`, which gets the initial model of its attempt in a variable, and `options`.

    Options: `pservers exit` (by themselves, as those of runtime fleet do), `trainer waits` (for the pservers itself),
    and `forked`: the processes are forked from a fork server, and then execute the binary.
    """

    def __init__(self, options: list[str]) -> None:
        self.options, self.trainer_waits = options, "trainer waits" in options

    def check(self, settings: TrainSettings) -> None:
        super().check(replace(settings, init_model=""))  # the old binary has no initial model

    def fork_server(self, settings: TrainSettings) -> ProcessSpec | None:
        env = {"PATH": settings.environ["PATH"], "PYTHONPATH": str(REPO)}
        argv, log = (sys.executable, "-c", FORKS), settings.work.log("fork-server.log")
        spec = ProcessSpec("fork server", "fork-server", argv, env, settings.work_dir, log)
        return spec if "forked" in self.options else None

    def pservers(self, gang: RankAttempt) -> list[ProcessSpec]:
        ends_itself = not {"forked", "pservers exit"}.isdisjoint(self.options)
        return [replace(_with_variables(spec), ends_itself=ends_itself) for spec in super().pservers(gang)]

    def trainers(self, gang: RankAttempt) -> list[ProcessSpec]:
        model = gang.settings.init_model
        return [_with_variables(spec, FAKE_INITIAL_MODEL=model) for spec in super().trainers(gang)]


def _with_variables(spec: ProcessSpec, **more: str) -> ProcessSpec:
    """Return the specification with its command line in the variable FAKE_ARGV, and with the variables `more`."""
    return replace(spec, env={**spec.env, "FAKE_ARGV": json.dumps(spec.argv), **more})


class RareLook:
    """Looks for connections between the scripts once a second: the kernel lists those of the whole machine in 8 ms."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, hosts: Collection[str], except_port: int) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + 1
        return has_connection(hosts, except_port)


def main() -> int:
    """Run the launcher with the configuration in the first argument (JSON), and return its exit code."""
    config = json.loads(sys.argv[1])
    network = LoopbackNetwork(config)
    if not config["report"]:
        coordinator.write_report = lambda *_: None
    process_group.has_connection = RareLook()
    try:
        settings = TrainSettings.from_environ(dict(os.environ))
        is_fake = settings.runtime == "v1"
        runtime = FakeV1(config["options"]) if is_fake else runtimes.load_runtime(settings.runtime)
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    return Agent(settings, runtime, network, Timings(**config["timings"])).run()


if __name__ == "__main__":
    sys.exit(main())
