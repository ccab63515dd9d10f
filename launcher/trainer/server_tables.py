"""Describe the tables of Paddle's servers: their optimizers, their shards, and their dense parameters in a checkpoint.

The servers have these rules, one for each kind of optimizer:

- adam: SparseAdamSGDRule. It does the same as Paddle's Adam operator with a step count for each row, except that
  epsilon is not multiplied by sqrt(1 - beta2^steps).
- sgd: SparseNaiveSGDRule, w -= rate x gradient.
- adagrad: StdAdaGradSGDRule. For each element w -= rate x g / sqrt(initial + G), then G += g². So the gradient of a
  step changes G only for the next step. g is the mean of the gradients of all occurrences of the id in one push.

Sparse tables (embeddings) have one file for each shard (row_files.py). The row with id k is in the shard with the
number k modulo the number of shards. The number of shards stays the same for a whole run. Each server loads a
contiguous range of shards. So the number of servers may change between two attempts, if each server gets at least one
shard.

The dense table (all other parameters) has one file for each server, dense/part-<server>.npz, with the arrays that
`DenseShape` describes, except the learning rate. All dense parameters together form one long vector. Each server holds
a contiguous part of this vector, or nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.errors import SettingsError, setting_error
from launcher.io import files
from launcher.schema import CheckpointTable

if TYPE_CHECKING:
    from launcher.trainer.process_settings import ProcessSettings

Ids = NDArray[np.uint64]
Values = NDArray[np.float32]
DEFAULT_SHARDS = 60
"""Default number of shards of a table. 60 is divisible by 2, 3, 4, 5, 6, 10, 12, 15, 20 and 30 servers. In a
measurement, 60 shards took no more time than 4 shards. 240 shards doubled the CPU time of two servers. With Paddle's
default of 1000 shards a save takes 5 s."""
PARAMETERS = "params.npz"
"""Name of the file in a checkpoint with the dense parameters by name."""
UNSEEN_DAYS, FIRST_WEIGHT = 1, 5
"""Indexes of two columns of a row. The first column has the number of checkpoints since the row was last trained, the
second column has the weight w[0]."""
CHUNK_ROWS = 1 << 16
_ONCE = "Beta1Pow", "Beta2Pow"
"""Names of the arrays of Adam that have only one value for all dense parameters of a server."""


@dataclass(frozen=True)
class OptimizerRule:
    """Holds the kind of an optimizer and its arguments, such as the learning rate."""

    kind: str
    """adam, sgd or adagrad."""
    rate: float
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial: float = 0.0
    """Initial value of adagrad's accumulators."""


@dataclass(frozen=True)
class RowShape(CheckpointTable):
    """Describes the numbers that a row of a table has in a server and in the files of a checkpoint:

        slot unseen_days delta_score show click w[0] state w[1:] state

    The first five numbers are Paddle's data about the row, w are its weights. The first `state` is the optimizer's
    state of w[0], the second one is that of w[1:]. The state of n weights is `g… g2… b1 b2` for Adam (n first moments,
    n second moments, the powers of both betas), `G…` for AdaGrad (n sums of squares), and nothing for SGD. A row
    without a vector has only w[0]: it ends after the first state.
    """

    @property
    def columns(self) -> tuple[int, int]:
        """Return how many numbers a row with a vector has, and how many numbers a row without a vector has."""
        first, rest = (
            n + {"adam": 2 * n + 2, "sgd": 0, "adagrad": n}[self.rule] for n in (1, self.width - 1)
        )
        return FIRST_WEIGHT + first + rest, FIRST_WEIGHT + first

    def vectors(self, values: Values) -> Values:
        """Return the weights of rows, shape [rows, width].

        `values` has all numbers of each row. Either all rows have a vector, or no row has one. In a row without a
        vector, all weights except the first are 0.
        """
        found = np.zeros((len(values), self.width), np.float32)
        found[:, 0] = values[:, FIRST_WEIGHT]
        first = self.columns[1]
        rest = values[:, first : first + self.width - 1]
        found[:, 1 : 1 + rest.shape[1]] = rest
        return found

    def fresh(self, vectors: Values, rule: OptimizerRule) -> Values:
        """Return all numbers of new rows, which have these weights and the optimizer's state before its first step.

        Args:
            vectors: the weights, shape [rows, width].
            rule: the optimizer of the table.
        """
        full, first = self.columns
        values = np.zeros((len(vectors), full), np.float32)
        values[:, FIRST_WEIGHT] = vectors[:, 0]
        values[:, first : first + self.width - 1] = vectors[:, 1:]
        if self.rule == "adam":
            values[:, first - 2 : first] = values[:, full - 2 :] = rule.beta1, rule.beta2
        return values


