"""Tests of the threads of the data Job that read ahead and write."""

from __future__ import annotations

import io
from concurrent.futures import Future

import pytest

from launcher.dataprep.byte_streams import ReadAhead
from launcher.dataprep.split_part import await_future
from launcher.errors import DataError
from tests.launcher.dataprep.conftest import LINES


def test_read_ahead_returns_all_bytes_and_raises_what_the_stream_raised() -> None:
    class Stream(io.BytesIO):
        total = None

    class Broken(Stream):
        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                raise DataError("the end is missing")
            return data

    ahead = ReadAhead(Stream(LINES))
    assert b"".join(iter(lambda: ahead.read(777), b"")) == LINES
    assert ahead.read(5) == b""
    ahead.close()
    broken = ReadAhead(Broken(LINES))
    with pytest.raises(DataError, match="the end is missing"):
        while broken.read(4000):
            pass
    broken.close()
    unread = ReadAhead(Stream(LINES * 1000), 1)
    unread.close()
    assert not unread._ahead.thread.is_alive()


def test_a_write_that_finishes_while_it_is_waited_for_succeeds_and_a_timeout_of_the_storage_is_raised() -> (
    None
):
    pending: Future[str] = Future()
    assert await_future(pending, lambda: pending.set_result("written")) == "written"
    failed: Future[str] = Future()
    failed.set_exception(TimeoutError("the server does not answer"))
    with pytest.raises(TimeoutError, match="does not answer"):
        await_future(failed, lambda: None)
