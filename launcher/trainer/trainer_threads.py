"""Train batches in several threads of one trainer (`trainerCount`); each thread trains one batch at a time.

What T threads mean for the order of updates:

- async: a thread pushes its gradients when its batch ends. So a batch is computed without the gradients of up
  to T - 1 other batches of its trainer, as it is without those of other trainers. The dense parameters are
  pulled once for every T batches, while the next batches are computed.
- sync: a step is T batches of each trainer at once. The servers apply the mean of all trainers' T gradients
  to the dense parameters, and all gradients of table rows, before any thread starts its next batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import paddle

from launcher.trainer.records.row_parsing import Arrays

Step = Callable[[Arrays, Any, Any], float]
"""Trains one batch with an executor and a scope, and returns the loss."""
OnBatch = Callable[[Arrays, float], None]
"""Called with each batch and its loss, in the order in which batches end, never by two threads at once."""


class TrainerThreads:
    """Trains batches of one trainer in a pool of threads; they run until the trainer process exits."""

    def __init__(self, threads: int, scope: Any, step: Step, apply: Callable[[], None]) -> None:
        """Start the threads, which share the parameters in Paddle's scope `scope`.

        Args:
            step: `step(batch, executor, scope)` trains one batch and returns its mean loss.
            apply: fetches the updates of other trainers; takes no arguments; never called by two threads at once.
        """
        self._step, self._apply = step, apply
        self._executors = [self._new_executor(scope) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads + 1, "trainer")  # one more calls `apply`

    @staticmethod
    def _new_executor(scope: Any) -> tuple[Any, Any]:
        """Return an executor and a scope for one thread; parameters are shared through the parent scope."""
        own = scope.new_scope()
        for name in ("feed", "fetch"):
            own.var(name)
        return paddle.static.Executor(paddle.CPUPlace()), own

    def train(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches in all threads, which do not wait for each other.

        After a failure no further batch is started, and the first exception is raised.
        """
        work = _BatchQueue(batches, count, on_batch)
        for thread in [self._pool.submit(self._train_thread, executor, work) for executor in self._executors]:
            thread.result()
        work.applied.result()

    def train_in_steps(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """In mode sync, train the next `count` batches, one per thread at a time.

        The servers apply the gradients of all threads' batches before the next batches start.
        """
        work = _BatchQueue(batches, count, on_batch)
        while taken := [batch for _ in self._executors if (batch := work.take()) is not None]:
            pairs = zip(taken, self._executors, strict=False)
            steps = [self._pool.submit(self._step, batch, *executor) for batch, executor in pairs]
            losses = [step.result() for step in steps]
            self._apply()
            for batch, loss in zip(taken, losses, strict=True):
                work.report(batch, loss)

    def _train_thread(self, executor: tuple[Any, Any], work: _BatchQueue) -> None:
        """Train batches of `work` in one thread; pull other trainers' updates while the next batches run."""
        try:
            while (batch := work.take()) is not None:
                loss = self._step(batch, *executor)
                if work.report(batch, loss) % len(self._executors) == 0:
                    with work.apply_lock:
                        work.applied.result()
                        work.applied = self._pool.submit(self._apply)
        except BaseException:
            work.stop()
            raise


class _BatchQueue:
    """Hands out the next `count` batches to the threads of one trainer, each batch once."""

    def __init__(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        self._batches, self._left, self._on_batch, self._ended = batches, count, on_batch, 0
        self._lock = threading.Lock()
        self.apply_lock = threading.Lock()
        self.applied: Future[None] = Future()
        """The newest call of `apply`; the next one starts after it."""
        self.applied.set_result(None)

    def take(self) -> Arrays | None:
        """Return the next batch; None after `count` batches or after `stop`."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return next(self._batches)

    def report(self, batch: Arrays, loss: float) -> int:
        """Call `on_batch` for a trained batch, and return how many batches were reported so far."""
        with self._lock:
            self._on_batch(batch, loss)
            self._ended += 1
            return self._ended

    def stop(self) -> None:
        """Hand out no further batch."""
        self._left = 0
