"""Define the fields of the JSON files that another process reads; check them and convert them to objects.

Dataclasses are converted by `to_json` and `from_json`. Fields with a default, and `NotRequired` fields of
TypedDicts, are missing in files of older launchers or in some states of a run.
"""

import dataclasses
import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import (
    Any,
    NotRequired,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")

KEY = "key"
"""Key in the metadata of a dataclass field; its value is the field's JSON key, if that is not the name."""
ALWAYS = {"always": True}
"""Metadata of a dataclass field that `to_json` writes even when it has its default value."""


@dataclass(frozen=True)
class CheckpointPosition:
    """How far training was when a checkpoint was saved."""

    passes: int = field(metadata={KEY: "pass"})
    """Finished passes (epochs)."""
    batch: int
    """Finished batches of the pass after them."""


@dataclass(frozen=True)
class CheckpointFile:
    """Size in bytes and sha256 (hex) of one file of a checkpoint. Small text files have no sha256."""

    bytes: int
    sha256: str | None = None


@dataclass(frozen=True)
class CheckpointTable:
    """An embedding table in a checkpoint."""

    folder: str
    """Name of the table's folder below tables/; empty with training.mode geo: params.npz has the tables."""
    rows: int | None
    """Number of rows; None for a table that grows with its ids."""
    width: int
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
class ChainLink:
    """One checkpoint that an incremental checkpoint needs for a restore, because it saves only the changes."""

    folder: str
    """Folder name of that checkpoint."""
    sha256: str
    """sha256 (hex) of its contents.json."""


@dataclass(frozen=True)
class CheckpointScores:
    """Test scores of the run's passes so far, by the metric of `training.keepBest`."""

    metric: str
    passes: list[list[float | None]]
    """[finished passes, score] each; null for a score that is NaN or infinite."""


@dataclass(frozen=True)
class RankFiles:
    """`rank-<r>.json`: the files and sample rows that rank r contributes to a checkpoint being saved."""

    files: dict[str, CheckpointFile]
    rows: dict[str, CheckpointRows]


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """`contents.json`: describes and verifies one checkpoint (docs/reference/file-formats.md)."""

    version: int
    position: CheckpointPosition
    attempt: int
    output_id: str = field(default="", metadata={KEY: "outputId"})
    seed: int
    batches: int
    """Batches per pass."""
    mode: str
    """training.mode: async, sync or geo."""
    servers: int
    shards: int
    """Files per sparse table."""
    ranks: list[list[float]]
    """[samples, seconds, sum of the loss over the samples] of each rank in the unfinished pass."""
    dense: str
    """sha256 (hex) of the dense parameters' names, shapes and values."""
    tables: dict[str, CheckpointTable]
    scores: CheckpointScores | None = None
    chain: list[ChainLink] = field(default_factory=list)
    """The checkpoints that an incremental one continues, the full one first; empty in a full checkpoint."""
    files: dict[str, CheckpointFile]
    rows: dict[str, CheckpointRows]
    """Sample rows by table name."""


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

    rows: int
    width: int


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """`model.json`: describes an exported model (docs/reference/file-formats.md)."""

    version: int
    checkpoint: str = field(default="", metadata=ALWAYS)
    """Folder name of the checkpoint from which the model was exported; empty if there was no checkpoint."""
    config: str
    """Name of the main file of the training program in program/."""
    columns: list[str]
    features: list[str]
    label: str
    options: dict[str, Any]
    lookups: list[ModelLookup]
    ids: list[str]
    """Names of variables with ids for lookups that the program's network() calculates from its inputs."""
    tables: dict[str, ModelTable]
    files: dict[str, int]
    """Size in bytes by file name, without the tables' files and model.json."""
    score: dict[str, float] | None = None
    """The model's test scores by metric name; absent until the model was scored."""


class DataFile(TypedDict):
    """Entry of manifest.json about test.txt or rows.json. Older manifests have no sha256."""

    bytes: int
    sha256: NotRequired[str | None]
    lines: NotRequired[int]


class SideTable(DataFile):
    """Entry of manifest.json about a side table: a file of `data.tables` that the program reads."""

    name: str


class Shard(TypedDict):
    """Entry of manifest.json about a shard, one rank's part of the rows.

    A shard is the file train.txt, or as many files as `parts` says, which the shard's files.json lists.
    """

    index: int
    bytes: int
    lines: NotRequired[int]
    parts: NotRequired[int]
    sha256: NotRequired[str | None]


class DataRelease(TypedDict, total=False):
    """The Helm release whose data Job made the data that a manifest describes."""

    dataDigest: str | None
    namespace: str
    release: str
    job: str
    runId: str


class Manifest(TypedDict):
    """`manifest.json`: the list of a job's data files, which training pods wait for and verify."""

    version: NotRequired[int]
    dataDigest: NotRequired[str]
    content: NotRequired[str]
    source: NotRequired[str]
    sha256: NotRequired[str]
    member: NotRequired[str]
    format: NotRequired[str]
    seed: NotRequired[int]
    testFraction: NotRequired[float]
    testSource: NotRequired[str]
    testRows: NotRequired[int]
    splitCount: NotRequired[int]
    lines: NotRequired[int]
    shards: list[Shard]
    test: NotRequired[DataFile | None]
    rows: NotRequired[DataFile | None]
    tables: NotRequired[list[SideTable]]
    madeBy: NotRequired[DataRelease]
    replaced: NotRequired[list[DataRelease]]
    checksum: NotRequired[str]


class ShardFileEntry(TypedDict):
    """Entry of files.json about one file of a shard that has several files."""

    name: str
    bytes: int
    sha256: str


class ShardFiles(TypedDict):
    """`files.json`: lists the files of a shard that has several."""

    files: list[ShardFileEntry]


TrainerProgress = TypedDict(
    "TrainerProgress",
    {
        "pass": int,
        "batch": int,
        "batches": int,
        "samples_per_second": float,
        "loss": float | None,
        "state": str,
        "saved": dict[str, int] | None,
        "bytes": int | None,
        "marks": dict[str, float],
    },
)
"""`progress.json`: how far one trainer is, which it rewrites often and its launcher reads.

Passes count from 0, batches from 1. `marks` has the Unix times at which steps of the start were done.
"""


class RunRestart(TypedDict):
    """Entry of run.json about a failed attempt that was restarted; `at` is its time in Unix seconds."""

    attempt: int
    cause: str
    at: float
    signature: NotRequired[list[Any] | None]


class RunRecord(TypedDict, total=False):
    """`run.json`: the fields that the launcher reads when it resumes a run (docs/reference/file-formats.md)."""

    runId: str
    outputId: str
    fingerprint: dict[str, Any]
    started: float | None
    finished: float | None
    state: str
    attempt: int
    restarts: list[RunRestart]
    holder: str
    countedRestarts: int
    incarnations: list[str]
    resume: list[int] | None
    cause: str
    exitCode: int
    score: dict[str, Any]
    exported: dict[str, Any] | None


# The fields that readers show to users. They are read leniently: any version of the launcher may have
# written them, and a wrong value must not keep the others from being shown.


@dataclass(frozen=True)
class RestartRecord:
    """Entry of run.json or status.json about a failed attempt that was restarted; `at` in Unix seconds."""

    attempt: int = 0
    cause: str = ""
    at: float | None = None


@dataclass(frozen=True)
class RankStatus:
    """Entry of status.json about one rank (one training pod).

    `number` is its pass, which counts from 0; None while the rank does not train.
    """

    rank: int = -1
    pod: str | None = None
    node: str | None = None
    state: str | None = None
    number: int | None = field(default=None, metadata={KEY: "pass"})
    batch: int | None = None
    samples_per_second: float | None = field(default=None, metadata={KEY: "samplesPerSecond"})
    loss: float | None = None


@dataclass(frozen=True)
class StatusFile:
    """`output/status.json`: the present state of a run and its ranks (docs/reference/file-formats.md).

    Passes and attempts count from 0.
    """

    run_id: str | None = field(default=None, metadata={KEY: "runId"})
    state: str = "unknown"
    attempt: int = 0
    restarts: list[RestartRecord] = field(default_factory=list)
    waiting_for: str | None = field(default=None, metadata={KEY: "waitingFor"})
    trainers: int = 0
    passes: int = 0
    number: int | None = field(default=None, metadata={KEY: "pass"})
    batch: int = 0
    batches: int = 0
    samples_per_second: float | None = field(default=None, metadata={KEY: "samplesPerSecond"})
    loss: float | None = None
    eta: float | None = field(default=None, metadata={KEY: "etaSeconds"})
    """Estimated seconds until the end of the last pass."""
    cause: str = ""
    export_to: str | None = field(default=None, metadata={KEY: "exportTo"})
    updated: float | None = None
    """When rank 0 wrote the file, in Unix seconds."""
    ranks: list[RankStatus] = field(default_factory=list)


@dataclass(frozen=True)
class RunFile:
    """`output/run.json`, the run record: settings and outcome of a run, as the command line shows them.

    Times are in Unix seconds. docs/reference/file-formats.md describes all fields.
    """

    run_id: str | None = field(default=None, metadata={KEY: "runId"})
    release: str = ""
    namespace: str = ""
    state: str = ""
    started: float = 0.0
    finished: float | None = None
    restarts: list[RestartRecord] = field(default_factory=list)
    resume: list[int] | None = None
    """Finished passes and batches of the checkpoint from which the newest attempt resumed."""
    score: dict[str, Any] = field(default_factory=dict)
    exported: dict[str, Any] = field(default_factory=dict)
    model_pass: int | None = field(default=None, metadata={KEY: "modelPass"})
    fingerprint: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict, metadata={KEY: ""})
    """The complete JSON object of the file."""

    @property
    def exported_to(self) -> str:
        """The address to which the model was exported; empty without an export."""
        return str(self.exported.get("to") or "")


