"""Train or check a program in one process without servers, for `python -m launcher try` and the checks of `run`.

The network is of the kind `served` (network.py), like the network of an exported model: looked-up vectors are inputs.
The tables are in this process' memory (`MemoryTable`). They are trained by the same rules as in the servers, except
that the arguments `admit` and `evict` of `Job.embedding` have no effect.
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
"""Initial capacity of a table in rows. The capacity is doubled when the table is full."""


class MemoryTable:
    """Holds an embedding table: a vector for each 64-bit id. A row is added when its id is first trained.

    The id 0 is padding, and its vector stays zero.

    Args:
        width: length of a vector.
        spread: the values of new rows are random numbers from -spread to +spread.
        rule: the optimizer.
        seed: seed of the random numbers.
    """

    def __init__(self, width: int, spread: float, rule: OptimizerRule, seed: int) -> None:
        self.width = width
        self._spread, self._rule = spread, rule
        self._random = np.random.default_rng(seed)
        self._place: dict[int, int] = {0: 0}
        self._values = np.zeros((FIRST, width), np.float32)
        self._first = np.zeros_like(self._values)
        """The optimizer's state: moving means of the gradients for Adam, sums of their squares for Adagrad."""
        self._second = np.zeros_like(self._values)
        """The moving means of the gradients' squares; only for Adam."""
        self._steps = np.zeros((FIRST, 1))

    def _grow(self, ids: list[int]) -> None:
        """Add a row for each id that has no row yet. Enlarge the arrays if they are full."""
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
            train: whether to add rows for unknown ids. If False, the vectors of unknown ids are zeros.
        """
        unique, back = np.unique(ids, return_inverse=True)
        wanted = unique.tolist()
        if train:
            self._grow(wanted)
        places = np.array([self._place.get(each, 0) for each in wanted], np.int64)
        found: NDArray[np.float32] = self._values[places][back.reshape(-1)]
        return found.reshape(*ids.shape, self.width)

    @np.errstate(over="ignore", invalid="ignore")  # no warning: the next loss is NaN, and this is an error
    def step(self, ids: NDArray[np.int64], gradients: NDArray[np.float32]) -> None:
        """Update the rows of some ids by one step of the optimizer.

        If an id occurs several times, the step uses the sum of its gradients; Adagrad uses their mean.

        Args:
            ids: shape [n]. Each id must have a row: it was looked up with `train` before.
            gradients: the gradient of each occurrence of an id, shape [n, width].
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
        """Return all rows except padding, in ascending order of their ids."""
        ids = np.array(list(self._place), np.int64).view(np.uint64)
        order = np.argsort(ids)[1:]  # without the id 0
        return TableRows(ids[order], self._values[order])


CHUNK = 8192  # rows of one prediction


class SingleProcessTrainer:
    """Trains a program in this process. It holds the network, the embedding tables and the dense parameters."""

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
        """Look up all vectors that the network needs for a batch.

        Args:
            batch: the program's inputs.
            train: whether to add rows for unknown ids, see `MemoryTable.look_up`.

        Returns:
            The ids of each look-up, and the network's inputs: the batch with the looked-up vectors.
        """
        known = batch
        if self._computed:
            # With use_prune Paddle computes only the ids. The rest of the network needs the vectors.
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
        """Return the network's prediction for some rows, shape [rows, …]."""
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
        """Train passes (epochs), and yield the results of each pass.

        Args:
            train: the rows for training.
            test: the rows for the evaluation after each pass.
            passes: number of passes.
            batch_size: largest number of rows in a batch.
            report: called now and then with a text about the progress.

        Yields:
            After each pass a dict with the keys pass (from 0), samples, seconds, loss and the name of each metric.

        Raises:
            DivergedError: a loss is NaN or infinite.
        """
        steps, pace = max(1, -(-train.rows // batch_size)), ReportTimer()

        def show(meter: PassMeter, loss: float) -> None:  # noqa: ARG001 - the loss of one batch is not shown
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
    """Check that a program can be trained. Build its network for one process and for pservers, and train one batch.

    Args:
        program: the training program.
        batch: at most `network.ROWS` rows, to train one step and to call metrics(). If it is None, nothing is trained,
            and metrics() is called with generated rows.
        mode: training.mode.
        batch_size: training.batchSize.

    Returns:
        The names of the scores that metrics() returns; empty if it cannot calculate scores from these rows.

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
    """Call metrics() with generated rows, and return the names of its scores; empty if this fails.

    The rows consist of zeros, except that every second label is 1.
    """
    rows = np.zeros(ROWS, record_dtype(program.inputs))
    rows[program.label][::2] = 1
    try:
        return check_batch(program, single.predict, split_inputs(rows))
    except Exception:  # a program need not support such rows
        return []
