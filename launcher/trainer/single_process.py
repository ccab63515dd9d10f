"""Train or check a program in one process without servers: `python -m launcher try`, the checks of `run`.

The network has the kind `served` (network.py), as the exported model has: looked-up vectors are inputs. The tables are
in this process' memory (`MemoryTable`), and are trained by the servers' rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from launcher.trainer.evaluation import evaluate
from launcher.trainer.network import (
    ROWS,
    build_network,
    build_training_graph,
    check_batch,
    prepare_paddle,
)
from launcher.trainer.paddle_internals import SingleRoleMaker, optimizer_rule
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Arrays, Records, record_dtype, split_inputs
from launcher.trainer.server_tables import OptimizerRule, TableRows, choose_shard_count
from launcher.trainer.training_log import PassMeter, PassTotals, ReportTimer

FIRST = 1024
"""Initial capacity in rows; it is doubled when the table is full."""


class MemoryTable:
    """Holds vectors by 64-bit id; a row is added when its id is first trained on. Id 0 is padding: zeros."""

    def __init__(self, width: int, spread: float, rule: OptimizerRule, seed: int) -> None:
        self.width = width
        self._spread, self._rule = spread, rule
        self._random = np.random.default_rng(seed)
        self._place: dict[int, int] = {0: 0}
        self._values = np.zeros((FIRST, width), np.float32)
        self._first = np.zeros_like(self._values)
        """Adam's mean gradients, Adagrad's sums of squares."""
        self._second = np.zeros_like(self._values)
        """Adam's mean squares."""
        self._steps = np.zeros((FIRST, 1))

    def _grow(self, ids: list[int]) -> None:
        """Add a row to the table for each of the ids that has none; enlarge the arrays if they are full."""
        before = len(self._place)
        for each in ids:
            self._place.setdefault(each, len(self._place))
        count = len(self._place)
        if count > len(self._values):
            more = max(count, 2 * len(self._values)) - len(self._values)
            names = ("_values", "_first", "_second", "_steps")
            for name in names:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros((more, array.shape[1]), array.dtype)]))
        size = (count - before, self.width)
        self._values[before:count] = self._random.uniform(-self._spread, self._spread, size)

    def look_up(self, ids: NDArray[np.int64], train: bool) -> NDArray[np.float32]:
        """Return the vectors of some ids, shape [*ids.shape, width].

        Args:
            ids: int64, any shape.
            train: add rows for unknown ids; otherwise their vectors are zeros.
        """
        unique, back = np.unique(ids, return_inverse=True)
        wanted = unique.tolist()
        if train:
            self._grow(wanted)
        places = np.array([self._place.get(each, 0) for each in wanted], np.int64)
        found: NDArray[np.float32] = self._values[places][back.reshape(-1)]
        return found.reshape(*ids.shape, self.width)

    @np.errstate(over="ignore", invalid="ignore")  # the next loss is NaN, which is reported
    def step(self, ids: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        """Update the rows by one step of the optimizer, with the sum (Adagrad: the mean) of each id's gradients.

        Args:
            ids: shape [n], all of them looked up before with `train`.
            gradients: shape [n, width].
        """
        unique, back, times = np.unique(ids, return_inverse=True, return_counts=True)
        order = np.argsort(back.reshape(-1), kind="stable")
        first = np.cumsum(times) - times
        total = np.add.reduceat(gradients.reshape(-1, self.width)[order], first, axis=0)
        used = unique != 0
        total, times = total[used], times[used]
        at = np.array([self._place[each] for each in unique[used].tolist()], np.int64)
        rule = self._rule
        if rule.kind == "sgd":
            self._values[at] -= rule.rate * total
        elif rule.kind == "adagrad":
            mean = total / times[:, None]
            self._values[at] -= rule.rate * mean / np.sqrt(rule.initial + self._first[at])
            self._first[at] += np.square(mean)
        else:
            self._steps[at] += 1
            self._first[at] = rule.beta1 * self._first[at] + (1 - rule.beta1) * total
            self._second[at] = rule.beta2 * self._second[at] + (1 - rule.beta2) * np.square(total)
            rate = (
                rule.rate * np.sqrt(1 - rule.beta2 ** self._steps[at]) / (1 - rule.beta1 ** self._steps[at])
            )
            self._values[at] -= rate * self._first[at] / (np.sqrt(self._second[at]) + rule.epsilon)

    def rows(self) -> TableRows:
        """Return all rows, in ascending order of their ids."""
        ids = np.array(list(self._place), np.int64).view(np.uint64)
        order = np.argsort(ids)[1:]  # without 0
        return TableRows(ids[order], self._values[order])


CHUNK = 8192  # rows of one prediction


class SingleProcessTrainer:
    """Trains a program in this process, which holds its network, embedding tables and parameters."""

    def __init__(self, program: TrainingProgram) -> None:
        """Build the network. Raise `SettingsError` if the program cannot be trained."""
        self.program = program
        self.seed = program.seed
        prepare_paddle(self.seed)
        self.network = build_network(program, "served")
        self.test_program = self.network.main.clone(for_test=True)
        with program.calling("optimizer()"):
            optimizer = program.module.optimizer(program.job)
            rule = optimizer_rule(optimizer)
        self.tables = {
            table.name: MemoryTable(table.width, table.spread, table.rule or rule, self.seed + number)
            for number, table in enumerate(self.network.tables)
        }
        guard = paddle.static.program_guard(self.network.main, self.network.startup)
        with guard, program.calling("training of network()"):
            optimizer.minimize(self.network.loss)
            has = self.network.main.global_block().has_var
            for table, _, vectors in self.network.lookups:
                if not has(f"{vectors.name}@GRAD"):
                    raise ValueError(
                        f"the loss does not depend on embedding {table!r}. Fix: use it in the loss, or remove it"
                    )
        self.scope = paddle.static.Scope()
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.network.startup, scope=self.scope)
        self._gradients = [f"{vectors.name}@GRAD" for _, _, vectors in self.network.lookups]
        self._computed = [ids for _, ids, _ in self.network.lookups if ids.name not in program.inputs]
        self._needed = self.network.names_needed(self._computed).intersection(program.inputs)

    def _look_up(self, batch: Arrays, train: bool) -> tuple[list[NDArray[np.int64]], Arrays]:
        """Return the ids of each look-up, and the network's inputs with the looked-up vectors."""
        known = batch
        if self._computed:
            # With use_prune only the ids are computed; the rest of the network has no vectors yet.
            feed = {name: batch[name] for name in self._needed}
            found = self.exe.run(
                self.test_program, feed=feed, fetch_list=self._computed, scope=self.scope, use_prune=True
            )
            known = batch | {variable.name: ids for variable, ids in zip(self._computed, found, strict=True)}
        ids, feed = [], dict(batch)
        for table, asked, vectors in self.network.lookups:
            ids.append(known[asked.name])
            feed[vectors.name] = self.tables[table].look_up(ids[-1], train)
        return ids, feed

    def step(self, batch: Arrays) -> float:
        """Train one batch, and return its mean loss."""
        ids, feed = self._look_up(batch, train=True)
        fetch = [self.network.loss, *self._gradients]
        loss, *gradients = self.exe.run(self.network.main, feed=feed, fetch_list=fetch, scope=self.scope)
        gradients_by_table: dict[str, tuple[list[Any], list[Any]]] = {}
        for (table, _, _), asked, gradient in zip(self.network.lookups, ids, gradients, strict=True):
            parts = gradients_by_table.setdefault(table, ([], []))
            parts[0].append(asked.reshape(-1))
            parts[1].append(gradient.reshape(-1, gradient.shape[-1]))
        for table, (asked_of, gradients_of) in gradients_by_table.items():
            self.tables[table].step(np.concatenate(asked_of), np.concatenate(gradients_of))
        return float(np.asarray(loss).reshape(-1)[0])

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the network's prediction of some rows, shape [rows, …]."""
        _, feed = self._look_up(arrays, train=False)
        name = self.network.prediction.name
        [found] = self.exe.run(self.test_program, feed=feed, fetch_list=[name], scope=self.scope)
        return np.asarray(found)

    def passes(
        self,
        train: Records,
        test: Records,
        passes: int,
        batch_size: int,
        report: Callable[[str], None] = lambda _: None,
    ) -> Iterator[dict[str, float]]:
        """Train `passes` passes (epochs), and yield the results of each.

        Yields:
            After each pass, a dict with the keys pass, samples, seconds, loss and the name of each metric.

        Raises:
            DivergedError: a loss is NaN or infinite.
        """
        steps, pace = max(1, -(-train.rows // batch_size)), ReportTimer()

        def show(meter: PassMeter, loss: float) -> None:  # noqa: ARG001 - of the last batch
            if pace.due():
                shown = f"{meter.batch:,} of {steps:,} batches, {meter.rate:,.0f} samples/s, loss={meter.average:.4f}"
                report(f"pass {meter.number + 1}: {shown}")

        for number in range(passes):
            meter = PassMeter(number, PassTotals(), show)
            meter.start_clock()
            for batch in train.batches(steps, (self.seed, number, 0)):
                meter.add_batch(batch, self.step(batch))
            seconds = meter.stop_clock()
            scores = evaluate(self.program, self.predict, test.blocks(CHUNK))
            yield {"pass": number, "samples": train.rows, "seconds": seconds, "loss": meter.average, **scores}

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Return all dense parameters by name."""
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in self.network.dense()}


def check_program(program: TrainingProgram, batch: Arrays | None, mode: str, batch_size: int) -> list[str]:
    """Build the network for one process and for training with pservers, and train one batch of rows.

    Args:
        batch: at most `network.ROWS` rows. Without rows (None) nothing is trained, and metrics() gets generated rows.
        mode: training.mode.
        batch_size: training.batchSize.

    Returns:
        The names of the program's scores; empty if metrics() cannot calculate them from these rows.

    Raises:
        SettingsError: the program cannot be trained; the message names its function and line.
    """
    single = SingleProcessTrainer(program)
    if batch is not None:
        with program.calling("network()"):
            scores = check_batch(program, single.predict, batch)
            single.step(batch)
    else:
        scores = _scores_of_generated_rows(program, single)
    prepare_paddle(single.seed)
    logging.disable(logging.INFO)  # Paddle's notes on its strategy
    try:
        build_training_graph(program, SingleRoleMaker(), mode, batch_size, choose_shard_count(1))
    finally:
        logging.disable(logging.NOTSET)
    return scores


def _scores_of_generated_rows(program: TrainingProgram, single: SingleProcessTrainer) -> list[str]:
    """Return the names of the scores of generated rows (zeros, with labels 0 and 1); empty if metrics() fails."""
    rows = np.zeros(ROWS, record_dtype(program.inputs))
    rows[program.label][::2] = 1
    try:
        return check_batch(program, single.predict, split_inputs(rows))
    except Exception:  # a program may fail with rows that it never gets
        return []
