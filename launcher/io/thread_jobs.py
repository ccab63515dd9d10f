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
"""A function that does one job and returns its result. Its argument is a function `check`, which the job must call
often: `check` raises `CancelledError` once the jobs must stop."""
THREADS = 8
"""Number of threads. So many hide the latency of a network storage, and S3's client has connections for 10."""
_AHEAD = 4 * THREADS
"""Largest number of started jobs whose results are not taken yet when the next job starts. The limit saves memory."""
_WAIT_SECONDS = 1.0


def run_in_threads(jobs: Iterable[Job[T]], wait: Callable[[], None]) -> Iterator[T]:
    """Run `jobs` in threads, and yield their results in the order of the jobs.

    While this function waits for a result, it calls `wait` about once a second; `wait` may raise. If a job or `wait`
    raises an error, this function stops the running jobs and then raises the same error.
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
    """Wait until a thread's work is finished, and return its result; meanwhile call `wait` about once a second."""
    while not futures.wait([future], _WAIT_SECONDS).done:
        wait()
    return future.result()