@dataclass(frozen=True)
class DenseShape:
    """Describes a server's part of the dense parameters, with the state of their optimizer (SGD or Adam)."""

    arrays: dict[str, tuple[int, float | None]]
    """Paddle's name of each array → its length and its initial value, in the order in which the server has them. The
    initial value is None if the values of the array differ.

    The names are Param (the parameters) and LearningRate; with Adam also Moment1, Moment2, Beta1Pow and Beta2Pow. Param
    and the moments have one value for each parameter, the other arrays have one value."""
    part: range
    """Indexes of this server's parameters in the vector of all dense parameters; empty if the server has none."""
    total: int
    """Number of the dense parameters of all servers together."""


@dataclass(frozen=True)
class EmbeddingTable:
    """Describes one float32 embedding table by the arguments of the program's call of `Job.embedding`."""

    name: str
    width: int
    spread: float
    rule: OptimizerRule | None
    """The table's own optimizer; None: the table uses the optimizer that the program's optimizer() returns."""
    admit: int
    evict: int | None


class TableRows(NamedTuple):
    """Holds some rows of an embedding table: their ids and their vectors."""

    ids: NDArray[np.uint64]
    """Shape [rows]. It never contains 0, which is padding. The ids of a complete table are in ascending order."""
    vectors: NDArray[np.float32]
    """Shape [rows, width]."""

    @classmethod
    def concatenate(cls, chunks: Iterable[TableRows], width: int) -> TableRows:
        """Return the rows of all chunks, sorted by id. `width` is the length of their vectors."""
        nothing = cls(np.zeros(0, np.uint64), np.zeros((0, width), np.float32))
        ids, vectors = map(np.concatenate, zip(nothing, *chunks, strict=True))
        order = np.argsort(ids)
        return cls(ids[order], vectors[order])

    def chunks(self) -> Iterator[TableRows]:
        """Yield the rows of this object, at most CHUNK_ROWS at a time."""
        for first in range(0, len(self.ids), CHUNK_ROWS):
            yield TableRows(self.ids[first : first + CHUNK_ROWS], self.vectors[first : first + CHUNK_ROWS])


def dense_file(server: int) -> str:
    """Return the path, inside a checkpoint, of the file with a server's part of the dense parameters."""
    return f"dense/part-{server:03d}.npz"


