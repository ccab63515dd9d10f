"""Tests of reading a stream ahead in a thread."""

from __future__ import annotations

import io

import pytest

from launcher.dataprep.byte_streams import ReadAhead
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
