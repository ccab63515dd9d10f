"""Tests of the threads of the data Job that read ahead and write."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from launcher.dataprep.byte_streams import Prefetch
from launcher.dataprep.split_part import await_future
from launcher.errors import DataError
from tests.launcher.dataprep.conftest import LINES


def test_read_ahead_yields_all_blocks_raises_what_the_source_raised_and_ends_when_it_is_closed() -> None:
    def broken() -> Iterator[bytes]:
        yield LINES
        raise DataError("the end is missing")

    blocks = Prefetch(broken(), 8)
    assert next(blocks) == LINES
    with pytest.raises(DataError, match="the end is missing"):
        next(blocks)
    ahead = Prefetch(iter([LINES] * 1000), 1)
    assert next(ahead) == LINES
    ahead.close()
    assert not ahead.thread.is_alive()


def test_a_write_that_finishes_while_it_is_waited_for_succeeds_and_a_timeout_of_the_storage_is_raised() -> (
    None
):
    pending: Future[str] = Future()
    assert await_future(pending, lambda: pending.set_result("written")) == "written"
    failed: Future[str] = Future()
    failed.set_exception(TimeoutError("the server does not answer"))
    with pytest.raises(TimeoutError, match="does not answer"):
        await_future(failed, lambda: None)
