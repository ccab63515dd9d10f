"""Convert a csv record to one line of a shard, and split such a line into its fields again.

Importing this module loads no library: training pods use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_UNESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}
_SPECIAL = re.compile(r"[\\\n\r]")
_SEQUENCE = re.compile(r"\\(.?)", re.DOTALL)


def join_fields(record: Iterable[str]) -> str:
    r"""Return a record's fields as one line without its newline, joined by tabs.

    Backslash, tab, newline and carriage return inside a field become `\\`, `\t`, `\n` and `\r`.
    """
    values = list(record)
    line = "\t".join(values)
    if _SPECIAL.search(line) is None and line.count("\t") == len(values) - 1:
        return line
    return "\t".join(value.translate(_ESCAPES) for value in values)


def split_fields(line: str) -> list[str]:
    r"""Return the fields of a line that `join_fields` wrote, with or without its newline.

    Raises:
        ValueError: a backslash starts none of `\\`, `\t`, `\n`, `\r`: no data Job with `data.format: csv`
            wrote this line.
    """
    parts = line.removesuffix("\n").split("\t")
    return [_SEQUENCE.sub(_unescape, part) for part in parts] if "\\" in line else parts


def _unescape(match: re.Match[str]) -> str:
    try:
        return _UNESCAPES[match[1]]
    except KeyError:
        raise ValueError(
            f"{match[0]!r} is not an escape sequence of a csv record (column {match.start() + 1})"
        ) from None
