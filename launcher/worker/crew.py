"""The threads of one trainer. Each takes whole batches, one after another, as long as there are any.

What that means for the order of updates, with T threads (`trainerCount`):
async  a thread pushes its gradients when its batch ends, so the gradients of up to T - 1 other batches are
       missing in the parameters that it took, as those of other trainers are. The dense parameters are pulled
       once for every T batches, and arrive while the next ones are at work.
sync   a step is T batches of each trainer at once. The servers apply the mean of all trainers' T gradients to
       the dense parameters, and all rows' gradients, before any thread takes its next batch.
geo    all threads change the trainer's own copy of the parameters, without waiting for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import paddle

from launcher.worker.samples import Arrays

Step = Callable[[Arrays, Any, Any], float]
"""Trains on a batch with an executor and a scope; gives the loss."""
Told = Callable[[Arrays, float], None]
"""Hears of each batch and its loss, in the order in which they end, never of two at once."""


class Crew:
    """Threads that live as long as their trainer."""

    def __init__(self, threads: int, scope: Any, step: Step, apply: Callable[[], None]) -> None:
        """`apply`: brings in what others have learnt; never called twice at once."""
        self._step, self._apply = step, apply
        self._seats = [self._seat(scope) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads + 1, "trainer")  # and one that brings in

    @staticmethod
    def _seat(scope: Any) -> tuple[Any, Any]:
        """An executor and a scope for one thread: parameters are found in the parent, all else is its own."""
        own = scope.new_scope()
        for name in ("feed", "fetch"):
            own.var(name)
        return paddle.static.Executor(paddle.CPUPlace()), own

    def train(self, batches: Iterator[Arrays], count: int, told: Told) -> None:
        """Trains on the next `count` batches. After a failure no batch is begun; the first one is raised."""
        work = _Work(batches, count, told)
        for thread in [self._pool.submit(self._side_by_side, seat, work) for seat in self._seats]:
            thread.result()
        work.brought_in.result()

    def train_in_step(self, batches: Iterator[Arrays], count: int, told: Told) -> None:
        """The same, but all threads' batches are applied before the next are begun."""
        work = _Work(batches, count, told)
        while taken := [batch for _ in self._seats if (batch := work.take()) is not None]:
            pairs = zip(taken, self._seats, strict=False)
            steps = [self._pool.submit(self._step, batch, *seat) for batch, seat in pairs]
            losses = [step.result() for step in steps]
            self._apply()
            for batch, loss in zip(taken, losses, strict=True):
                work.tell(batch, loss)

    def _side_by_side(self, seat: tuple[Any, Any], work: _Work) -> None:
        """What others have learnt is on its way from the servers while the next steps are done."""
        try:
            while (batch := work.take()) is not None:
                loss = self._step(batch, *seat)
                if work.tell(batch, loss) % len(self._seats) == 0:
                    with work.bringing_in:
                        work.brought_in.result()
                        work.brought_in = self._pool.submit(self._apply)
        except BaseException:
            work.stop()
            raise


class _Work:
    """Some batches that are to be trained on."""

    def __init__(self, batches: Iterator[Arrays], count: int, told: Told) -> None:
        self._batches, self._left, self._told, self._ended = batches, count, told, 0
        self._lock = threading.Lock()
        self.bringing_in = threading.Lock()
        self.brought_in: Future[None] = Future()
        """What others had learnt, the last time: one at a time."""
        self.brought_in.set_result(None)

    def take(self) -> Arrays | None:
        """The next batch; None when there is none for this time."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return next(self._batches)

    def tell(self, batch: Arrays, loss: float) -> int:
        """Gives how many batches have been told of."""
        with self._lock:
            self._told(batch, loss)
            self._ended += 1
            return self._ended

    def stop(self) -> None:
        self._left = 0
