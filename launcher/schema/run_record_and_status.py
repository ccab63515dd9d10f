"""The files of a run: run.json (the run record), status.json, and progress.json of a trainer.

The launcher of rank 0 writes run.json and status.json, and resumes a run from its run.json. The command line shows
both: it reads them leniently (`read_fields`), since any version of the launcher may have written them. So all
fields have defaults, and keys that newer versions added are missing in older files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from launcher.schema.json_conversion import ALWAYS, KEY

_TrainerPosition = TypedDict(
    "_TrainerPosition",
    {
        "pass": int,
        "batch": int,
        "batches": int,
        "samples_per_second": float,
        "loss": float | None,
        "state": str,
        "bytes": int | None,
        "marks": dict[str, float],
    },
)


class TrainerProgress(_TrainerPosition, total=False):
    """`progress.json`: how far one trainer has trained. The trainer rewrites the file often, and the launcher reads it.

    Passes count from 0, batches from 1. `marks` has the Unix times at which steps of the start were done.
    docs/reference/file-formats.md describes the other keys.
    """

    saved: dict[str, int] | None
    batch_size: float
    passes: int


class ProgramFile(TypedDict, total=False):
    """`program.json`: the options of a run's program, and the text of its files by name."""

    options: dict[str, Any]
    files: dict[str, str]


def _written(key: str) -> dict[str, Any]:
    """Return the metadata of a field with this JSON key that is written even when it has its default."""
    return {KEY: key, **ALWAYS}


@dataclass(frozen=True)
class RestartRecord:
    """Entry of run.json or status.json about a failed attempt that was restarted."""

    attempt: int = field(default=0, metadata=ALWAYS)
    cause: str = field(default="", metadata=ALWAYS)
    at: float | None = field(default=None, metadata=ALWAYS)
    """Unix time of the failure in seconds."""
    signature: list[Any] | None = None
    """Key that is equal for two failures with the same cause in the program; only in run.json."""


@dataclass(frozen=True)
class RankStatus:
    """Entry of status.json about one rank (one training pod)."""

    rank: int = field(default=-1, metadata=ALWAYS)
    pod: str | None = field(default=None, metadata=ALWAYS)
    node: str | None = field(default=None, metadata=ALWAYS)
    state: str | None = field(default=None, metadata=ALWAYS)
    number: int | None = field(default=None, metadata=_written("pass"))
    """The pass that the rank trains, from 0; None while it does not train."""
    batch: int | None = field(default=None, metadata=ALWAYS)
    samples_per_second: float | None = field(default=None, metadata=_written("samplesPerSecond"))
    loss: float | None = field(default=None, metadata=ALWAYS)
    storage_seconds: float = field(default=0.0, metadata=_written("storageSeconds"))
    """Seconds since the shared storage last answered this rank; 0 while it answers."""


@dataclass(frozen=True)
class StatusFile:
    """`output/status.json`: the present state of a run and its ranks (docs/reference/file-formats.md).

    Passes and attempts count from 0.
    """

    run_id: str | None = field(default=None, metadata=_written("runId"))
    state: str = field(default="unknown", metadata=ALWAYS)
    attempt: int = field(default=0, metadata=ALWAYS)
    restarts: list[RestartRecord] = field(default_factory=list, metadata=ALWAYS)
    waiting_for: str | None = field(default=None, metadata=_written("waitingFor"))
    waiting_since: float | None = field(default=None, metadata=_written("waitingSince"))
    """When the wait for missing ranks began, in Unix seconds; None if no rank is missing."""
    join_seconds: float | None = field(default=None, metadata=_written("joinSeconds"))
    """Seconds after which the run fails if a rank is still missing."""
    trainers: int = field(default=0, metadata=ALWAYS)
    passes: int = field(default=0, metadata=ALWAYS)
    number: int | None = field(default=None, metadata=_written("pass"))
    """Pass of the slowest rank; None while no rank trains."""
    batch: int | None = field(default=None, metadata=ALWAYS)
    """Batch of the slowest rank; None while no rank trains."""
    batches: int | None = field(default=None, metadata=ALWAYS)
    samples_per_second: float | None = field(default=None, metadata=_written("samplesPerSecond"))
    loss: float | None = field(default=None, metadata=ALWAYS)
    eta: float | None = field(default=None, metadata=_written("etaSeconds"))
    """Estimated seconds until the end of the last pass."""
    cause: str | None = field(default=None, metadata=ALWAYS)
    """Why the run failed; None if it did not."""
    warning: str | None = None
    """What is doubtful about a complete run, such as processes that trained alone; None: nothing."""
    export_to: str | None = field(default=None, metadata=_written("exportTo"))
    updated: float | None = field(default=None, metadata=ALWAYS)
    """When rank 0 wrote the file, in Unix seconds."""
    ranks: list[RankStatus] = field(default_factory=list, metadata=ALWAYS)


