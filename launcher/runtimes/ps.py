"""Runtime `ps`: a user's own script for Paddle's parameter servers (`fleet.init_server`, `fleet.init_worker` …).

All processes run the same script `training.config` with the options `training.args`; variables tell each one its role.
`python -m paddle.distributed.launch --run_mode ps` sets the same variables (PSController in
paddle/distributed/launch/controllers/ps.py of 2.6.2), and fleet/base/role_maker.py reads them, so the script needs no
change.

Server s runs in pod s mod trainers. Ports of each pod:

port + k                 server k of the pod
port + S + k             the address of trainer k; nothing listens there
port + S + P             on pod 0: where server 0 lets the trainers find each other (gloo's HTTP store)

S is the largest number of servers in a pod, P is `training.processesPerPod`.
"""

from __future__ import annotations

from pathlib import Path

from launcher import script_main
from launcher.runtimes.collective import (
    MEMORY_IS_FULL,
    CollectiveRuntime,
    create_script_folders,
    describe_script,
)
from launcher.runtimes.fleet import MEANINGS as LOST_SERVERS
from launcher.runtimes.runtime_protocol import LogMeaning, ProcessSpec, RankAttempt, Role
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
"""Errors of Paddle 2.6.2 that show what is wrong with a script's use of the parameter servers. The texts are those that
Paddle prints, with its typo."""

SERVER_ROLE = {"PADDLE_ROLE": "PSERVER", "TRAINING_ROLE": "PSERVER"}
TRAINER_ROLE = {"PADDLE_ROLE": "TRAINER", "TRAINING_ROLE": "TRAINER"}


class PsRuntime(CollectiveRuntime):
    """Describes servers and trainers of a user's script. Paddle stops no server, so the launcher does it."""

    trainer_waits = True  # server 0 waits for all trainers before it serves
    log_meanings = MEANINGS

    def check(self, settings: TrainSettings) -> None:
        """Check nothing.

        The chart rejects values that do not fit, and the command line rejects a program of runtime fleet. A script that
        does not itself call Paddle's servers is accepted, because a module that it imports may call them.
        """

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the servers of this rank."""
        numbers = range(attempt.rank, attempt.settings.servers, len(attempt.hosts))
        return [_describe(attempt, "pserver", k) for k in range(len(numbers))]

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Create the script's folders (`create_script_folders`); return the trainers of this rank."""
        create_script_folders(attempt)
        return [_describe(attempt, "trainer", k) for k in range(attempt.settings.processes_per_pod)]


def _describe(attempt: RankAttempt, role: Role, number: int) -> ProcessSpec:
    s, hosts, is_server = attempt.settings, attempt.hosts, role == "pserver"
    first, count = s.port - (-s.servers // len(hosts)), s.processes_per_pod  # a pod's first trainer port
    servers = [f"{hosts[server % len(hosts)]}:{s.port + server // len(hosts)}" for server in range(s.servers)]
    trainers = [f"{host}:{first + k}" for host in hosts for k in range(count)]
    world = describe_world(servers, trainers, f"{hosts[0]}:{first + count}", s.work_dir / "gloo")
    port = (s.port if is_server else first) + number
    variables = {"PADDLE_NNODES": str(len(hosts)), "POD_IP": attempt.host, "PADDLE_PORT": str(port)}
    if is_server:
        variables |= SERVER_ROLE | {"PADDLE_LAUNCHER_PROGRESS_FILE": ""}  # trainer 0 writes it
    else:
        variables |= TRAINER_ROLE | {"PADDLE_TRAINER_ID": str(attempt.rank * count + number)}
    ready, shim = (port,) if is_server else (), script_main.__file__
    return describe_script(
        attempt, role, number, world | variables, shim, ready_ports=ready, ends_itself=not is_server
    )


def describe_world(servers: list[str], trainers: list[str], gloo: str, folder: Path) -> dict[str, str]:
    """Return the variables that all processes of a training with these servers and trainers get.

    Each server and each trainer is ADDRESS:PORT. `gloo` is the ADDRESS:PORT at which server 0 lets the trainers find
    each other. `folder` is a path for gloo; it need not exist.
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
