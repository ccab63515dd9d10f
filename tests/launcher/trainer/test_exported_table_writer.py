"""Tests of how ranks divide a table's rows among themselves and write them to two files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import DataError
from launcher.serving.paddle_served.model import MappedTable
from launcher.trainer import export

HIGH = 2**64 - 1


@given(
    st.sets(st.integers(1, HIGH), max_size=60),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 4),
    st.randoms(),
)
def test_ranges_of_all_ranks_are_the_sorted_ids_once(ids, savers, ranks, aligned, random) -> None:
    found = [[] for _ in range(savers)]
    for each in ids:
        random.choice(found).append(each)
    arrays = [np.array(sorted(own), np.uint64) for own in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "ALIGNED_ROWS", aligned)
        cut = [export.select_range(arrays, rank, ranks, "pass-00001") for rank in range(ranks)]
    assert [each for _, own in cut for each in own.tolist()] == sorted(ids)
    place = 0
    for first, own in cut:
        assert first == place
        assert first % aligned == 0 or first == len(ids)
        place += len(own)


def test_an_id_saved_by_two_servers_is_an_error() -> None:
    twice = [np.array([3, 5], np.uint64), np.array([5, 9], np.uint64)]
    with pytest.raises(DataError, match=r"pass-00001 has an id twice.* remove the folder output/pass-00001,"):
        export.select_range(twice, 0, 1, "pass-00001")


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_files_filled_by_ranks_in_any_order_are_readable_as_a_mapped_table(tmp_path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    ids = np.unique(rng.integers(1, HIGH, rows, np.uint64, endpoint=True))
    vectors = rng.normal(size=(rows, 3)).astype(np.float32)
    folder = tmp_path / "table"
    export.create_table(folder, rows, 3)
    for rank in (2, 0, 1):  # in any order
        first, own = export.select_range([ids[::2], ids[1::2]], rank, 3, "pass-00001")
        export.write_rows(folder, first, 3, own, np.array_split(vectors[np.searchsorted(ids, own)], 2))
    table = MappedTable(folder, rows, 3)
    assert (table.ids == ids).all()
    assert (np.load(folder / "vectors.npy") == vectors).all()
    assert (folder / "ids.npy").stat().st_size == export.HEADER_BYTES + 8 * rows, "the header is one page"
    found, unknown = table.look_up(np.array([[0, 7]], np.int64))
    assert (found == 0).all()
    assert unknown == 1
