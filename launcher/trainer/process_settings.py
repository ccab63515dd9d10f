"""Read the settings of one pserver or trainer process: the settings of its pod, and the settings of this attempt.

An attempt is one start of a run's processes. A restart after a failure is the next attempt.

The launcher reads the pod's settings in the same way. The settings of the attempt are known only to the launcher (rank,
addresses, attempt, position to resume from, initial model). It writes them to a small JSON file for each process.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import CheckpointError, SettingsError
from launcher.io import checkpoints, files
from launcher.paths import OutputPaths, Position
from launcher.schema import CheckpointContents, from_json
from launcher.settings import TrainSettings

VARIABLE = "PADDLE_LAUNCHER_PROCESS_FILE"


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(TrainSettings):
    """All settings of one pserver or trainer process."""

    rank: int
    """Rank in this attempt, from 0. A pserver has the rank of its pod's trainer."""
    server: int
    """Number of this pserver in its pod, from 0; -1 in a trainer."""
    hosts: tuple[str, ...]
    """Address of each rank, in rank order. `trainers` and `gradient_num` are the number of these addresses."""
    world: tuple[int, ...]
    """Completion index of each rank's pod, in rank order. The pod has staged the shard with the same number."""
    attempt: int
    """Number of the attempt: 0 for the first start of a run, 1 more for each restart."""
    resume: Position | None
    """Position of the checkpoint to resume from; None: start from scratch."""
    store: str
    """Beginning of the path of each request to the trainers' store in this attempt. The store is a part of rank 0's
    HTTP server on peerPort. The path contains a secret."""

    @property
    def store_address(self) -> str:
        """Return `host:port/path`, with which the address of each request to the trainers' store begins."""
        return f"{self.hosts[0]}:{self.peer_port}{self.store}"

    @property
    def program_file(self) -> Path:
        """Return the path of the training program in the pod's copy of the program's folder."""
        return self.work.program / self.config_file

    @functools.cached_property
    def resumed(self) -> CheckpointContents | None:
        """Return contents.json of the checkpoint to resume from; None in a new run.

        Raises:
            CheckpointError: see `read_checkpoint`.
        """
        return None if self.resume is None else self.read_checkpoint(self.resume)

    def read_checkpoint(self, at: Position) -> CheckpointContents:
        """Return contents.json of the checkpoint at position `at`.

        Raises:
            CheckpointError: contents.json is missing or damaged, or a script saved the checkpoint.
        """
        folder = OutputPaths(self.layout.output).checkpoint(at)
        try:
            return checkpoints.read_contents(folder)
        except CheckpointError as error:
            raise CheckpointError(
                f"training cannot resume from {folder}: {error}. The next attempt resumes from the checkpoint before "
                "it. Fix: if this repeats, look for I/O errors of the shared storage's server."
            ) from error

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> ProcessSettings:
        """Read the pod's settings and the JSON file whose path is in PADDLE_LAUNCHER_PROCESS_FILE.

        Raises:
            SettingsError: a setting is invalid, or there is no such file.
        """
        environ = os.environ if environ is None else environ
        path = environ.get(VARIABLE, "")
        part = files.read_json(Path(path)) if path else None
        if part is None:
            raise SettingsError(
                f"{VARIABLE} is {path!r}, but must be the path of the JSON file that the launcher writes for "
                "each pserver and trainer, which cannot run without it. Fix: start `python -m launcher "
                "train`, which starts them."
            )
        pod = TrainSettings.from_environ(environ)
        part |= {"hosts": tuple(part["hosts"]), "world": tuple(part["world"])}
        part["resume"] = None if part["resume"] is None else from_json(Position, part["resume"])
        return cls(**({field.name: getattr(pod, field.name) for field in dataclasses.fields(pod)} | part))
