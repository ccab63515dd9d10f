"""Where in the source a line of a shard or of the test set stands: `rows.json`, and how it is read.

Lines are dealt by the seed alone, so a place is calculated again as `deal` did it; `rows.json` has only what
that cannot tell: the objects of each part, and how many records each has.

    {"seed", "splitCount", "testFraction",
     "parts": [{"objects": [[name, records of it in earlier parts, records, jumps]], "lines": of each shard,
                "test": lines of the test set}],
     "test": the same of data.testSource, without "lines", or null}

`jumps`, of csv: [record from 0, its first line from 1] of each record that does not begin one line after the
record before it. The one after JUMPS of them has line 0: from there on lines are unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from launcher.data import deal

JUMPS = 100_000
"""Of one object; they are held in memory."""


@dataclass
class Places:
    """The records of one object, or of a stretch of it, counted while it is read."""

    name: str
    count: int = 0
    jumps: list[list[int]] = field(default_factory=list)
    _next: int = 0

    def add(self, line: int) -> None:
        """Count a record of csv that begins on that line."""
        if line != self._next and len(self.jumps) <= JUMPS:
            self.jumps.append([self.count, line if len(self.jumps) < JUMPS else 0])
        self._next = line + 1
        self.count += 1

    def place(self, record: int) -> str:
        """As messages name the record, from 1."""
        return shown(self.name, record - 1, self.jumps)


def shown(name: str, record: int, jumps: list[list[int]]) -> str:
    """Object, row (the record, from 1) and, of csv, the line of the file on which it begins."""
    first, line = jumps[bisect_right(jumps, record, key=lambda jump: jump[0]) - 1] if jumps else (0, 0)
    return f"{name}, row {record + 1}" + (f" (line {line + record - first})" if line else "")


def index(
    seed: int, shards: int, fraction: float, markers: list[dict[str, Any]], test: bool
) -> dict[str, Any]:
    """Return the content of rows.json.

    `markers`: what each PartJob returned; with `test` the last one is data.testSource's.
    """
    before: dict[str, int] = {}
    parts = []
    for marker in markers:
        objects = []
        for name, count, jumps in marker["objects"]:
            objects.append([name, before.get(name, 0), count, jumps])
            before[name] = before.get(name, 0) + count
        parts.append({"objects": objects, "lines": marker["lines"], "test": marker["test"]["lines"]})
    own = parts.pop() if test else None
    return {"seed": seed, "splitCount": shards, "testFraction": fraction, "parts": parts, "test": own}


def find(rows: dict[str, Any], shard: int | None, row: int) -> str:
    """Return where in the source a row of a shard, or of the test set (`shard` None), stands.

    `row` counts from 1. Raises LookupError when there is no such row.
    """
    at = row - 1
    if shard is None and rows["test"]:
        own = rows["test"]
        total = sum(count for _, _, count, _ in own["objects"])
        return _place(own, int(np.flatnonzero(deal.is_taken(0, total, own["test"], total))[at]))
    for number, part in enumerate(rows["parts"]):
        lines = part["test"] if shard is None else part["lines"][shard] if part["lines"] else 0
        if at < lines:
            total = sum(count for _, _, count, _ in part["objects"])
            split = deal.Split(rows["seed"], rows["splitCount"], rows["testFraction"], number)
            return _place(part, split.source_line(total, part["test"], shard, at))
        at -= lines
    raise IndexError(row)


def _place(part: dict[str, Any], at: int) -> str:
    for name, before, count, jumps in part["objects"]:
        if at < count:
            return shown(name, before + at, jumps)
        at -= count
    raise IndexError(at)
