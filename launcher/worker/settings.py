"""What a worker is told beside Paddle's own variables: one JSON file, named by PADDLE_LAUNCHER_WORKER."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import files
from launcher.errors import SettingsError
from launcher.layout import Position

VARIABLE = "PADDLE_LAUNCHER_WORKER"


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The same for both roles; a pserver needs only what the network's shape depends on."""

    rank: int
    trainers: int
    server: int
    """Which of this rank's pservers, counted from 0; -1 in a trainer."""
    mode: str
    """sync, async or geo."""
    nic: str
    """The network interface that gloo talks over."""
    store_host: str
    """Rank 0's host: its first pserver keeps the trainers' meeting place there."""
    store_port: int
    """The first port behind the dense ones."""
    trainer_count: int
    """Worker threads of one trainer."""
    batch_size: int
    passes: int
    log_period: int
    dot_period: int
    saving_period: int
    save_every_batches: int
    """Batches between two saves inside a pass; 0: none."""
    save_every_minutes: float
    """The same in minutes, which become a common number of batches; 0: none."""
    keep_saves: int
    delta_saves: int
    """The most deltas behind one base; 0: every save is whole."""
    keep_best: str
    """The test metric whose best checkpoint is kept and becomes the model; empty: the last one does."""
    patience: int
    """Training stops after so many passes without a better score; 0: never."""
    attempt: int
    resume: Position | None
    """The save to go on from."""
    init_from: str
    """Where a new run takes its first parameters from; empty: they are made by chance."""
    job_path: Path
    config_file: str
    options: tuple[str, ...]
    """`--key=value`: the program's options, and the few of the worker itself."""
    data_dir: Path
    program_dir: Path
    output_dir: Path
    work_dir: Path

    def to_json(self) -> dict[str, Any]:
        """Plain values, paths as text."""
        values = dataclasses.asdict(self)
        if self.resume is not None:
            values["resume"] = [self.resume.passes, self.resume.batches]
        return {
            key: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WorkerSettings:
        """The inverse of `to_json`. Raises `SettingsError` for a key too many or too few."""
        names = {field.name for field in dataclasses.fields(cls)}
        if wrong := names ^ set(values):
            raise SettingsError(
                f"the worker's settings have other keys than this version of the launcher writes: "
                f"{', '.join(sorted(wrong))}. Both come from one image; see that only one is in use."
            )
        paths = {key: Path(value) for key, value in values.items() if key.endswith(("_dir", "_path"))}
        resume = None if values["resume"] is None else Position(*values["resume"])
        return cls(**{**values, **paths, "options": tuple(values["options"]), "resume": resume})

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> WorkerSettings:
        """Reads the file that PADDLE_LAUNCHER_WORKER names. Raises `SettingsError`."""
        path = (os.environ if environ is None else environ).get(VARIABLE, "")
        values = files.read_json(Path(path)) if path else None
        if values is None:
            raise SettingsError(
                f"{VARIABLE} is {path!r}, but must name the JSON file that the launcher writes for each "
                "process: a worker cannot be started by hand without it. Start `python -m launcher train`."
            )
        return cls.from_json(values)
