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
    """The place of this pod among the pods of the attempt, from 0. It determines the ranks of the pod's processes."""
    hosts: tuple[str, ...]
    """The IPv4 address of the pod at each place, the same on every rank. They are addresses instead of names, because
    Paddle would resolve a name often."""
    settings: TrainSettings
    attempt: int
    """Number of the attempt: 0 for the first start with an output, 1 more for each later start. A run that resumes the
    output of an earlier run continues the numbers of that run."""
    resume: Position | None
    """The checkpoint to resume from; None: start from scratch."""
    store: str = ""
    """Beginning of the path of each request that trainers send to the store on rank 0's peerPort. It contains a
    secret."""
    world: tuple[int, ...] = ()
    """The completion index of the pod at each place; empty: each pod's place is its completion index."""

    @property
    def index(self) -> int:
        """Return the completion index of this pod, which is a part of the names of its logs and its shard."""
        return self.world[self.rank] if self.world else self.rank

    @property
    def host(self) -> str:
        """Return this rank's address."""
        return self.hosts[self.rank]

    def describe_process(self, role: Role, number: int = 0, **fields: Any) -> ProcessSpec:
        """Return the description of process `number` of the role `role` on this rank, with the paths of its log.

        `fields` are the other fields of ProcessSpec. Without the field `name`, the process has the name of its role.
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
    """The file that receives stdout and stderr. It is on the pod's own disk, so that a full or hung volume does not
    stop training."""
    copy: Path | None = None
    """The file on the shared storage to which the launcher copies the log; None: the log is not copied."""
    ready_ports: tuple[int, ...] = ()
    """The process is ready when these ports on this rank's host accept connections; empty: it is ready at once. The
    launcher does not wait for the ports of a user's script. It always checks that the ports are free before the
    start."""
    ends_itself: bool = True
    """False for servers that never exit by themselves: the launcher stops them when all trainers have
    finished."""


@dataclass(frozen=True)
class LogMeaning:
    """What a text in the log of a process means."""

    pattern: str
    """Regular expression for the text in a line, without distinction of upper and lower case letters."""
    why: str = ""
    """Cause and fix, for the message about the failure; `{node}` is replaced by the name of the pod's node."""
    priority: int = 1
    """As in `ProcessError`: 0 if this meaning is the cause of other failures of the attempt, 1 if the earliest failure
    is the cause, 2 or 3 if another failure may have, or usually has, caused this one."""
    ends_pod: bool = False
    """Whether only another pod can continue, because a device of this pod failed."""
    is_fatal: bool = False
    """Whether the process cannot continue after this line, although it does not exit; the launcher then stops it.

    For a user's script that runs as a single process, such a line is ignored, because that process may train alone.
    """

    def search(self, text: str) -> bool:
        """Return whether a line of `text` has this meaning."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None


class Runtime(Protocol):
    """Interface of a runtime, which runs one PaddlePaddle version; the chart value `runtime` selects it.

    A runtime inherits from this class, and replaces the members whose default does not fit.
    """

    trainer_waits: bool = False
    """Whether the trainer itself waits for the job's pservers. If so, it is started together with them."""
    has_nothing_to_save: bool = False
    """Whether the runtime's processes do nothing useful after SIGTERM, so that the launcher stops them with SIGKILL at
    once."""
    log_meanings: tuple[LogMeaning, ...] = ()
    """The meanings of texts in the logs of processes.

    The last lines of the log of a failed process are searched for the texts of all meanings, and the first meaning
    whose text is found counts. The logs of running processes are searched only for meanings that are fatal.
    """
    reports_progress: bool = False
    """Whether every trainer writes progress.json from its start on. If so, the state of a trainer that has not written
    it yet counts as `starting`."""
    is_user_script: bool = False
    """Whether the trainers of all ranks are one world of processes of a user's script.

    These processes wait for each other, so they count as hanging only if the trainers of all ranks hang. A growing log
    counts as progress, too. After SIGTERM the script has the rest of the grace period to react. If no process of a run
    has connected to another one, users get a warning.
    """

    def check(self, settings: TrainSettings) -> None:
        """Raise `SettingsError` if this pod's image or node cannot work with the runtime.

        The chart rejects values that do not fit the runtime, so they need not be checked here.
        """

    def fork_server(self, settings: TrainSettings) -> ProcessSpec | None:
        """Return the process that loads large libraries once and then forks pservers and trainers, or None (default).

        The process must use the protocol of launcher/trainer/fork_server.py.
        """
        return None

    def conversion(self, settings: TrainSettings, rank: int) -> HelperSpec | None:
        """Return a helper process that parses this rank's rows before the first attempt, or None (default)."""
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

        By default, a checkpoint is usable if it is complete and intact.

        Raises:
            DataError: there are checkpoints, but none is usable. The run then fails instead of starting from
                scratch.
        """
        return checkpoints.newest_checkpoint(output_dir)

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether the training has finished and the runtime's final outputs exist."""
