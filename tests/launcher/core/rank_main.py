"""One rank's launcher as a process of a test: the product's agent with another network and shorter times."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from launcher import runtimes
from launcher.errors import LauncherError
from launcher.gang.agent import Agent
from launcher.gang.network import Network
from launcher.runtimes.base import Gang, ProcessSpec
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.timings import Timings

REPO = Path(__file__).resolve().parents[3]


class LoopbackNetwork(Network):
    """Each rank has an address of its own in 127/8, and the names that the test gives."""

    def __init__(self, config: dict) -> None:
        self._hosts, self._nics, self.bind_host = config["hosts"], config["nics"], config["own"]
        self._renamed = Path(config["renamed"])

    def resolve(self, name):
        if self._renamed.exists():
            self._hosts.update(json.loads(self._renamed.read_text()))
        found = self._hosts.get(name, name if name[0].isdigit() else None)
        return [found] if found else []

    def interfaces(self):
        return self._nics

    def connect(self, host, port, timeout):
        return super().connect(self._hosts.get(host, host), port, timeout)


class SelfEndingV1(V1Runtime):
    """Servers that end by themselves, and trainers that may begin with them, as fleet's do."""

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        return [replace(spec, ends_itself=True) for spec in super().pservers(gang)]


FORKS = """
import json, os
from launcher.worker import forks
forks.serve(lambda: None)
argv = json.loads(os.environ["FAKE_ARGV"])
os.execvpe(argv[0], argv, os.environ)
"""


class ForkedV1(SelfEndingV1):
    """All processes are forked off by one, and then are the binary."""

    def fork_server(self, settings: TrainSettings) -> ProcessSpec:
        env = {"PATH": settings.environ["PATH"], "PYTHONPATH": str(REPO)}
        log = settings.work.log("fork-server.log")
        return ProcessSpec("fork server", "forks", (sys.executable, "-c", FORKS), env, settings.work_dir, log)

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        return [_told(spec) for spec in super().pservers(gang)]

    def trainer(self, gang: Gang) -> ProcessSpec:
        return _told(super().trainer(gang))


def _told(spec: ProcessSpec) -> ProcessSpec:
    return replace(spec, env={**spec.env, "FAKE_ARGV": json.dumps(spec.argv)})


def main() -> int:
    config = json.loads(Path(sys.argv[1]).read_text())
    clock, jumps = time.time, Path(config["jumps"])
    time.time = lambda: (
        clock() + (json.loads(jumps.read_text()).get(config["own"], 0) if jumps.exists() else 0)
    )
    network = LoopbackNetwork(config)
    try:
        settings = TrainSettings.from_environ(config["environ"])
        runtime = SelfEndingV1() if config["servers_end_themselves"] else runtimes.load(settings.runtime)
        runtime = ForkedV1() if config["forked"] else runtime
        if config["trainer_waits"]:
            runtime.trainer_waits = True
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    return Agent(settings, runtime, network, Timings(**config["timings"])).run()


if __name__ == "__main__":
    sys.exit(main())
