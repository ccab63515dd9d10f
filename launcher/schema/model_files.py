"""model.json, the description of an exported model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launcher.schema.json_conversion import ALWAYS


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
    created: float | None = None
    """When the model was written, in Unix seconds; absent in models of earlier launcher versions."""
    score: dict[str, float] | None = None
    """The model's test scores by metric name; absent until the model was scored."""
