"""Define the fields of the JSON files that another process reads; check them and convert them to objects.

`json_conversion` converts dataclasses (`to_json`, `from_json`, `read_fields`).
A field with a default, or a field of a TypedDict with `total=False`, may be missing in a file: older launchers did not
write it, or the run has no value for it yet. A field with the metadata REQUIRED may not be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from launcher.paths import Count, FileName, Position
from launcher.schema.json_conversion import (
    ALWAYS,
    KEY,
    REQUIRED,
    from_json,
    is_required,
    mismatch,
    read_fields,
    to_json,
)

# The files of the data Job: manifest.json, files.json and data-failed.json.

MANIFEST_VERSION = 2
"""Version of manifest.json and of the files that it lists; training pods reject any other version."""


class _DataSize(TypedDict):
    bytes: Count


class DataFile(_DataSize, total=False):
    """Entry of manifest.json about test.txt or files.jsonl. Older manifests have no sha256."""

    sha256: str | None
    lines: Count


class SideTable(DataFile):
    """Entry of manifest.json about a side table: a file of `data.tables` that the program reads."""

    name: FileName


class _ShardSize(TypedDict):
    index: Count
    bytes: Count


class Shard(_ShardSize, total=False):
    """Entry of manifest.json about a shard, one rank's part of the rows.

    A shard is the file train.txt. If the entry has `parts`, the shard is this number of files instead, and the shard's
    files.json lists them.
    """

    lines: Count
    parts: Count
    sha256: str | None


class DataRelease(TypedDict, total=False):
    """The Helm release whose pod wrote a manifest.

    If the manifest has `reusedFrom`, an earlier Job has made the data.
    """

    namespace: str
    release: str
    job: str
    runId: str


class FileCounts(TypedDict):
    """Entry of manifest.json about data with `data.format: files`: the number and size of the files in files.jsonl."""

    count: Count
    bytes: Count
    list: DataFile
    """Size and sha256 of files.jsonl."""


@dataclass(frozen=True)
class ManifestFile:
    """`manifest.json`: the list of a job's data files, which training pods wait for and verify."""

    version: int = 0
    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    content: str = ""
    """Name of the data's folder in `.data/`; empty in some manifests of older launchers, whose data is elsewhere."""
    source: str = ""
    sha256: str = ""
    member: str = ""
    format: str = ""
    seed: int = 0
    test_fraction: float = field(default=0.0, metadata={KEY: "testFraction"})
    test_source: str = field(default="", metadata={KEY: "testSource"})
    test_rows: Count = field(default=0, metadata={KEY: "testRows"})
    split_count: Count = field(default=0, metadata={KEY: "splitCount"})
    """Number of shards; 0 with `data.format: files`, because then all training pods read all files."""
    lines: Count = 0
    shards: list[Shard] = field(default_factory=list, metadata=REQUIRED)
    test: DataFile | None = None
    tables: list[SideTable] = field(default_factory=list)
    files: FileCounts | None = None
    """Number and size of the files with `data.format: files`; None with other formats."""
    made_by: DataRelease = field(default_factory=DataRelease, metadata={KEY: "madeBy"})
    reused_from: str = field(default="", metadata={KEY: "reusedFrom"})
    """The earlier Job whose data is reused, because the content of the source had not changed; empty: this Job read the
    source itself."""
    checksum: str = ""


def describe_data(manifest: Mapping[str, Any]) -> str:
    """Return how much data a manifest describes, for messages."""
    if counts := manifest.get("files"):
        return f"{counts['count']:,} files, {counts['bytes']:,} bytes"
    test = (manifest.get("test") or {}).get("lines") or 0
    return f"{manifest.get('splitCount')} shards, {manifest.get('lines', 0):,} lines, {test:,} test lines"


class ShardFileEntry(TypedDict):
    """One entry of files.json, or one line of files.jsonl: the name, size in bytes and sha256 (hex) of one file."""

    name: FileName
    bytes: Count
    sha256: str


class ShardFiles(TypedDict):
    """`files.json`: lists the files of one shard. Only a shard of several files has a files.json in its folder."""

    files: list[ShardFileEntry]


@dataclass(frozen=True)
class DataFailure:
    """`data-failed.json`: why the data Job failed (docs/reference/files.md)."""

    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    reason: str = ""


# The files of a checkpoint: contents.json and, while it is being saved, rank-<r>.json.


@dataclass(frozen=True)
class CheckpointFile:
    """Size in bytes and sha256 (hex) of one file of a checkpoint. Small text files have no sha256."""

    bytes: Count
    sha256: str | None = None


@dataclass(frozen=True)
class CheckpointTable:
    """Entry of contents.json about an embedding table: its shape and optimizer."""

    width: Count
    """Numbers in each row."""
    rule: str
    """The optimizer: adam, sgd or adagrad."""


@dataclass(frozen=True)
class CheckpointRows:
    """Sample of a table's rows, read from the parameter servers after the save, to verify a restore."""

    ids: list[int]
    values: list[list[float]]
    """The rows of these ids, of shape [number of ids, width of the table]."""


