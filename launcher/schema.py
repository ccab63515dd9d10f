"""The fields of the files that a later process depends on, and the check of what was read from them.

`NotRequired` fields are those that older launchers did not write, or that stand there in some states only.
"""

import functools
import types
from typing import Any, NotRequired, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

Place = TypedDict("Place", {"pass": int, "batch": int})


class SavedFile(TypedDict):
    """A file of a checkpoint."""

    bytes: int
    sha256: NotRequired[str]


class SavedTable(TypedDict):
    """An embedding table in a checkpoint; `folder` is below tables/, `rows` is null when it grows."""

    folder: str
    rows: int | None
    width: int
    rule: str


class SavedRows(TypedDict):
    """Some rows of a table, as the servers gave them."""

    ids: list[int]
    values: list[list[float]]


class Link(TypedDict):
    """A checkpoint that a delta continues; `sha256` is that of its contents.json."""

    folder: str
    sha256: str


class Scores(TypedDict):
    """The scores of the passes so far by `training.keepBest`: [finished passes, value] each."""

    metric: str
    passes: list[list[float | None]]


class Contents(TypedDict):
    """`contents.json` of a checkpoint (docs/contracts.md)."""

    version: int
    position: Place
    attempt: int
    outputId: NotRequired[str]
    seed: int
    batches: int
    mode: str
    servers: int
    shards: int
    ranks: list[list[float]]
    dense: str
    tables: dict[str, SavedTable]
    files: dict[str, SavedFile]
    rows: dict[str, SavedRows]
    scores: NotRequired[Scores]
    chain: NotRequired[list[Link]]


class DataFile(TypedDict):
    """The test set, or rows.json, in the manifest; older manifests have no sums."""

    bytes: int
    sha256: NotRequired[str | None]


class SideTable(DataFile):
    """A side table in the manifest."""

    name: str


class Shard(TypedDict):
    """A shard in the manifest: one file, or `parts` of them."""

    index: int
    bytes: int
    parts: NotRequired[int]
    sha256: NotRequired[str | None]


class Manifest(TypedDict):
    """`manifest.json` (docs/contracts.md): what a training pod takes from it."""

    shards: list[Shard]
    test: NotRequired[DataFile | None]
    rows: NotRequired[DataFile | None]
    tables: NotRequired[list[SideTable]]


class RunRestart(TypedDict):
    """A restart in the run record; `at` in unix seconds."""

    attempt: int
    cause: str
    at: float
    signature: NotRequired[list[Any] | None]


class RunRecord(TypedDict, total=False):
    """`run.json` (docs/contracts.md): what a later rank 0 takes from it."""

    runId: str
    outputId: str
    fingerprint: dict[str, Any]
    started: float | None
    finished: float | None
    state: str
    attempt: int
    restarts: list[RunRestart]
    holder: str
    fruitless: int
    crew: list[str]
    resume: list[int] | None
    cause: str
    exitCode: int
    score: dict[str, Any]
    exported: dict[str, Any] | None


_hints = functools.cache(get_type_hints)


def mismatch(value: object, shape: Any, at: str = "") -> str | None:
    """Return the first place where `value`, of JSON, has not the type `shape`; None when it has it.

    Args:
        shape: int, float, str, None, Any, a union, list[…], dict[str, …] or a TypedDict of these.
        at: where `value` is in the file, for the message.
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
    elif kind is list and isinstance(value, list):
        inner = [(entry, get_args(shape)[0], str(number)) for number, entry in enumerate(value)]
    elif kind is dict and isinstance(value, dict):
        inner = [(entry, get_args(shape)[1], key) for key, entry in value.items()]
    elif shape is not Any:
        plain = {float: (int, float)}.get(kind, dict if is_typeddict(shape) else kind)
        fits = isinstance(value, plain) and not isinstance(value, bool)
        why = None if fits else f"{at} is {value!r:.60}"
    found = (mismatch(entry, hint, f"{at}.{key}".lstrip(".")) for entry, hint, key in inner)
    return why or next(filter(None, found), None)