def read_dense(
    folder: Path, names: Sequence[str], total: int, saved_by: int, part: range
) -> dict[str, Values]:
    """Read a part of the dense parameters, with the state of their optimizer, from the files of a checkpoint.

    Args:
        folder: the folder of the checkpoint.
        names: names of the arrays that the program's optimizer needs, without the learning rate.
        total: number of all dense parameters of the program.
        saved_by: number of the servers that wrote the files.
        part: indexes of the parameters to read, in the vector of all dense parameters; not empty.

    Returns:
        Name of each array → its values, one for each of these parameters. The arrays with the powers of Adam's betas
        have only one value.

    Raises:
        SettingsError: the files have other arrays, or another number of parameters.
    """
    each = total // saved_by + 1
    used = range(part.start // each, (part.stop - 1) // each + 1)
    found = [load_arrays(folder / dense_file(number)) for number in used]
    saved, expected = sum(len(of["Param"]) for of in found), min(total, used.stop * each) - used.start * each
    if saved != expected or list(found[0]) != list(names):
        raise SettingsError(
            f"training cannot resume from {folder.name}: its dense parameters or their optimizer are others "
            f"than the program's: it has {saved} with the arrays {', '.join(found[0])}, but must have {expected} with "
            f"{', '.join(names)}. Fix: restore the earlier program and training.args, or start from scratch: set "
            "startFromScratch to any new text."
        )
    every = {name: np.concatenate([arrays[name] for arrays in found]) for name in names}
    first = part.start - used.start * each
    return {
        name: values[:1] if name in _ONCE else values[first : first + len(part)]
        for name, values in every.items()
    }


def choose_shard_count(servers: int, elastic: Sequence[int] = ()) -> int:
    """Return the number of shards for a new run: on average at least two for each server, so that servers can be added.

    If the run is not elastic, each server gets at least two shards. In an elastic run, each server gets at least one
    shard with each of the numbers of servers.

    Args:
        servers: the number of servers at the start.
        elastic: all numbers of servers that an elastic run can have; empty if the run is not elastic.
    """
    if elastic:
        counts = itertools.count(max(DEFAULT_SHARDS, 2 * max(elastic)))
        return next(n for n in counts if all(every_server_has_shards(n, each) for each in elastic))
    if 2 * servers <= DEFAULT_SHARDS and every_server_has_shards(DEFAULT_SHARDS, servers):
        return DEFAULT_SHARDS
    return servers * max(2, -(-DEFAULT_SHARDS // servers))


def every_server_has_shards(shards: int, servers: int) -> bool:
    """Return whether each server gets at least one shard. Without a shard, a server reads beyond its list of files."""
    return bool(shards_of_server(shards, servers, servers - 1))


def usable_ports_nums(shards: int, trainers: int) -> list[int]:
    """Return all values of portsNum with which every server gets a shard. The job has portsNum x trainers servers."""
    return [n for n in range(1, shards // trainers + 1) if every_server_has_shards(shards, n * trainers)]


def shards_of_server(shards: int, servers: int, server: int) -> range:
    """Return the shards that Paddle assigns to a server. The last servers may get fewer shards than the others.

    Args:
        shards: number of shards of each table.
        servers: number of servers.
        server: number of the server, from 0.
    """
    each = -(-shards // servers)
    return range(min(shards, each * server), min(shards, each * (server + 1)))


@dataclass(frozen=True)
class ServerLayout:
    """Says which pservers a job has, and which shards of the tables each of them holds."""

    addresses: list[tuple[str, int]]
    """(host, port) of every pserver of the job, in the same order in all processes."""
    own: range
    """Indexes in `addresses` of the pservers that run in this rank's pod."""
    shards: int
    """Number of shards of each table. A checkpoint has one file per table and shard."""

    @classmethod
    def read(cls, settings: ProcessSettings) -> ServerLayout:
        """Return the layout of this attempt, from the environment and the checkpoint to resume from.

        A resumed training keeps the number of shards of its checkpoint. A new training gets the number that
        `choose_shard_count` returns.

        Raises:
            SettingsError: there are so many pservers that a pserver would get no shard.
            CheckpointError: contents.json of the checkpoint is missing or damaged.
        """
        pairs = (e.rsplit(":", 1) for e in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
        addresses = [(host, int(port)) for host, port in pairs]
        each, servers = len(addresses) // settings.trainers, len(addresses)
        own = range(settings.rank * each, (settings.rank + 1) * each)
        contents = settings.resumed
        if contents is None:
            counts = range(settings.min_trainers, settings.shards + 1) if settings.is_elastic else ()
            return cls(addresses, own, choose_shard_count(servers, [n * each for n in counts]))
        found = contents.shards
        if not every_server_has_shards(found, servers):
            fit = usable_ports_nums(found, settings.trainers)
            nearest = " or ".join(map(str, sorted(fit, key=lambda n: abs(n - each))[:2]))
            raise setting_error(
                "portsNum",
                each,
                nearest,
                f"the checkpoint {contents.position.folder} has {found} shards of each table, and with {servers} "
                "pservers (portsNum x trainers) one would have none",
                f"Set portsNum to {nearest}",
            )
        return cls(addresses, own, found)

    def shards_of(self, server: int) -> range:
        """Return the shards of each table that the pserver with this index in `addresses` holds."""
        return shards_of_server(self.shards, len(self.addresses), server)

    def own_shards(self) -> range:
        """Return the shards of each table that the pservers in this rank's pod hold."""
        return range(self.shards_of(self.own[0]).start, self.shards_of(self.own[-1]).stop)


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file, by name."""
    with files.storage_errors(path), np.load(path) as found:
        return {name: found[name] for name in found.files}
