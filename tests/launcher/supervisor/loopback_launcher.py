"""Run one rank's launcher in a process: the product's agent with a loopback network and short deadlines."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from launcher import runtimes
from launcher.errors import LauncherError
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.settings import TrainSettings
from launcher.supervisor.agent import Agent
from launcher.supervisor.coordinator import coordinator
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.timings import Timings

REPO = Path(__file__).resolve().parents[3]


class LoopbackNetwork(PodNetwork):
    """A network in which each rank has its own address in 127/8 and names resolve as the test specifies."""

    def __init__(self, config: dict) -> None:
        self._hosts, self._nics, self.bind_host = config["hosts"], config["nics"], config["own"]

    def resolve(self, name):
        found = self._hosts.get(name, name if name[0].isdigit() else None)
        return [found] if found else []

    def interfaces(self):
        return self._nics

    def connect(self, host, port, timeout):
        return super().connect(self._hosts.get(host, host), port, timeout)


class SelfExitingV1(V1Runtime):
    """Runtime v1 with pservers that exit by themselves, as those of runtime fleet do."""

    def pservers(self, gang: RankAttempt) -> list[ProcessSpec]:
        return [replace(spec, ends_itself=True) for spec in super().pservers(gang)]


class InitialModelV1(V1Runtime):
    """Runtime v1 whose trainers print the initial model of their attempt, which the old binary has not."""

    def check(self, settings: TrainSettings) -> None:
        super().check(replace(settings, init_model=""))

    def trainers(self, gang: RankAttempt) -> list[ProcessSpec]:
        [spec] = super().trainers(gang)
        return [replace(spec, env={**spec.env, "FAKE_INITIAL_MODEL": gang.settings.init_model})]


FORKS = """
import json, os
from launcher.trainer import fork_server
fork_server.serve(lambda: None)
argv = json.loads(os.environ["FAKE_ARGV"])
os.execvpe(argv[0], argv, os.environ)
"""


class ForkedV1(SelfExitingV1):
    """Runtime v1 whose processes are forked from a fork server and then execute the binary."""

    def fork_server(self, settings: TrainSettings) -> ProcessSpec:
        env = {"PATH": settings.environ["PATH"], "PYTHONPATH": str(REPO)}
        log = settings.work.log("fork-server.log")
        return ProcessSpec(
            "fork server", "fork-server", (sys.executable, "-c", FORKS), env, settings.work_dir, log
        )

    def pservers(self, gang: RankAttempt) -> list[ProcessSpec]:
        return [_with_argv(spec) for spec in super().pservers(gang)]

    def trainers(self, gang: RankAttempt) -> list[ProcessSpec]:
        return [_with_argv(spec) for spec in super().trainers(gang)]


def _with_argv(spec: ProcessSpec) -> ProcessSpec:
    """Return the specification with its command line in the environment variable FAKE_ARGV."""
    return replace(spec, env={**spec.env, "FAKE_ARGV": json.dumps(spec.argv)})


def main() -> int:
    """Run the launcher that the JSON file in the first argument describes, and return its exit code."""
    config = json.loads(Path(sys.argv[1]).read_text())
    network = LoopbackNetwork(config)
    if not config["report"]:
        coordinator.write_report = lambda *_: None
    try:
        settings = TrainSettings.from_environ(config["environ"])
        runtime = (
            SelfExitingV1() if config["pservers_exit_themselves"] else runtimes.load_runtime(settings.runtime)
        )
        runtime = ForkedV1() if config["forked"] else runtime
        runtime = InitialModelV1() if settings.init_model else runtime
        if config["trainer_waits"]:
            runtime.trainer_waits = True
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    return Agent(settings, runtime, network, Timings(**config["timings"])).run()


if __name__ == "__main__":
    sys.exit(main())
