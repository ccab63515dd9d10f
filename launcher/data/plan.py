"""A source cut into parts that pods make side by side: whole objects, and stretches of large ones.

The plan follows from what the source holds and the number of shards, so that every pod makes the same one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.data.stream import BLOCK, Readable

PART_BYTES = 256 << 20
"""A part is some seconds of work: what is lost when its pod is."""
PIECE_BYTES = 4 << 20
"""Each part has a file for each shard, and no smaller ones on average: a file system counts files, too."""
COMPRESSED = (".gz", ".bz2", ".xz")


@dataclass(frozen=True)
class Object:
    """One file or object of a source, and what tells that it was changed."""

    name: str
    size: int
    version: str


@dataclass(frozen=True)
class Stretch:
    """The lines of an object that begin at the bytes `begin` to `end`."""

    object: Object
    begin: int
    end: int

    @property
    def whole(self) -> bool:
        return (self.begin, self.end) == (0, self.object.size)

    def to_json(self) -> list[Any]:
        return [self.object.name, self.object.size, self.object.version, self.begin, self.end]


def cut(objects: Sequence[Object], part_bytes: int, cuttable: bool) -> list[list[Stretch]]:
    """Parts of about `part_bytes` in the objects' order. What is compressed, or not `cuttable`, stays whole.

    A source of less is one part.
    """
    parts: list[list[Stretch]] = [[]]
    room = part_bytes
    for found in objects:
        begin = 0
        while begin < found.size:
            if room <= 0:
                parts.append([])
                room = part_bytes
            whole = not cuttable or found.name.lower().endswith(COMPRESSED)
            end = found.size if whole else min(found.size, begin + room)
            parts[-1].append(Stretch(found, begin, end))
            room -= end - begin
            begin = end
    return parts


def part_bytes(shards: int) -> int:
    """Bytes of a part with so many shards."""
    return max(PART_BYTES, PIECE_BYTES * shards)


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` dealt by weight, to the last one. Weights that nobody knows are alike."""
    weights = weights if any(weights) else [1] * len(weights)
    whole = sum(weights)
    ends = [0]
    for weight in weights:
        ends.append(ends[-1] + weight)
    edges = [total * end // whole for end in ends]
    return [after - before for before, after in itertools.pairwise(edges)]


class LinesOf:
    """The lines of a stretch, out of a stream that begins one byte before it, if there is one."""

    def __init__(self, stream: Readable, begin: int, end: int, also: hashlib._Hash) -> None:
        self._stream, self._also = stream, also
        self._left = end - begin
        self._skip = begin > 0
        self._done = False
        if self._skip:
            self._left += 1

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, or a block; empty at the end of the last line."""
        while not self._done:
            data = self._stream.read(BLOCK if size < 0 else size)
            if not data:
                self._done = True
            data = self._taken(data)
            if data:
                self._also.update(data)
                return data
        return b""

    def _taken(self, data: bytes) -> bytes:
        """What of the next bytes belongs to the stretch."""
        left, self._left = self._left, self._left - len(data)
        start = 0
        if self._skip:
            newline = data.find(b"\n")
            if newline < 0:
                if self._left <= 0:
                    self._done = True  # one line that began before, and goes on behind
                return b""
            self._skip = False
            start = newline + 1
            if start >= left:
                self._done = True
                return b""
        if self._left <= 0:
            newline = data.find(b"\n", max(start, left - 1))
            if newline >= 0:
                self._done = True
                return data[start : newline + 1]
        return data[start:]
