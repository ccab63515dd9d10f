"""Runtime `ps`: a user's own script for Paddle's parameter servers (`fleet.init_server`, `fleet.init_worker` …).

All processes run the same script `training.config` with the options `training.args`; variables tell each one its
role. They are those of `python -m paddle.distributed.launch --run_mode ps` (PSController in
paddle/distributed/launch/controllers/ps.py of 2.6.2, read by fleet/base/role_maker.py), so the script needs no change.

Server s runs in pod s mod trainers. Ports of each pod:

port + k                 server k of the pod
port + S + k             the address of trainer k; nothing listens there
port + S + P             on pod 0: where server 0 lets the trainers find each other (gloo's HTTP store)

S is the largest number of servers in a pod, P is `training.processesPerPod`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launcher import script_main
from launcher.runtimes.collective import (
    MEMORY_IS_FULL,
    CollectiveRuntime,
    base_environment,
    create_script_folders,
    run_variables,
    script_arguments,
)
from launcher.runtimes.fleet import MEANINGS as LOST_SERVERS
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt
from launcher.settings import TrainSettings

WITHOUT_SERVERS = (
    "Paddle's parameter servers (2.6.2) do not support {}. Fix: {}, or convert the script to a program of runtime "
    "fleet (docs/how-to/own-model.md)"
)
MEANINGS = (
    LogMeaning(
        "get_tensor_from_selected_rows",
        WITHOUT_SERVERS.format("gradient clipping of sparse tables", "remove grad_clip from the optimizer"),
    ),
    LogMeaning(
        "SelectedRows DO NOT supprt lod",
        WITHOUT_SERVERS.format(
            "weight decay of sparse tables", "remove weight_decay (or regularization) from the optimizer"
        ),
    ),
    LogMeaning(
        "kernel .unregistered. is not registered|dense optimizer in PS is only supported",
        WITHOUT_SERVERS.format("this optimizer", "use paddle.optimizer.SGD or Adam"),
    ),
    LogMeaning(
        "last dimensions of the 'Ids' tensor must be 1",
        "paddle.static.nn.sparse_embedding takes one id a row and slot. Fix: give each slot a tensor of shape [-1, 1], "
        "and look each of them up",
    ),
    MEMORY_IS_FULL,
    *LOST_SERVERS,
)
"""What a script's use of the servers fails with, as Paddle 2.6.2 prints it (with this typo)."""

SERVER_ROLE = {"PADDLE_ROLE": "PSERVER", "TRAINING_ROLE": "PSERVER"}
TRAINER_ROLE = {"PADDLE_ROLE": "TRAINER", "TRAINING_ROLE": "TRAINER"}


class PsRuntime(CollectiveRuntime):
    """Describes servers and trainers of a user's script. Paddle stops no server, so the launcher does it."""

    trainer_waits = True  # server 0 waits for all trainers before it serves
    log_meanings = MEANINGS

    def check(self, settings: TrainSettings) -> None:
        """Check nothing: the chart rejects values that do not fit, and the command line a script of another kind."""

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the servers of this rank."""
        numbers = range(attempt.rank, attempt.settings.servers, len(attempt.hosts))
        return [self._describe(attempt, "pserver", k) for k in range(len(numbers))]

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the trainers of this rank."""
        create_script_folders(attempt)
        return [self._describe(attempt, "trainer", k) for k in range(attempt.settings.processes_per_pod)]

    def _describe(self, attempt: RankAttempt, role: str, number: int) -> ProcessSpec:
        s, is_server = attempt.settings, role == "pserver"
        port = server_port(attempt, number) if is_server else trainer_port(attempt, number)
        return attempt.describe_process(
            "pserver" if is_server else "trainer",
            number,
            name=f"{role} {number}" if is_server or s.processes_per_pod > 1 else role,
            argv=(sys.executable, "-u", script_main.__file__, *script_arguments(attempt, number)),
            env=base_environment(s)
            | role_variables(attempt)
            | {"PADDLE_PORT": str(port)}
            | (server_variables(attempt) if is_server else trainer_variables(attempt, number)),
            cwd=s.work.program,
            ready_ports=(port,) if is_server else (),
            ends_itself=not is_server,
        )


def servers_per_pod(attempt: RankAttempt) -> int:
    """Return the largest number of servers in a pod."""
    return -(-attempt.settings.servers // len(attempt.hosts))


def server_port(attempt: RankAttempt, number: int) -> int:
    """Return the port of server `number` of a pod."""
    return attempt.settings.port + number


def trainer_port(attempt: RankAttempt, number: int) -> int:
    """Return the port in the address of trainer `number` of a pod."""
    return attempt.settings.port + servers_per_pod(attempt) + number


def role_variables(attempt: RankAttempt) -> dict[str, str]:
    """Return the variables that describe the whole training. Only POD_IP differs between its processes."""
    hosts, count = attempt.hosts, attempt.settings.processes_per_pod
    servers = [
        f"{hosts[s % len(hosts)]}:{server_port(attempt, s // len(hosts))}"
        for s in range(attempt.settings.servers)
    ]
    trainers = [f"{host}:{trainer_port(attempt, k)}" for host in hosts for k in range(count)]
    gloo = f"{hosts[0]}:{trainer_port(attempt, count)}"
    found = describe_world(servers, trainers, gloo, attempt.settings.work_dir / "gloo")
    return found | {"PADDLE_NNODES": str(len(hosts)), "POD_IP": attempt.host}


def describe_world(servers: list[str], trainers: list[str], gloo: str, folder: Path) -> dict[str, str]:
    """Return the variables of all processes of a training with these servers and trainers, each ADDRESS:PORT.

    `gloo` is where server 0 lets the trainers find each other; `folder` need not exist.
    """
    return {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(trainers),
        "PADDLE_TRAINERS_NUM": str(len(trainers)),
        "PADDLE_WITH_GLOO": "1",  # a barrier of the trainers
        "PADDLE_GLOO_RENDEZVOUS": "3",  # over HTTP
        "PADDLE_GLOO_HTTP_ENDPOINT": gloo,
        "PADDLE_GLOO_FS_PATH": str(folder),
    }


def server_variables(attempt: RankAttempt) -> dict[str, str]:
    """Return the variables of a server only."""
    found = run_variables(attempt, 0)
    del found["PADDLE_LAUNCHER_PROGRESS_FILE"]  # trainer 0 writes it
    return found | SERVER_ROLE


def trainer_variables(attempt: RankAttempt, local: int) -> dict[str, str]:
    """Return the variables of trainer `local` of this pod only."""
    number = attempt.rank * attempt.settings.processes_per_pod + local
    return run_variables(attempt, local) | TRAINER_ROLE | {"PADDLE_TRAINER_ID": str(number)}
