"""Data preparation: a source becomes N shards, one test set and a manifest on the shared storage.

`escape` and `fields` are the two ends of how a csv record travels as one line; nothing else of this package
is needed by a training pod, so importing it loads no library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["escape", "fields"]

_WRITTEN = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_READ = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
_SPECIAL = re.compile(r"[\\\n\r]")
_SEQUENCE = re.compile(r"\\(.?)", re.DOTALL)


def escape(record: Iterable[str]) -> str:
    r"""One line (without its newline) of a record's fields, joined by tabs.

    Backslash, tab, newline and carriage return inside a field become `\\`, `\t`, `\n` and `\r`.
    """
    values = list(record)
    line = "\t".join(values)
    if _SPECIAL.search(line) is None and line.count("\t") == len(values) - 1:
        return line
    return "\t".join(value.translate(_WRITTEN) for value in values)


def fields(line: str) -> list[str]:
    r"""The fields of a line that `escape` wrote, with or without its newline.

    Raises ValueError when a backslash begins none of `\\`, `\t`, `\n`, `\r`: the line was not written by a
    data Job with `format: csv`.
    """
    parts = line.removesuffix("\n").split("\t")
    return [_SEQUENCE.sub(_unescape, part) for part in parts] if "\\" in line else parts


def _unescape(match: re.Match[str]) -> str:
    try:
        return _READ[match[1]]
    except KeyError:
        raise ValueError(f"{match[0]!r} is no escape of a csv record (column {match.start() + 1})") from None
