"""Find the source's file and row from which a row of a shard or of the test set comes, with `rows.json`.

The seed alone determines the split, so that a row's origin is calculated again. `rows.json` has what the
calculation cannot know, the objects of each part and their numbers of records:

    {"seed", "splitCount", "testFraction",
     "parts": [{"objects": [[name, records of it in earlier parts, records, jumps]],
                "lines": for each shard, "test": lines of the test set}],
     "test": the same for data.testSource, without "lines", or null}

`jumps` (csv only): [record from 0, its first line from 1] of each record that does not start on the line after
the start of the record before it. The jump after the first MAX_JUMPS has line 0: later lines are unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from launcher.dataprep import splitting

MAX_JUMPS = 100_000
"""How many jumps of one object are stored at most, since they are held in memory."""


@dataclass
class RowOrigins:
    """Number of records of one source file (or a part of it), and for csv the lines on which they start."""

    name: str
    count: int = 0
    jumps: list[list[int]] = field(default_factory=list)
    _next: int = 0

    def add(self, line: int) -> None:
        """Count one csv record; `line` is the line of the object, from 1, on which the record starts."""
        if line != self._next and len(self.jumps) <= MAX_JUMPS:
            self.jumps.append([self.count, line if len(self.jumps) < MAX_JUMPS else 0])
        self._next = line + 1
        self.count += 1

    def describe(self, record: int) -> str:
        """Return object and row, such as `days/1.csv, row 3`, of a record number from 1, for messages."""
        return describe_row(self.name, record - 1, self.jumps)


def describe_row(name: str, record: int, jumps: list[list[int]]) -> str:
    """Return text such as `days/1.csv, row 3 (line 5)` for a record number from 0; the line if it is known."""
    first, line = jumps[bisect_right(jumps, record, key=lambda jump: jump[0]) - 1] if jumps else (0, 0)
    return f"{name}, row {record + 1}" + (f" (line {line + record - first})" if line else "")


def row_index(
    seed: int, shards: int, fraction: float, markers: list[dict[str, Any]], has_test_source: bool
) -> dict[str, Any]:
    """Return the content of rows.json, with which `find_row` finds a row's origin.

    `markers` is what `PartSplitter.run` returned for each part; with `has_test_source` data.testSource is the last one.
    """
    before: dict[str, int] = {}
    parts = []
    for number, marker in enumerate(markers, 1):
        objects = []
        if has_test_source and number == len(markers):
            before = {}  # data.testSource may have objects of data.source again
        for name, count, jumps in marker["objects"]:
            objects.append([name, before.get(name, 0), count, jumps])
            before[name] = before.get(name, 0) + count
        parts.append({"objects": objects, "lines": marker["lines"], "test": marker["test"]["lines"]})
    own = parts.pop() if has_test_source else None
    return {"seed": seed, "splitCount": shards, "testFraction": fraction, "parts": parts, "test": own}


def find_row(rows: dict[str, Any], shard: int | None, row: int) -> str:
    """Return text with the source's object and row, such as `days/1.csv, row 3`, for a row of a shard.

    `rows` is the content of rows.json, `row` counts from 1; the shard None is the test set.

    Raises:
        LookupError: there is no such row.
    """
    at = row - 1
    if shard is None and rows["test"]:
        own = rows["test"]
        total = sum(count for _, _, count, _ in own["objects"])
        return _describe(own, int(np.flatnonzero(splitting.is_in_test_set(0, total, own["test"], total))[at]))
    for number, part in enumerate(rows["parts"]):
        lines = part["test"] if shard is None else part["lines"][shard] if part["lines"] else 0
        if at < lines:
            total = sum(count for _, _, count, _ in part["objects"])
            splitter = splitting.LineSplitter(rows["seed"], rows["splitCount"], rows["testFraction"], number)
            return _describe(part, splitter.source_line(total, part["test"], shard, at))
        at -= lines
    raise IndexError(row)


def _describe(part: dict[str, Any], at: int) -> str:
    for name, before, count, jumps in part["objects"]:
        if at < count:
            return describe_row(name, before + at, jumps)
        at -= count
    raise IndexError(at)
