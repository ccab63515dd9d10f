"""A program in one process without servers: `python -m launcher try`, and what a gang is compared with.

The network is the one that a served model has, with looked-up rows as its input; its tables are trained by
the rules that the servers have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from launcher.worker.books import Pace, diverged
from launcher.worker.heap import Heap
from launcher.worker.network import begin, build
from launcher.worker.program import Program
from launcher.worker.records import Records
from launcher.worker.rules import Rule
from launcher.worker.samples import Arrays

CHUNK = 8192  # rows that are predicted at once


class Single:
    """A program in training."""

    def __init__(self, program: Program) -> None:
        """Builds the network. Raises `SettingsError`."""
        self.program = program
        self.seed = int(program.worker_options["seed"])
        begin(self.seed)
        self.network = build(program, "served")
        self.tester = self.network.main.clone(for_test=True)
        with program.calling("optimizer()"):
            optimizer = program.module.optimizer(program.job)
            own = Rule.of(optimizer)
        self.tables = {
            table.name: Heap(table.width, table.spread, table.rule or own, self.seed + number)
            for number, table in enumerate(self.network.tables)
        }
        guard = paddle.static.program_guard(self.network.main, self.network.startup)
        with guard, program.calling("training of network()"):
            optimizer.minimize(self.network.loss)
            has = self.network.main.global_block().has_var
            for table, _, vectors in self.network.lookups:
                if not has(f"{vectors.name}@GRAD"):
                    raise ValueError(f"the loss does not depend on embedding {table!r}. Use it or remove it")
        self.scope = paddle.static.Scope()
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.network.startup, scope=self.scope)
        self._gradients = [f"{vectors.name}@GRAD" for _, _, vectors in self.network.lookups]
        self._computed = [ids for _, ids, _ in self.network.lookups if ids.name not in program.inputs]
        needed = {ids.name for ids in self._computed}
        for operator in reversed(self.network.main.global_block().ops):
            if needed.intersection(operator.output_arg_names):
                needed.update(operator.input_arg_names)
        self._needed = needed.intersection(program.inputs)

    def _look_up(self, batch: Arrays, train: bool) -> tuple[list[NDArray[np.int64]], Arrays]:
        """The ids of each lookup, and what the network is fed."""
        known = batch
        if self._computed:
            # Pruned: the rest of the network has no vectors yet.
            feed = {name: batch[name] for name in self._needed}
            found = self.exe.run(
                self.tester, feed=feed, fetch_list=self._computed, scope=self.scope, use_prune=True
            )
            known = batch | {variable.name: ids for variable, ids in zip(self._computed, found, strict=True)}
        ids, feed = [], dict(batch)
        for table, asked, vectors in self.network.lookups:
            ids.append(known[asked.name])
            feed[vectors.name] = self.tables[table].look_up(ids[-1], train)
        return ids, feed

    def step(self, batch: Arrays) -> float:
        """Trains on a batch; the loss."""
        ids, feed = self._look_up(batch, train=True)
        fetch = [self.network.loss, *self._gradients]
        loss, *gradients = self.exe.run(self.network.main, feed=feed, fetch_list=fetch, scope=self.scope)
        whole: dict[str, tuple[list[Any], list[Any]]] = {}
        for (table, _, _), asked, gradient in zip(self.network.lookups, ids, gradients, strict=True):
            parts = whole.setdefault(table, ([], []))
            parts[0].append(asked.reshape(-1))
            parts[1].append(gradient.reshape(-1, gradient.shape[-1]))
        for table, (asked_of, gradients_of) in whole.items():
            self.tables[table].step(np.concatenate(asked_of), np.concatenate(gradients_of))
        return float(np.asarray(loss).reshape(-1)[0])

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """The network's prediction of these rows; changes nothing."""
        _, feed = self._look_up(arrays, train=False)
        name = self.network.prediction.name
        [found] = self.exe.run(self.tester, feed=feed, fetch_list=[name], scope=self.scope)
        return np.asarray(found)

    def score(self, test: Records) -> dict[str, float]:
        """The program's metrics of a test set."""
        predictions, labels = [], []
        for block in test.blocks(CHUNK):
            predictions.append(self.predict(block))
            labels.append(block[self.program.label])
        with self.program.calling("metrics()"):
            found = self.program.module.metrics(np.concatenate(predictions), np.concatenate(labels))
        return {name: float(value) for name, value in found.items()}

    def passes(
        self,
        train: Records,
        test: Records,
        passes: int,
        batch_size: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator[dict[str, float]]:
        """Trains; yields {"pass", "samples", "seconds", "loss", metric…} after each pass.

        `say` is told of batches now and then. Raises `DivergedError` for a NaN or infinite loss.
        """
        steps = max(1, -(-train.rows // batch_size))
        for number in range(passes):
            began = time.monotonic()
            total, rows, pace = 0.0, 0, Pace()
            for step, batch in enumerate(train.batches(steps, (self.seed, number, 0)), 1):
                loss = self.step(batch)
                if not np.isfinite(loss):
                    raise diverged(loss, number, step)
                rows += len(batch[self.program.label])
                total += loss * len(batch[self.program.label])
                if pace.due():
                    rate = rows / (time.monotonic() - began)
                    shown = f"{step:,} of {steps:,} batches, {rate:,.0f} samples/s, loss={total / rows:.4f}"
                    say(f"pass {number + 1}: {shown}")
            done = {"samples": train.rows, "seconds": time.monotonic() - began, "loss": total / train.rows}
            yield {"pass": number, **done, **self.score(test)}

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """All dense parameters, by name."""
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in self.network.dense()}
