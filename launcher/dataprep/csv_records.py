"""Convert a csv record to one line of a shard, split such a line into its fields again, and name rows in messages.

Importing this module loads no library: training pods use it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
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
        ValueError: a backslash is not the start of `\\`, `\t`, `\n` or `\r`. So no data Job with `data.format: csv`
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


class RowPlaces:
    """Counts the rows of one file. For a csv file it also stores on which line each of the newest rows starts."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        # (row, line of the row minus row) for each row where this difference changes. The oldest entries are dropped to
        # limit the memory.
        self._jumps: deque[tuple[int, int]] = deque(maxlen=1 << 17)

    def add(self, line: int) -> None:
        """Count one csv record; `line` is the line of the file, from 1, on which the record starts."""
        self.count += 1
        if not self._jumps or self._jumps[-1][1] != line - self.count:
            self._jumps.append((self.count, line - self.count))

    def describe(self, row: int) -> str:
        """Return text such as `days/1.csv, row 3 (line 5)`. `row` counts from 1; an unknown line is left out."""
        at = bisect_right(self._jumps, row, key=lambda jump: jump[0])
        return f"{self.name}, row {row}" + (f" (line {row + self._jumps[at - 1][1]})" if at else "")