@dataclass(frozen=True)
class CheckpointScores:
    """Test scores of the run's passes so far, for the metric of `training.keepBest`."""

    metric: str
    passes: list[list[float | None]]
    """[number of finished passes, score] of each scored pass; the score is null if it is NaN or infinite."""


@dataclass(frozen=True)
class RankFiles:
    """`rank-<r>.json`: the files and sample rows that rank r contributes to a checkpoint being saved."""

    files: dict[FileName, CheckpointFile]
    rows: dict[str, CheckpointRows]


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """The fields of `contents.json` that every checkpoint has, also a checkpoint of a user's script."""

    position: Position
    attempt: Count
    output_id: str = field(default="", metadata={KEY: "outputId"})
    files: dict[FileName, CheckpointFile]
    """All files, by their paths in the checkpoint's folder."""
    history: list[list[Count]] = field(default_factory=list)
    """How the rows of the unfinished pass were divided: `History` in launcher/row_division.py. Empty at the end of a
    pass, and if a script divides its rows itself."""


@dataclass(frozen=True, kw_only=True)
class ScriptCheckpoint(SavedCheckpoint):
    """`contents.json` of a checkpoint that a user's script saved (runtimes collective and ps)."""

    script: int
    """Version of the format; a checkpoint of runtime fleet has the key `version` instead."""
    processes: Count = 1
    """Number of processes that wrote the files together (`all_ranks`); 1 if process 0 wrote all of them, and with
    runtime ps."""


@dataclass(frozen=True, kw_only=True)
class CheckpointContents(SavedCheckpoint):
    """`contents.json` of a checkpoint of runtime fleet's parameter servers (docs/reference/files.md)."""

    version: int
    servers: Count
    """Number of parameter servers."""
    shards: Count
    """Files per sparse table."""
    ranks: list[list[float]]
    """[samples, seconds, sum of the loss over the samples] of each rank in the unfinished pass."""
    shard_rows: list[Count] = field(default_factory=list, metadata={KEY: "shardRows"})
    """Rows of each shard that the program uses; empty at the end of a pass."""
    tables: dict[str, CheckpointTable]
    scores: CheckpointScores | None = None
    rows: dict[str, CheckpointRows]
    """Sample rows by table name."""


# model.json, the description of an exported model.


@dataclass(frozen=True)
class ModelLookup:
    """One lookup of ids in an embedding table by an exported network."""

    table: str
    ids: str
    """Name of the network's variable with the ids."""
    vectors: str
    """Name of the network's variable that receives the table's rows for these ids."""


@dataclass(frozen=True)
class ModelTable:
    """Number of rows and width (numbers in each row) of an embedding table of an exported model."""

    rows: Count
    width: Count


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """`model.json`: describes an exported model (docs/reference/files.md)."""

    version: int
    checkpoint: str = field(default="", metadata=ALWAYS)
    """Folder name of the checkpoint from which the model was exported; empty if there was no checkpoint."""
    config: FileName
    """Name of the main file of the training program in program/."""
    columns: list[str]
    features: list[str]
    label: str
    options: dict[str, Any]
    lookups: list[ModelLookup]
    ids: list[str]
    """Names of variables with ids for lookups that the program's network() calculates from its inputs."""
    tables: dict[str, ModelTable]
    files: dict[FileName, Count]
    """Size in bytes of each file, by its name; the tables' files and model.json are not listed."""
    created: float | None = None
    """When the model was written, in Unix seconds; absent in models of earlier launcher versions."""
    score: dict[str, float] | None = None
    """The model's test scores by metric name; absent until the model was scored."""


@dataclass(frozen=True)
class ExportedFile:
    """Entry of `_SUCCESS.json` about one object of an export in a bucket."""

    name: FileName
    """The object's name in the folder of the run's export."""
    bytes: Count
    sha256: str


@dataclass(frozen=True)
class ExportMarker:
    """`_SUCCESS.json`: lists the objects of a complete export (docs/reference/files.md)."""

    files: list[ExportedFile]
    output_id: str = field(default="", metadata={KEY: "outputId"})


# The files of a run: run.json (the run record), status.json, and progress.json of a trainer.
#
# The launcher of rank 0 writes run.json and status.json, and resumes a run from its run.json. The command line shows
# both: it reads them leniently (`read_fields`), since any version of the launcher may have written them. So all
# fields have defaults, and keys that newer versions added are missing in older files.


