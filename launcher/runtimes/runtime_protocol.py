"""Interface of a runtime, which knows how to run one PaddlePaddle version: command lines, ports, outputs.

The supervisor does everything else in the same way for all runtimes: staging, rendezvous, starting, watching
and stopping of processes, restarts. To add a runtime, write a class that inherits from `Runtime` in a module
of this folder and add it to `load_runtime` in __init__.py.

    check ─▶ fork_server ─▶ conversion ─▶ (rendezvous) ─▶ pservers, trainers ─▶ is_complete
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from launcher.io import checkpoints
from launcher.io.helper_protocol import HelperSpec
from launcher.paths import OutputPaths, Position
from launcher.settings import TrainSettings

Role = Literal["pserver", "trainer", "fork-server", "helper"]


@dataclass(frozen=True)
class RankAttempt:
    """Holds what one rank knows of an attempt: addresses, settings and the checkpoint to resume from."""

    rank: int
    """The place of this pod in the attempt, from 0: the rank of its processes."""
    hosts: tuple[str, ...]
    """The IPv4 address of each place, the same on every rank: Paddle would resolve names often."""
    settings: TrainSettings
    attempt: int
    """0 for the first start of a run, 1 more for each restart."""
    resume: Position | None
    """The checkpoint to resume from; None: start from scratch."""
    store: str = ""
    """Beginning of the path of the trainers' requests to the store on rank 0's peerPort; contains a secret."""
    world: tuple[int, ...] = ()
    """The completion index of each place's pod; empty: the places themselves."""

    @property
    def index(self) -> int:
        """Return the completion index of this pod, after which its logs and its shard are named."""
        return self.world[self.rank] if self.world else self.rank

    @property
    def host(self) -> str:
        """Return this rank's address."""
        return self.hosts[self.rank]

    def describe_process(self, role: Role, number: int = 0, **fields: Any) -> ProcessSpec:
        """Return process `number` of its role on this rank, with its log; `fields` are the others of ProcessSpec.

        Its name is by default its role.
        """
        output = OutputPaths(self.settings.layout.output)
        copy = (output.train_log if role == "trainer" else output.server_log)(self.index, number)
        log = self.settings.work.log(copy.name)
        return ProcessSpec(**{"name": role, "role": role, "log": log, "copy": copy, **fields})


@dataclass(frozen=True)
class ProcessSpec:
    """Describes one process to start: command line, environment, log and ports."""

    name: str
    """Shown to users: `pserver 0`, `trainer`."""
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The complete environment."""
    cwd: Path
    log: Path
    """Receives stdout and stderr; on the pod's own disk, so that a full or hung volume stops no batch."""
    copy: Path | None = None
    """A copy of the log on the shared storage, which the launcher writes."""
    ready_ports: tuple[int, ...] = ()
    """Ports on this rank's host that accept connections when the process is ready; empty: ready at once."""
    ends_itself: bool = True
    """False for servers that never exit by themselves: the launcher stops them when all trainers have
    finished."""


@dataclass(frozen=True)
class LogMeaning:
    """What a text in the log of a process means."""

    pattern: str
    """Regular expression for the text in a line; upper and lower case letters are equal."""
    why: str = ""
    """Cause and fix, for the message about the failure; `{node}` is replaced by the name of the pod's node."""
    priority: int = 1
    """As in `ProcessError`."""
    ends_pod: bool = False
    """Whether only another pod can continue, because a device of this pod failed."""
    is_fatal: bool = False
    """Whether the process cannot continue after this line, although it does not exit; the launcher then stops it.

    Such a line has no meaning for a user's script in a single process: it may train alone.
    """

    def search(self, text: str) -> bool:
        """Return whether a line of `text` has this meaning."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None


class Runtime(Protocol):
    """Interface of a runtime, which runs one PaddlePaddle version; the chart value `runtime` selects it.

    A runtime inherits from this class, and replaces the members whose default does not fit.
    """

    trainer_waits: bool = False
    """Whether the trainer itself waits for the job's pservers; then it is started together with them."""
    has_nothing_to_save: bool = False
    """Whether its processes do nothing useful after SIGTERM, so that the launcher stops them with SIGKILL at once."""
    log_meanings: tuple[LogMeaning, ...] = ()
    """The meanings of texts in the logs of processes.

    The log of a failed process is searched for all of them, and the first one whose text is there counts. Logs of
    running processes are searched for those that are fatal.
    """
    reports_progress: bool = False
    """Whether every trainer writes progress.json from its start on; until it does, its state counts as `starting`."""
    is_user_script: bool = False
    """Whether the trainers of all ranks are one world of processes of a user's script.

    They stall together, so they hang only when all ranks do; a growing log is progress too. After SIGTERM the script
    gets the rest of the grace period. A run in which no process has connected to another one is warned about.
    """

    def check(self, settings: TrainSettings) -> None:
        """Raise `SettingsError` for an image or node that cannot work. The chart rejects values that do not fit."""

    def fork_server(self, settings: TrainSettings) -> ProcessSpec | None:
        """Return the process that loads large libraries once and then forks pservers and trainers, or None (default).

        It must speak the protocol of launcher/trainer/fork_server.py.
        """
        return None

    def conversion(self, settings: TrainSettings, rank: int) -> HelperSpec | None:
        """Return a helper process that parses this rank's rows before the attempt, or None (default)."""
        return None

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the parameter server (pserver) processes of this rank for `attempt`, sorted by port; default: none."""
        return []

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        """Return the trainer processes of this rank for `attempt`, at least one.

        Trainer k writes its progress to `WorkPaths.trainer_progress(k)`. The pod's log shows the log of trainer 0.
        """

    def newest_checkpoint(self, output_dir: Path) -> Position | None:
        """Return the position of the newest usable checkpoint; None if there is no checkpoint.

        By default it is the newest complete and intact one.

        Raises:
            DataError: there are checkpoints, but none is usable. The run then fails instead of starting from
                scratch.
        """
        return checkpoints.newest_checkpoint(output_dir)

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether the training has finished and the runtime's final outputs exist."""