@dataclass(frozen=True)
class RunFile:
    """`output/run.json`, the run record: settings, attempts and outcome of a run (docs/reference/file-formats.md).

    Times are in Unix seconds.
    """

    run_id: str | None = field(default=None, metadata=_written("runId"))
    output_id: str = field(default="", metadata=_written("outputId"))
    """Random identifier of the output folder, which all runs that resume it share."""
    namespace: str = field(default="", metadata=ALWAYS)
    release: str = field(default="", metadata=ALWAYS)
    fingerprint: dict[str, Any] = field(default_factory=dict, metadata=ALWAYS)
    config: str = field(default="", metadata=ALWAYS)
    """Folder and file of the training program."""
    passes: int = field(default=0, metadata=ALWAYS)
    keep_best: str = field(default="", metadata={KEY: "keepBest"})
    patience: int | None = None
    """`training.patience`; None without `training.keepBest`."""
    model_pass: int | None = field(default=None, metadata={KEY: "modelPass"})
    """With `training.keepBest`: the pass, from 0, after which the model in output/model was saved."""
    started: float = field(default=0.0, metadata=ALWAYS)
    finished: float | None = field(default=None, metadata=ALWAYS)
    state: str = field(default="", metadata=ALWAYS)
    """training, stopped, complete or failed."""
    attempt: int = field(default=0, metadata=ALWAYS)
    restarts: list[RestartRecord] = field(default_factory=list, metadata=ALWAYS)
    holder: str = field(default="", metadata=ALWAYS)
    """Token of the output lease of the pod that wrote the file, which is no secret."""
    counted_restarts: int = field(default=0, metadata=_written("countedRestarts"))
    """Failures since the newest checkpoint, which `training.restarts` limits."""
    incarnations: list[str] = field(default_factory=list, metadata=ALWAYS)
    """Random identifier of each rank's pod in the newest attempt, in rank order."""
    resume: list[int] | None = field(default=None, metadata=ALWAYS)
    """Finished passes and batches of the checkpoint from which the newest attempt resumed."""
    init_model: str | None = field(default=None, metadata={KEY: "initModel"})
    """With `training.initModelPath: previous`: the model that the run started from; empty: from scratch."""
    cause: str | None = None
    exit_code: int | None = field(default=None, metadata={KEY: "exitCode"})
    warning: str | None = None
    """As in status.json."""
    score: dict[str, Any] = field(default_factory=dict, metadata=ALWAYS)
    """The model's test scores by metric name."""
    exported: dict[str, Any] | None = field(default=None, metadata=ALWAYS)
    """Result of the export to a bucket; None before it."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the training program, which the command line adds from program.json."""
    content: dict[str, Any] = field(default_factory=dict, metadata={KEY: ""})
    """The complete JSON object of the file, if `read_fields` read it."""

    @property
    def exported_to(self) -> str:
        """The address to which the model was exported; empty without an export."""
        return str((self.exported or {}).get("to") or "")