@dataclass(frozen=True)
class TrainerProgress:
    """`progress.json`: how far one trainer has trained. The trainer rewrites the file often, and the launcher reads it.

    A user's own program may write anything into the file: the field of a missing or wrong value gets its default.
    docs/reference/files.md describes the fields.
    """

    number: int | None = field(default=None, metadata={KEY: "pass"})
    """Pass, from 0."""
    batch: int | None = None
    """Batch, from 1."""
    batches: int | None = None
    """Batches of a pass."""
    samples_per_second: float | None = None
    loss: float | None = None
    state: str = ""
    saved: Position | None = None
    """The newest checkpoint; Position(0) before the first one; None in a process that saves none."""
    bytes: float | None = 0.0
    """Size of the checkpoint that was loaded or saved last; None if it is unknown."""
    batch_size: float | None = None
    passes: int | None = None
    step_seconds: float | None = None
    """Mean of the trainer's own seconds per recent batch, without waits for other trainers; None: not measured."""
    marks: dict[str, float] = field(default_factory=dict)
    """Unix time at which each step of the trainer's start was done, by the step's name."""


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
class PlanRecord:
    """The part of the newest attempt's plan that is in run.json, so that a new pod of rank 0 can continue the run."""

    attempt: int = field(default=0, metadata=ALWAYS)
    restarts: tuple[RestartRecord, ...] = field(default=(), metadata=ALWAYS)
    """All earlier attempts that failed."""
    counted_restarts: int = field(default=0, metadata=_written("countedRestarts"))
    """Failures since the newest checkpoint, which `training.restarts` limits."""
    incarnations: tuple[str, ...] = field(default=(), metadata=ALWAYS)
    """Random identifier of each pod of the newest attempt."""
    world: tuple[int, ...] | None = None
    """The completion index of each pod in `incarnations`. None (files of earlier launchers): all pods in order."""
    resume: Position | None = field(default=None, metadata=ALWAYS)
    """The checkpoint from which the newest attempt resumes; None: it starts from scratch."""
    init_model: str | None = field(default=None, metadata={KEY: "initModel"})
    """With `training.initModelPath: previous`: the model that the run started from. Empty: the run started from
    scratch. None: the launcher has not looked for a model yet."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the completion index of each pod in `incarnations`; empty before the first attempt."""
        return tuple(range(len(self.incarnations))) if self.world is None else self.world

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields of `PlanRecord` by name; fields that a derived class adds are left out."""
        return {each.name: getattr(self, each.name) for each in fields(PlanRecord)}


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
    step_seconds: float | None = field(default=None, metadata=_written("stepSeconds"))
    """The rank's own seconds per batch, without waits for other ranks; None: not measured."""
    is_slow: bool = field(default=False, metadata=_written("isSlow"))
    """Whether `step_seconds` is much more than the median of all ranks."""
    storage_seconds: float = field(default=0.0, metadata=_written("storageSeconds"))
    """Seconds since the shared storage last answered this rank; 0 while it answers."""


@dataclass(frozen=True)
class StatusFile:
    """`output/status.json`: the current state of a run and its ranks (docs/reference/files.md).

    Passes and attempts count from 0.
    """

    run_id: str | None = field(default=None, metadata=_written("runId"))
    state: str = field(default="unknown", metadata=ALWAYS)
    attempt: int = field(default=0, metadata=ALWAYS)
    restarts: tuple[RestartRecord, ...] = field(default=(), metadata=ALWAYS)
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
    """What is doubtful: a slow rank or node, or processes of a complete run that trained alone; None: nothing."""
    log_progress: str | None = field(default=None, metadata={KEY: "logProgress"})
    """Epoch, step and loss in the log of a script that does not report its steps; None: the log has no such line."""
    script_file: str | None = field(default=None, metadata={KEY: "scriptFile"})
    """The newest file of a script's own checkpoints, below its checkpoint folder; None: there is no such file."""
    script_file_written: float | None = field(default=None, metadata={KEY: "scriptFileWritten"})
    """When `script_file` was written, in Unix seconds."""
    export_to: str | None = field(default=None, metadata=_written("exportTo"))
    updated: float | None = field(default=None, metadata=ALWAYS)
    """When rank 0 wrote the file, in Unix seconds."""
    ranks: list[RankStatus] = field(default_factory=list, metadata=ALWAYS)


@dataclass(frozen=True)
class RunFile(PlanRecord):
    """`output/run.json`, the run record: settings, attempts and outcome of a run (docs/reference/files.md).

    Times are in Unix seconds.
    """

    run_id: str | None = field(default=None, metadata=_written("runId"))
    output_id: str = field(default="", metadata=_written("outputId"))
    """Random identifier of the output folder. It stays the same in all runs that resume this output folder."""
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
    holder: str = field(default="", metadata=ALWAYS)
    """Token of the output lease that the writer of the file held. The token is not a secret."""
    cause: str | None = None
    exit_code: int | None = field(default=None, metadata={KEY: "exitCode"})
    warning: str | None = None
    """What is doubtful about the run: the same text as in status.json."""
    score: dict[str, Any] = field(default_factory=dict, metadata=ALWAYS)
    """The model's test scores by metric name."""
    exported: dict[str, Any] | None = field(default=None, metadata=ALWAYS)
    """Result of the export to a bucket; None before the export."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the training program. The file does not have them: the command line reads them in program.json."""
    content: dict[str, Any] = field(default_factory=dict, metadata={KEY: ""})
    """The complete JSON object of the file, if `read_fields` read it."""

    @property
    def exported_to(self) -> str:
        """The address to which the model was exported; empty without an export."""
        return str((self.exported or {}).get("to") or "")