@dataclass(frozen=True)
class ManifestFile:
    """`manifest.json`: the fields that the command line shows (docs/reference/file-formats.md)."""

    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    split_count: int = field(default=0, metadata={KEY: "splitCount"})
    lines: int = 0
    made_by: dict[str, Any] = field(default_factory=dict, metadata={KEY: "madeBy"})


@dataclass(frozen=True)
class DataFailure:
    """`data-failed.json`: why the data Job failed (docs/reference/file-formats.md)."""

    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    reason: str = ""


_hints = functools.cache(get_type_hints)


def mismatch(value: object, shape: Any, at: str = "") -> str | None:
    """Compare a parsed JSON value with a type; return a description of the first difference, or None.

    Args:
        value: the parsed JSON value.
        shape: the expected type: int, float, str, None, Any, a union, list[…], dict[str, …], or a TypedDict
            or dataclass with fields of these types.
        at: the key of `value` in its file, with dots between levels, for the description.
    """
    kind = get_origin(shape) or shape
    inner: list[tuple[object, Any, str]] = []
    why = None
    if kind is types.UnionType:
        whys = [mismatch(value, other, at) for other in get_args(shape)]
        why = None if None in whys else whys[0]
    elif is_typeddict(shape) and isinstance(value, dict):
        missing = sorted(key for key in shape.__required_keys__ if key not in value)
        why = f"{at or 'it'} has no {missing[0]!r}" if missing else None
        inner = [(value[key], hint, key) for key, hint in _hints(shape).items() if key in value]
    elif dataclasses.is_dataclass(shape) and isinstance(value, dict):
        cls: Any = shape
        keys = {_key(f): f for f in dataclasses.fields(cls)}
        missing = sorted(key for key, f in keys.items() if _is_required(f) and key not in value)
        why = f"{at or 'it'} has no {missing[0]!r}" if missing else None
        inner = [(value[key], _hints(cls)[f.name], key) for key, f in keys.items() if key in value]
    elif kind is list and isinstance(value, list):
        inner = [(entry, get_args(shape)[0], str(number)) for number, entry in enumerate(value)]
    elif kind is dict and isinstance(value, dict):
        inner = [(entry, get_args(shape)[1], key) for key, entry in value.items()]
    elif shape is not Any:
        plain = {float: (int, float)}.get(kind, dict if _is_object(shape) else kind)
        fits = isinstance(value, plain) and not isinstance(value, bool)
        why = None if fits else f"{at} is {value!r:.60}"
    found = (mismatch(entry, hint, f"{at}.{key}".lstrip(".")) for entry, hint, key in inner)
    return why or next(filter(None, found), None)


