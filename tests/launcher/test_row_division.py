"""Tests of the division of a pass's rows among trainers whose number changes: each row comes exactly once."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from launcher.row_division import Division, Interval, Part, count_rows, cut, divide, first_row


def each_row(part: Part) -> list[tuple[int, int]]:
    return [(shard, row) for shard, first, end in part for row in range(first, end)]


def train(division: Division, batches: int) -> list[tuple[int, int]]:
    """Return the rows of the next batches of all trainers; check that the sizes differ by at most one."""
    found = []
    for part in division.parts:
        rows = count_rows(part)
        begins = [
            first_row(rows, division.steps, n) for n in range(division.done, division.done + batches + 1)
        ]
        sizes = [end - begin for begin, end in pairwise(begins)]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        found += each_row(cut(part, begins[0], begins[-1]))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_each_row_is_trained_once_over_three_changes_of_the_number_of_trainers(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    rows = [rng.randint(1, 60) for _ in range(rng.randint(1, 7))]
    batch_size, history, trained = rng.randint(1, 6), list[list[int]](), Counter[tuple[int, int]]()
    for _ in range(3):
        trainers = rng.randint(1, len(rows))
        division = Division.resume(rows, history, trainers, batch_size)
        batches = rng.randint(0, division.steps - division.done)
        trained.update(train(division, batches))
        if rng.random() < 0.5:  # a restart with the same number of trainers
            history = division.history(division.done + batches)
            division = Division.resume(rows, history, trainers, rng.choice([batch_size, 9]))
            assert history == division.history(division.done)
            more = rng.randint(0, division.steps - division.done)
            trained.update(train(division, more))
            batches = more
        history = division.history(division.done + batches)
    last = Division.resume(rows, history, rng.randint(1, len(rows)), batch_size)
    trained.update(train(last, last.steps - last.done))
    assert trained == Counter((shard, row) for shard, count in enumerate(rows) for row in range(count))


def test_the_parts_of_a_pass_are_the_shards_only_if_each_trainer_has_one() -> None:
    rows = [10, 4, 7]
    assert divide(rows, [], 3) == [[(0, 0, 10)], [(1, 0, 4)], [(2, 0, 7)]]
    assert divide(rows, [], 2) == [[(0, 0, 10)], [(1, 0, 4), (2, 0, 7)]]
    changed = divide(rows, [[2, 1, 3]], 3)
    assert sorted(map(count_rows, changed)) == [4, 4, 5], "after a change the parts have equal sizes"


def test_a_restart_with_as_many_trainers_continues_the_same_parts() -> None:
    before = Division.resume([10, 4, 7], [], 2, 4)
    after = Division.resume([10, 4, 7], before.history(2), 2, 4)
    assert (after.parts, after.steps, after.done) == (before.parts, before.steps, 2)
    grown = Division.resume([10, 4, 7], before.history(2), 3, 4)
    assert (grown.done, grown.trained_before) == (0, 2)
    assert grown.history(1) == [[2, 2, 3], [3, 1, grown.steps]]


def test_a_part_with_fewer_rows_than_batches_repeats_rows() -> None:
    assert [first_row(2, 4, batch) for batch in range(5)] == [0, 1, 2, 3, 4]
    row: Interval = (0, 0, 2)
    assert cut([row], first_row(2, 4, 3)) == [], "all of its rows are trained"
