"""Tests of the split: which line goes to which shard or to the test set; and of lines made of csv records."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.dataprep.csv_records import join_fields, split_fields
from launcher.dataprep.row_splitters import HeldOutSelector, LineSplitter, ShardAssigner

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.integers(0, 2**63 - 1), st.integers(1, 20), st.lists(st.integers(0, 50), max_size=8))
def test_each_block_of_n_lines_goes_to_n_different_shards_for_any_block_size(
    seed: int, shards: int, parts: list[int]
) -> None:
    at_once = ShardAssigner(seed, shards).owners(sum(parts))
    assigner = ShardAssigner(seed, shards)
    pieces = [assigner.owners(part) for part in parts]
    assert np.array_equal(np.concatenate([*pieces, np.empty(0, np.uint16)]), at_once)
    for first in range(0, len(at_once), shards):
        block = at_once[first : first + shards].tolist()
        assert len(set(block)) == len(block)
        assert set(block) <= set(range(shards))
    counts = np.bincount(at_once, minlength=shards)
    assert counts.max() - counts.min() <= 1


@given(st.integers(0, 2**63 - 1), st.floats(0.001, 0.5), st.lists(st.integers(0, 300), max_size=8))
def test_the_test_set_has_its_fraction_within_one_line_for_any_block_size(
    seed: int, fraction: float, parts: list[int]
) -> None:
    at_once = HeldOutSelector(seed, fraction).select(sum(parts))
    selector = HeldOutSelector(seed, fraction)
    pieces = [selector.select(part) for part in parts]
    assert np.array_equal(np.concatenate([*pieces, np.empty(0, np.bool_)]), at_once)
    assert abs(int(at_once.sum()) - sum(parts) * fraction) <= 1


def test_a_fraction_of_zero_holds_out_nothing() -> None:
    assert not HeldOutSelector(1, 0.0).select(1000).any()


@given(
    st.integers(0, 99),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"")), min_size=1, max_size=60),
)
def test_every_line_is_in_one_shard_in_the_order_of_the_source(
    seed: int, shards: int, fraction: float, lines: list[bytes]
) -> None:
    numbered = [b"%d %s" % (number, line) for number, line in enumerate(lines)]
    split = LineSplitter(seed, shards, fraction)
    middle = len(numbered) // 2
    pieces = [b""] * (shards + 1)
    for run in filter(None, (numbered[:middle], numbered[middle:])):
        train, held = split.split(b"\n".join(run) + b"\n")
        for bucket, piece in enumerate([*train, held]):
            pieces[bucket] += piece
    lines_of: list[list[bytes]] = [piece.split(b"\n")[:-1] for piece in pieces]
    assert [len(kept) for kept in lines_of] == [*split.lines, split.held]
    assert sorted(line for kept in lines_of for line in kept) == sorted(numbered)
    for kept in lines_of:
        numbers = [int(line.split(b" ")[0]) for line in kept]
        assert numbers == sorted(numbers)


def test_the_split_is_the_same_on_every_machine_and_numpy_version() -> None:
    """Compare with fixed values: another split would give other data for the same digest of the settings."""
    assigner, selector = ShardAssigner(20170101, 8), HeldOutSelector(20170101, 0.1)
    assert assigner.owners(16).tolist() == [1, 3, 2, 7, 5, 6, 4, 0, 7, 2, 5, 6, 4, 1, 3, 0]
    assert selector.select(40).nonzero()[0].tolist() == [6, 14, 24, 34]
    owners, held = assigner.owners(100_000).astype("<u2"), selector.select(100_000).astype("u1")
    assert hashlib.sha256(owners.tobytes()).hexdigest().startswith("0be0cd73c2386a2e")
    assert hashlib.sha256(held.tobytes()).hexdigest().startswith("4de9ff426e1a144c")
    assert np.random.Philox(key=np.array([1, 0], dtype=np.uint64)).random_raw() == 5599841837815857887


def test_the_image_has_the_numpy_version_of_the_tests() -> None:
    root = Path(__file__).resolve().parents[3]
    pinned = re.search(r"^numpy==(\S+)", (root / "launcher" / "requirements.lock").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == np.__version__


def test_a_sorted_source_causes_no_skew_between_shards() -> None:
    run = b"".join(b"%d\n" % (number >= 5000) for number in range(10_000))
    shards, test = LineSplitter(3, 7, 0.1).split(run)
    shares = [piece.count(b"1") / (len(piece) / 2) for piece in (*shards, test)]
    assert max(shares) - min(shares) < 0.003


@pytest.mark.parametrize(("seed", "part"), [(2, 0), (1, 1)])
def test_another_seed_and_another_part_of_a_source_are_split_differently(seed: int, part: int) -> None:
    assert not np.array_equal(ShardAssigner(1, 4).owners(400), ShardAssigner(seed, 4, part).owners(400))
    one, other = HeldOutSelector(1, 0.1), HeldOutSelector(seed, 0.1, part)
    assert not np.array_equal(one.select(4000), other.select(4000))


@given(st.lists(texts, min_size=1, max_size=5))
def test_split_fields_reverses_join_fields(record: list[str]) -> None:
    line = join_fields(record)
    assert "\n" not in line
    assert "\r" not in line
    assert split_fields(line) == record
    assert split_fields(line + "\n") == record


def test_four_characters_are_escaped() -> None:
    assert join_fields(["a\tb", "c\nd", "e\rf", "g\\h", ""]) == "a\\tb\tc\\nd\te\\rf\tg\\\\h\t"


def test_an_invalid_escape_sequence_is_reported_with_its_column() -> None:
    with pytest.raises(ValueError, match=r"'\\\\q' is not an escape sequence of a csv record \(column 2\)"):
        split_fields("a\\q")