def to_json(value: Any) -> Any:
    """Convert a dataclass of this module, with everything in it, to dicts and lists for `json.dumps`.

    A field that has its default value is left out, unless its metadata is ALWAYS.
    """
    if dataclasses.is_dataclass(value):
        found = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return {_key(f): to_json(inner) for f, inner in found if _is_written(f, inner)}
    if isinstance(value, Mapping):
        return {key: to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def from_json(shape: type[T], value: Any) -> T:
    """Convert parsed JSON to a dataclass, the reverse of `to_json`. Unknown keys are ignored.

    Args:
        shape: the dataclass.
        value: the parsed JSON.

    Raises:
        ValueError: a required key of `value` is missing, or a value has the wrong type; the message has the
            key.
    """
    if why := mismatch(value, shape):
        raise ValueError(why)
    built: T = _build(shape, value)
    return built


def read_fields(shape: type[T], value: Mapping[str, Any]) -> T:
    """Convert a JSON object to a dataclass, leniently: a missing or wrong value becomes the field's default.

    Args:
        shape: the dataclass; all its fields must have defaults. A field with the KEY "" receives the whole
            object.
        value: the parsed JSON object.
    """
    cls: Any = shape
    found: dict[str, Any] = {}
    for one in dataclasses.fields(cls):
        key, hint = _key(one), _hints(cls)[one.name]
        entry: Any = value.get(key) if key else value
        inner = get_args(hint)[0] if get_origin(hint) is list else None
        if dataclasses.is_dataclass(inner):
            entries = entry if isinstance(entry, list) else []
            objects = [part for part in entries if isinstance(part, dict)]
            found[one.name] = [read_fields(cast(type[Any], inner), part) for part in objects]
        elif entry is not None and mismatch(entry, hint) is None:
            found[one.name] = float(entry) if hint in (float, float | None) else entry
    made: T = cls(**found)
    return made


def _build(shape: Any, value: Any) -> Any:
    kind = get_origin(shape) or shape
    if kind is types.UnionType:
        shape = next(other for other in get_args(shape) if mismatch(value, other) is None)
        return _build(shape, value)
    if dataclasses.is_dataclass(shape):
        hints = _hints(kind)
        present = [f for f in dataclasses.fields(kind) if _key(f) in value]
        return kind(**{f.name: _build(hints[f.name], value[_key(f)]) for f in present})
    if kind is list:
        return [_build(get_args(shape)[0], inner) for inner in value]
    if kind is dict and get_args(shape):
        return {key: _build(get_args(shape)[1], inner) for key, inner in value.items()}
    return value


def _key(found: dataclasses.Field[Any]) -> str:
    return str(found.metadata.get(KEY, found.name))


def _default(found: dataclasses.Field[Any]) -> Any:
    made = found.default_factory
    return found.default if made is dataclasses.MISSING else made()


def _is_required(found: dataclasses.Field[Any]) -> bool:
    return _default(found) is dataclasses.MISSING


def _is_written(found: dataclasses.Field[Any], value: Any) -> bool:
    return "always" in found.metadata or _is_required(found) or bool(value != _default(found))


def _is_object(shape: Any) -> bool:
    return is_typeddict(shape) or dataclasses.is_dataclass(shape)
