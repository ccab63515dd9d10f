"""The files of a checkpoint: contents.json and, while it is being saved, rank-<r>.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.schema.json_conversion import KEY, Count, FileName


@dataclass(frozen=True)
class CheckpointPosition:
    """How far training was when a checkpoint was saved."""

    passes: Count = field(metadata={KEY: "pass"})
    """Finished passes (epochs)."""
    batch: Count
    """Finished batches of the pass after them."""


@dataclass(frozen=True)
class CheckpointFile:
    """Size in bytes and sha256 (hex) of one file of a checkpoint. Small text files have no sha256."""

    bytes: Count
    sha256: str | None = None


@dataclass(frozen=True)
class CheckpointTable:
    """Entry of contents.json about an embedding table: its folder, shape and optimizer."""

    folder: FileName
    """Name of the table's folder below tables/."""
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
class ChainLink:
    """One checkpoint that an incremental checkpoint needs for a restore, because it saves only the changes."""

    folder: FileName
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

    files: dict[FileName, CheckpointFile]
    rows: dict[str, CheckpointRows]


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """`contents.json`: describes and verifies one checkpoint (docs/reference/file-formats.md)."""

    version: int
    position: CheckpointPosition
    attempt: Count
    output_id: str = field(default="", metadata={KEY: "outputId"})
    seed: int
    batches: Count
    """Batches per pass."""
    mode: str
    """training.mode: async or sync."""
    servers: Count
    shards: Count
    """Files per sparse table."""
    ranks: list[list[float]]
    """[samples, seconds, sum of the loss over the samples] of each rank in the unfinished pass."""
    dense: str
    """sha256 (hex) of the dense parameters' names, shapes and values."""
    tables: dict[str, CheckpointTable]
    scores: CheckpointScores | None = None
    chain: list[ChainLink] = field(default_factory=list)
    """The checkpoints that an incremental one continues, the full one first; empty in a full checkpoint."""
    files: dict[FileName, CheckpointFile]
    rows: dict[str, CheckpointRows]
    """Sample rows by table name."""


@dataclass(frozen=True, kw_only=True)
class ScriptCheckpoint:
    """`contents.json` of a checkpoint that a user's script saved (runtime collective)."""

    script: int
    """Version of the format; a checkpoint of the parameter server has the key `version` instead."""
    position: CheckpointPosition
    attempt: Count
    files: dict[FileName, CheckpointFile]
    """All files of the script, by their paths in the checkpoint's folder."""
