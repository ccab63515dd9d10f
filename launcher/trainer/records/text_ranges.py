"""Divide a text file into ranges of whole lines, one per record file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class TextRange:
    """Refers to consecutive lines of a text file."""

    number: int
    """Counts the ranges, from 0."""
    offset: int
    """Position in bytes of the first line."""
    first: int
    """Row number of the first line, from 1."""
    rows: int

    def read_lines(self, text: Path) -> Iterator[str]:
        """Yield the lines of this range, with their newlines. Bytes that are not UTF-8 are escaped."""
        with text.open("rb") as file:
            file.seek(self.offset)
            for _ in range(self.rows):
                yield file.readline().decode("utf-8", "surrogateescape")


def divide_text(text: Path, rows: int, check: Callable[[], None]) -> Iterator[TextRange]:
    """Yield ranges of `rows` lines; the last one may be shorter. `check` may raise to stop."""
    number = offset = at = first = lines = 0
    last = b"\n"
    with text.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            check()
            ends: NDArray[np.int64] | None = None
            count = int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            while lines + count - first >= rows:
                if ends is None:
                    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                end = at + int(ends[first + rows - lines - 1]) + 1
                yield TextRange(number, offset, first + 1, rows)
                number, offset, first = number + 1, end, first + rows
            lines += count
            at += len(block)
            last = block[-1:]
    if at > offset:
        yield TextRange(number, offset, first + 1, lines - first + (last != b"\n"))
