"""model.json, the description of an exported model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from launcher.schema.json_conversion import ALWAYS, KEY, Count, FileName


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
    """`model.json`: describes an exported model (docs/reference/file-formats.md)."""

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
    """Size in bytes by file name, without the tables' files and model.json."""
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
    """`_SUCCESS.json`: lists the objects of a complete export (docs/reference/file-formats.md)."""

    files: list[ExportedFile]
    output_id: str = field(default="", metadata={KEY: "outputId"})
