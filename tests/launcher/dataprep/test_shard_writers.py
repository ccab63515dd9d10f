"""Test waiting for the threads that write shards."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

import pytest

from launcher.dataprep.shard_writers import FileWriters


class LateFuture(Future[str]):
    """A future whose first wait times out at the moment when it finishes."""

    def __init__(self) -> None:
        super().__init__()
        self._timed_out = False

    def result(self, timeout: float | None = None) -> str:
        if not self._timed_out:
            self._timed_out = True
            self.set_result("written")
            raise TimeoutError
        return super().result(timeout)


def test_a_write_that_finishes_when_the_wait_for_it_times_out_succeeds() -> None:
    pending: deque[Future[str]] = deque([LateFuture()])
    assert FileWriters._await_oldest(pending, lambda: None) == "written"
    assert not pending


def test_a_timeout_of_the_storage_itself_is_raised() -> None:
    failed: Future[str] = Future()
    failed.set_exception(TimeoutError("the server does not answer"))
    with pytest.raises(TimeoutError, match="does not answer"):
        FileWriters._await_oldest(deque([failed]), lambda: None)
