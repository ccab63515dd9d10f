"""Run many small jobs, such as copies of files, in a few threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[Callable[[], None]], T]
"""Gets a function that it must call often: the function raises `CancelledError` once the other jobs are stopped."""
THREADS = 8
"""Hides the latency of a network storage; S3's client has connections for 10."""
_AHEAD = 4 * THREADS  # jobs that were started before their result is taken: limits the memory
_WAIT_SECONDS = 1.0


def run_in_threads(jobs: Iterable[Job[T]], wait: Callable[[], None]) -> Iterator[T]:
    """Yield the results of `jobs` in their order.

    `wait` is called about once a second while this waits for a result, and may raise. An error of a job or of `wait`
    is raised here, after the running jobs have stopped.
    """
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise CancelledError

    pending: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="job")
    try:
        for job in jobs:
            pending.append(pool.submit(job, check))
            if len(pending) > _AHEAD:
                yield await_future(pending.popleft(), wait)
        while pending:
            yield await_future(pending.popleft(), wait)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def await_future(future: Future[T], wait: Callable[[], None]) -> T:
    """Return the result of a thread's work; call `wait` about once a second before it is finished."""
    while not futures.wait([future], _WAIT_SECONDS).done:
        wait()
    return future.result()
