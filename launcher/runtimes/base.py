"""What a runtime is: it builds argv and environment, names its ports and its outputs, and nothing else.

Staging, rendezvous, supervision and exit are the launcher's, the same for every runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from launcher.layout import Position
from launcher.settings import TrainSettings


@dataclass(frozen=True)
class Gang:
    """One attempt of one run, as one rank sees it."""

    rank: int
    trainers: int
    hosts: tuple[str, ...]
    """One IPv4 address a rank, in rank order, the same on every rank: Paddle resolves a name again and
    again."""
    settings: TrainSettings
    data_dir: Path
    """The staged shard: train.txt, test.txt, train.list, test.list, tables/."""
    program_dir: Path
    """The staged program."""
    output_dir: Path
    """On the shared storage."""
    work_dir: Path
    """On the pod's own disk; the trainer writes `progress.json` here."""
    attempt: int
    """0 for the first start of a run, one more for each later one."""
    resume: Position | None
    """The save to go on from; None begins anew."""

    @property
    def host(self) -> str:
        """This rank's own entry of `hosts`."""
        return self.hosts[self.rank]


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start."""

    name: str
    """Shown to people: `pserver 0`, `trainer`."""
    role: Literal["pserver", "trainer", "export", "convert", "forks"]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment (start from `settings.environ`)."""
    cwd: Path
    log: Path
    """Takes stdout and stderr, on the pod's own disk: a full or hung volume stops no batch."""
    copy: Path | None = None
    """Where the launcher copies the log to, on the shared storage."""
    ready_ports: tuple[int, ...] = ()
    """Ports on this rank's host that accept connections when the process is ready; empty: ready at once."""
    ends_itself: bool = True
    """False for servers that never end by themselves: they are stopped once all trainers are done."""


class Runtime(Protocol):
    """The protocol behind `runtime: fleet|v1`."""

    trainer_waits: bool
    """The trainer itself waits until all pservers of the job accept, so it is started together with them."""
    fatal_lines: tuple[str, ...]
    """Texts in a child's log after which it cannot go on, though it does not end by itself."""

    def check(self, settings: TrainSettings) -> None:
        """Raises `SettingsError` for settings or images that cannot work, before anything is made."""

    def fork_server(self, settings: TrainSettings) -> ProcessSpec | None:
        """A process that loads what takes long and forks the others off (launcher/children.py, `ForkServer`).
        None where nothing pays."""

    def conversion(
        self, settings: TrainSettings, rank: int, data_dir: Path, program_dir: Path
    ) -> ProcessSpec | None:
        """What turns the staged shard into the trainer's own form before the gang meets; None: nothing does.

        It ends with 0, or with the cause behind the last `error: ` of its log.
        """

    def pservers(self, gang: Gang) -> list[ProcessSpec]:
        """The pserver processes of this rank, in port order."""

    def trainer(self, gang: Gang) -> ProcessSpec:
        """The trainer process of this rank."""

    def newest_save(self, output_dir: Path) -> Position | None:
        """Where the newest save stands that is whole and was not refused; None when nothing was saved yet.

        Raises `DataError` when there are saves and none of them can be gone on from: never begun anew unseen.
        """

    def complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        """Return whether nothing is left to do: training ended and the runtime's final outputs exist."""
