"""What every kind of source is opened with, and the rule which files of a folder or prefix are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.dataprep.archives import NAMES_SHOWN
from launcher.dataprep.progress_log import DataProgress
from launcher.dataprep.source_parts import SourceObject
from launcher.errors import DataError
from launcher.io.retry import Retry
from launcher.log import log
from launcher.settings import DataSettings

_HIDDEN = re.compile(
    r"\.|_[^=]*$|~\$|#.*#$|(thumbs\.db|desktop\.ini|lost\+found)$|"
    r".*(~|\._copying_|\.(tmp|temp|swp|bak|part|partial|filepart|download|crdownload))$",
    re.IGNORECASE,
)
"""Names of files and folders that are never read (docs/how-to/own-data.md lists them).

Spark and Hadoop skip names that start with `.` or `_` (but not the folder `_day=1` of a partition) and copies in
progress; the others are temporary, backup and marker files of macOS, Windows, editors and programs that download.
"""
_NOT_TEXT = re.compile(
    r".*\.(parquet|orc|avro|arrow|feather|zip|whl|jar|tar|t[gbx]z2?|7z|rar|zst|lz4|lzma|z|png|jpe?g|gif|bmp|webp|pdf|"
    r"docx?|xlsx?|h5|hdf5|np[yz]|pkl|pickle|tfrecords?|sqlite3?|db|exe|so)",
    re.IGNORECASE,
)


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


def is_hidden(path: str) -> bool:
    """Return whether a file below the source is never read, because of its name or that of a folder."""
    return any(map(_HIDDEN.match, path.split("/")))


def files_to_read(context: SourceContext, found: Mapping[str, SourceObject | None]) -> list[SourceObject]:
    """Return the files of a folder or prefix that are read: all that are neither hidden nor empty; log the others.

    `found` is all files by their path below the source; a hidden one may be None.

    Raises:
        DataError: one is not text, by its name; or none is left.
    """
    chosen = {
        path: one for path, one in found.items() if one is not None and one.size and not is_hidden(path)
    }
    source = f"{context.key} {context.settings.source}"
    for path in filter(_NOT_TEXT.fullmatch, chosen):
        raise DataError(
            f"{source}: {path} is no text file, as its name shows, and all files of a folder are read. Fix: convert it "
            "to text or csv (also compressed: .gz, .bz2, .xz), or move it out of this folder."
        )
    skipped = [path for path in found if path not in chosen]
    listed = ", ".join(skipped[:NAMES_SHOWN]) + ("" if len(skipped) <= NAMES_SHOWN else ", …")
    if not chosen:
        raise DataError(
            f"{source} has no file to read; it has {listed or 'nothing'}, and hidden, temporary and empty files are "
            f"not read. Fix: upload data to it, or correct {context.key}."
        )
    if skipped:
        text = "%s: %d files are read; %d hidden, temporary or empty ones are not: %s"
        log.info(text, source, len(chosen), len(skipped), listed)
    return [one for one in chosen.values() if one is not None]
