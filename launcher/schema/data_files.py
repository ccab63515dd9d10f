"""The files of the data Job: manifest.json, files.json and data-failed.json."""

from dataclasses import dataclass, field
from typing import TypedDict

from launcher.schema.json_conversion import KEY, REQUIRED, Count, FileName

MANIFEST_VERSION = 2
"""Version of manifest.json and of the files that it lists; a launcher reads no other version."""


class _DataSize(TypedDict):
    bytes: Count


class DataFile(_DataSize, total=False):
    """Entry of manifest.json about test.txt. Older manifests have no sha256."""

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

    A shard is the file train.txt, or as many files as `parts` says, which the shard's files.json lists.
    """

    lines: Count
    parts: Count
    sha256: str | None


class DataRelease(TypedDict, total=False):
    """The Helm release whose data Job made the data that a manifest describes."""

    dataDigest: str | None
    namespace: str
    release: str
    job: str
    runId: str


class ManifestOrigin(TypedDict, total=False):
    """The fields of manifest.json that say whose data it is, and whose data it replaced."""

    dataDigest: str | None
    madeBy: DataRelease
    replaced: list[DataRelease]


class Publication(TypedDict):
    """The fields that publish.json needs: the manifest of a publication that has begun."""

    splitCount: Count
    lines: Count
    sha256: str
    test: DataFile
    tables: list[SideTable]
    shards: list[Shard]


@dataclass(frozen=True)
class ManifestFile:
    """`manifest.json`: the list of a job's data files, which training pods wait for and verify."""

    version: int = 0
    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    content: str = ""
    source: str = ""
    sha256: str = ""
    member: str = ""
    format: str = ""
    seed: int = 0
    test_fraction: float = field(default=0.0, metadata={KEY: "testFraction"})
    test_source: str = field(default="", metadata={KEY: "testSource"})
    test_rows: Count = field(default=0, metadata={KEY: "testRows"})
    split_count: Count = field(default=0, metadata={KEY: "splitCount"})
    lines: Count = 0
    shards: list[Shard] = field(default_factory=list, metadata=REQUIRED)
    test: DataFile | None = None
    tables: list[SideTable] = field(default_factory=list)
    made_by: DataRelease = field(default_factory=DataRelease, metadata={KEY: "madeBy"})
    replaced: list[DataRelease] = field(default_factory=list)
    reused_from: str = field(default="", metadata={KEY: "reusedFrom"})
    """The Job that read the source, if this Job did not because its content had not changed; else empty."""
    checksum: str = ""


class ShardFileEntry(TypedDict):
    """Entry of files.json about one file of a shard that has several files."""

    name: FileName
    bytes: Count
    sha256: str


class ShardFiles(TypedDict):
    """`files.json`: lists the files of a shard that has several."""

    files: list[ShardFileEntry]


@dataclass(frozen=True)
class DataFailure:
    """`data-failed.json`: why the data Job failed (docs/reference/file-formats.md)."""

    data_digest: str = field(default="", metadata={KEY: "dataDigest"})
    reason: str = ""
