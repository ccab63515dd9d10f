"""What every kind of source is opened with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.dataprep.progress_log import DataProgress
from launcher.io.retry import Retry
from launcher.settings import DataSettings

SUFFIXES = (".txt", ".csv", ".tsv", ".gz")
"""Names of text files below a prefix or folder; others are ignored."""


@dataclass(frozen=True)
class SourceContext:
    """Holds the settings and helpers with which a source is opened."""

    settings: DataSettings
    tmp: Path
    """A folder for an archive that must be complete before it can be read."""
    progress: DataProgress
    retry: Retry
    key: str
    """The setting with the source, for messages: `data.source` or `data.testSource`."""
