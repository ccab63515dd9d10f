"""Order of the tests in parallel processes: those that take minutes start first.

pytest-xdist gives each process a block of consecutive tests, and a process that has finished its block takes tests from
the end of another one. A long test in the middle of a block would determine the end of the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Test = TypeVar("Test")


def long_tests_first(tests: Sequence[Test], seconds: Mapping[int, float], processes: int) -> list[Test]:
    """Return the tests in an order in which each process starts with long ones, the longest first.

    Args:
        tests: the collected tests. Those without a duration keep their order, which keeps most tests of a module in
            one process, where they share fixtures.
        seconds: index of a test in `tests` → its rough duration.
        processes: number of pytest-xdist's processes; each begins with one block of the result.
    """
    left = len(tests)
    sizes = []
    for number in range(processes):  # as xdist's WorkStealingScheduling splits the tests
        sizes.append(left // (processes - number))
        left -= sizes[-1]
    blocks: list[list[int]] = [[] for _ in sizes]
    for index in sorted(seconds, key=lambda index: -seconds[index]):
        free = [block for block, size in zip(blocks, sizes, strict=True) if len(block) < size]
        min(free, key=lambda block: sum(seconds[one] for one in block)).append(index)
    others = iter([index for index in range(len(tests)) if index not in seconds])
    for block, size in zip(blocks, sizes, strict=True):
        block.extend(next(others) for _ in range(size - len(block)))
    return [tests[index] for block in blocks for index in block]
