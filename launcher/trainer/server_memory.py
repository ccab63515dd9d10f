"""Read and write the tables in a pserver's own memory. This module knows the layout of Paddle's C++ objects.

A pserver uses `ServerMemory`, a trainer uses `PendingPushes`.

Paddle 2.6.2 saves tables only as text. This takes 25 seconds of CPU per million ids, and crashes on arm64. A pserver
can instead read the same numbers from its own memory as numpy arrays, and write them back. For this `ServerMemory`
calls functions that Paddle's C++ library exports, and relies on these facts, which hold on amd64 and arm64:

- `FleetWrapper::pserver_ptr_` leads to the server and its hash map of tables. `ServerMemory` searches for this map
  instead of expecting it at an offset. It recognizes a table of embeddings by its first word, which points to the
  vtable of `MemorySparseTable`.
- A shard (`GetShard`) begins with MAPS hash maps of MAP_BYTES each. The first word of a map is the address of its
  slots, the second word is their number. A slot has two words: an id, and the address of a row. The lowest two bits of
  the address are a mark; its value is USED if the slot has a row.
- A row is a std::vector<float> of three words: the addresses of the first number, of the end of the numbers, and of the
  end of the allocated memory.
- A table points to its accessor. The accessor points to two optimizers: one for w[0] and one for w[1:], where w are the
  weights of a row. The fourth word of an optimizer is the number of the values that it trains.
- The table of the dense parameters (`MemoryDenseTable`) has one std::vector<std::vector<float>> with the parameters and
  the state of their optimizer. `ServerMemory` finds this vector by the lengths of the vectors in it.

`ServerMemory` checks all of this when the server starts. It creates a few rows with exported functions, compares the
rows that it finds in memory with the answers of exported functions, and lets Paddle delete these rows again. It sets
the dense parameters with an exported function, looks for these numbers in memory, and compares the optimizer's state
with the known initial values. Until it has checked the addresses of a table's rows, it reads memory only through
/proc/self/mem, where a wrong address is an error instead of a crash.

`PendingPushes` finds the queues of Paddle's client in the same way: it searches the lists to which
`FleetWrapper::worker_ptr_` leads. In memory, each queue lies directly after a block that counts the references to it.
The vtables of these blocks identify the queues.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.errors import DeadlineError
from launcher.trainer.server_tables import (
    CHUNK_ROWS,
    UNSEEN_DAYS,
    DenseShape,
    Ids,
    RowShape,
    TableRows,
    Values,
)

MAPS, MAP_BYTES, USED, MARK = 64, 48, 2, 3
SEARCHED_WORDS = 16, 128
"""How many words of an object are searched for addresses: the first number for Paddle's object PSCore, which contains
the server's address; the second number for all other objects."""
MOST_TABLES = 1000
SAMPLES = 3
PROBE = 0xD1B54A32D192ED03
"""Rows with ids near this number are created and deleted to check the layout. If the check fails, they may remain."""
MANY = 1e9
"""Number of occurrences of an id that is enough for a vector in every table, whatever its argument `admit` is. Also a
number of checkpoints without training that is enough for Paddle to delete a row."""
_CORE = "_ZN6paddle11distributed12FleetWrapper12pserver_ptr_E"
_VTABLES = "_ZTVN6paddle11distributed17MemorySparseTableE", "_ZTVN6paddle11distributed16MemoryDenseTableE"
_ACCESSOR = "_ZTVN6paddle11distributed14SparseAccessorE"
_RULES = [
    f"_ZTVN6paddle11distributed{name}E"
    for name in ("17SparseAdamSGDRule", "18SparseNaiveSGDRule", "17StdAdaGradSGDRule")
]
_SAMPLER_DELAY = "_ZN4bvar6detail3fLI40FLAGS_bvar_sampler_thread_start_delay_usE"
"""Variable with the microseconds that the sampler thread of bvar sleeps before it begins to work.

bvar is a library of counters in Paddle. It starts this thread again in a forked process. There the thread would read
counters on the stacks of threads that do not exist in this process, and crash. A very long sleep prevents this."""
_NAMESPACE = "_ZN6paddle11distributed"
_CLIENT = "_ZN6paddle11distributed12FleetWrapper11worker_ptr_E"
_QUEUE = "IPNS{}_11distributed16AsyncRequestTaskISt10shared_ptrI"
_SHARED_QUEUE = "_ZTVSt23_Sp_counted_ptr_inplaceIN6paddle9framework13ChannelObject" + _QUEUE.format("0")
_LOCK_POLICY = "ELN9__gnu_cxx12_Lock_policyE2EE"
_DENSE_QUEUE = f"{_SHARED_QUEUE}St6vectorIfSaIfEEEEEEESaISC_{_LOCK_POLICY}"
_SPARSE_QUEUE = f"{_SHARED_QUEUE}NS3_18SparsePushTaskDataEEEEEESaISA_{_LOCK_POLICY}"
_QUEUE_SIZE = f"_ZN6paddle9framework13ChannelObject{_QUEUE.format('')}NS2_18SparsePushTaskDataEEEEE4SizeEv"
_STATE_BYTES = 32
"""Distance in bytes from the client's state to the word that contains the address of the first node in the list of
queues for dense gradients. The state begins with the flags `running` and `flushing`, a byte each. At byte 4 it has the
number of messages that the servers have not answered."""
POLL_SECONDS, PUSH_SECONDS = 5e-4, 3600
_STRING = "ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
_FUNCTIONS: dict[str, tuple[str, Any, list[Any]]] = {
    "run_server": (f"6PSCore9RunServer{_STRING}j", ctypes.c_uint64, [_POINTER, _POINTER, ctypes.c_uint32]),
    "push_dense": ("16MemoryDenseTable14PushDenseParamEPKfm", _INT, [_POINTER, _POINTER, _SIZE]),
    "get_shard": ("17MemorySparseTable8GetShardEm", _POINTER, [_POINTER, _SIZE]),
    "local_size": ("17MemorySparseTable9LocalSizeEv", ctypes.c_int64, [_POINTER]),
    "push": ("17MemorySparseTable10PushSparseEPKmPKfm", _INT, [_POINTER] * 3 + [_SIZE]),
    "addresses": (
        "17MemorySparseTable13PullSparsePtrEiPPcPKmmt",
        _INT,
        [_POINTER, _INT, _POINTER, _POINTER, _SIZE, ctypes.c_uint16],
    ),
    "shrink": (f"17MemorySparseTable6Shrink{_STRING}", _INT, [_POINTER] * 2),
}
"""Functions that Paddle's library exports: the name that this module uses → the symbol without _NAMESPACE, the type of
the result, the types of the arguments."""
_BASE = 4096  # address at which the views of all memory begin; nothing is mapped below it


class LayoutError(Exception):
    """Paddle's library, or an object in its memory, differs from what this module expects. The message says how."""


class _Memory:
    """Describes an array at an address in memory, so that `np.asarray` returns a view of this memory.

    `kind` is numpy's type string of an element, such as `<f4`. `strides` are in bytes.
    """

    def __init__(self, address: int, shape: tuple[int, ...], kind: str, strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": kind, "strides": strides, "version": 3
        }  # fmt: skip


_WORDS: NDArray[np.uint64] = np.asarray(_Memory(_BASE, (1 << 45,), "<u8", (8,)))
"""All memory of this process from _BASE on, as words of 8 bytes. The array covers all addresses, which have up to 47
bits on amd64, and up to 48 bits on arm64."""


def _row_values(columns: int) -> Values:
    """Return a view of all memory of this process as an array of overlapping rows, each of `columns` float32 numbers.

    Row i begins at the address _BASE + 16 i, because malloc returns only addresses that are multiples of 16. A row of a
    table at the address a is row (a - _BASE) / 16 of the array. Use only array rows at which a row of a table begins.
    """
    return np.asarray(_Memory(_BASE, (1 << 44, columns), "<f4", (16, 4)))


def _string(text: bytes) -> Any:
    """Return the memory of a std::string with this text. The returned object keeps the characters alive."""
    characters = ctypes.create_string_buffer(text)
    found = (ctypes.c_uint64 * 4)(ctypes.addressof(characters), len(text), len(text), 0)
    found.characters = characters  # type: ignore[attr-defined]
    return found


def library() -> ctypes.CDLL:
    """Return Paddle's C++ library, which this process must have loaded. Raise `OSError` if it is not loaded."""
    import paddle

    path = Path(paddle.base.__file__).parent / "libpaddle.so"
    return ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_NOW)


def _vtables(paddle_library: ctypes.CDLL, symbols: Sequence[str]) -> list[int]:
    """Return for each class the first word of its objects: an address in the class's vtable.

    `symbols` are the symbols of the vtables. Raise `ValueError` if the library does not export one of them.
    """
    return [ctypes.addressof(ctypes.c_uint64.in_dll(paddle_library, symbol)) + 16 for symbol in symbols]


def _read_words(address: int, count: int) -> NDArray[np.uint64]:
    """Return a copy of `count` words of this process' memory, from `address` on.

    Raise `LayoutError` if this memory is not mapped.
    """
    try:
        with Path("/proc/self/mem").open("rb", buffering=0) as file:
            file.seek(address)
            found = np.empty(count, np.uint64)
            size = file.readinto(found.data.cast("B")) if count else 0
    except (OSError, OverflowError, ValueError, MemoryError) as error:
        raise LayoutError(f"cannot read {count} words at address {address:#x}: {error}") from error
    if size != found.nbytes:
        raise LayoutError(f"cannot read {count} words at address {address:#x}: only {size} bytes")
    return found


def _view_words(address: int, count: int) -> NDArray[np.uint64]:
    """Return a view of `count` words of this process' memory, from `address` on. This memory must be mapped."""
    first = (address - _BASE) >> 3
    return _WORDS[first : first + count]


def _follow_list(node: int, words: int) -> Iterator[list[int]]:
    """Yield the words of each node of a linked list, except the node's first word.

    The first word is the address of the next node, or 0 at the end of the list.

    Args:
        node: address of the first node, or 0.
        words: number of words of a node, with the first word.

    Raises:
        LayoutError: a node is not in mapped memory, or the list has MOST_TABLES nodes or more.
    """
    for _ in range(MOST_TABLES):
        if not node:
            return
        node, *rest = _read_words(node, words).tolist()
        yield rest
    raise LayoutError("the list has no end")


class ServerMemory:
    """Reads and writes the tables of this pserver in its own memory."""

    dense: dict[str, Values]
    """This server's dense parameters and the state of their optimizer, by the names of `DenseShape`.

    These arrays are views of the server's own memory, so a change of an array changes the server. The learning rate is
    missing, because a resumed training uses the learning rate of its program."""

    def __init__(
        self,
        numbers: Mapping[str, int],
        shapes: Mapping[str, RowShape],
        shards: int,
        own: range,
        dense_shape: DenseShape,
    ) -> None:
        """Find the tables in memory, and check that they have the expected layout.

        The tables must be empty. The checks change the values of the dense parameters.

        Args:
            numbers: name of each embedding table → its number in Paddle.
            shapes: name of each embedding table → the shape of its rows.
            shards: number of shards of each table.
            own: the shards that this pserver holds.
            dense_shape: this pserver's part of the dense parameters.

        Raises:
            LayoutError: the library or the memory differs from what this module expects.
        """
        self.shapes, self.shards, self.own, self.dense_shape = shapes, shards, own, dense_shape
        try:
            paddle_library = library()
            self._core = int(ctypes.c_uint64.in_dll(paddle_library, _CORE).value)
            ctypes.c_int32.in_dll(paddle_library, _SAMPLER_DELAY).value = (1 << 31) - 1
            vtables, accessor, rules = (
                _vtables(paddle_library, names) for names in (_VTABLES, [_ACCESSOR], _RULES)
            )
            self._call = SimpleNamespace()
            for name, (symbol, result, arguments) in _FUNCTIONS.items():
                function = paddle_library[_NAMESPACE + symbol]
                function.restype, function.argtypes = result, arguments
                setattr(self._call, name, function)
        except (OSError, ValueError, AttributeError) as error:
            raise LayoutError(f"Paddle's library lacks a symbol: {error}") from error
        self._words = _read_words
        self._tables, dense = self._find_tables(numbers, vtables)
        self.dense = self._find_dense(dense)
        self._sizes = {table: self._find_sizes(table, accessor, rules) for table in self._tables}
        for table in shapes:
            self._check(table)
        self._words = _view_words

    def _find_tables(self, numbers: Mapping[str, int], vtables: Sequence[int]) -> tuple[dict[str, int], int]:
        """Return the address of each embedding table by its name, and the address of the table of dense parameters.

        Args:
            numbers: name of each embedding table → its number in Paddle.
            vtables: two addresses. Each embedding table in memory begins with the first one, and each table of dense
                parameters with the second one.

        Raises:
            LayoutError: the server has no list with exactly these embedding tables and one table of dense parameters.
        """
        for server in _read_words(self._core, SEARCHED_WORDS[0]).tolist():
            with contextlib.suppress(LayoutError):
                for start in _read_words(server, SEARCHED_WORDS[1]).tolist():
                    with contextlib.suppress(LayoutError):
                        nodes = [
                            (number & 0xFFFFFFFF, table, int(_read_words(table, 1)[0]))
                            for number, table in _follow_list(start, 3)
                        ]
                        sparse, dense = (
                            {number: table for number, table, kind in nodes if kind == vtable}
                            for vtable in vtables
                        )
                        if set(sparse) == set(numbers.values()) and len(dense) == 1:
                            [address] = dense.values()
                            return {name: sparse[n] for name, n in numbers.items()}, address
        raise LayoutError(f"the server has no list with the tables {sorted(numbers.values())}")

    def _find_dense(self, table: int) -> dict[str, Values]:
        """Return views of the arrays in the table of dense parameters, by name, without the learning rate.

        `table` is the address of the table. The function sets the parameters to known numbers, to check that it has
        found the right arrays.

        Raises:
            LayoutError: the arrays are not found, or have other numbers than expected.
        """
        arrays, where = self.dense_shape.arrays, "the table of dense parameters"
        lengths = [length for length, _ in arrays.values()]
        for begin, end in itertools.pairwise(_read_words(table, SEARCHED_WORDS[1]).tolist()):
            if end - begin == 24 * len(lengths):
                with contextlib.suppress(LayoutError):
                    vectors = _read_words(begin, 3 * len(lengths)).reshape(-1, 3).tolist()
                    if [(last - first) // 4 for first, last, _ in vectors] == lengths:
                        break
        else:
            raise LayoutError(f"{where}: found no vector of vectors with {lengths} numbers")
        pushed = np.arange(1, lengths[0] + 1, dtype=np.float32)
        self._call.push_dense(table, pushed.ctypes.data, len(pushed))
        places = {name: (at, n) for name, (at, _, _), n in zip(arrays, vectors, lengths, strict=True)}
        for name, (at, n) in places.items():
            found = _read_words(at, -(-n // 2)).view(np.float32)[:n]
            if (found != (pushed if name == "Param" else arrays[name][1])).any():
                raise LayoutError(f"{where}: {name} has other numbers than expected: {found[:5]}")
        return {
            name: np.asarray(_Memory(at or _BASE, (n,), "<f4", (4,)))
            for name, (at, n) in places.items()
            if name != "LearningRate"
        }

    def _find_sizes(self, table: str, accessor: Sequence[int], rules: Sequence[int]) -> list[ctypes.c_uint64]:
        """Find two variables in Paddle's memory, and return them: how many values each optimizer of a table trains.

        A table has two optimizers. The first optimizer trains the weight w[0] of a row, the second one trains the
        weights w[1:]. Both belong to the accessor, Paddle's C++ object that knows the layout of a row.

        Args:
            table: name of the table.
            accessor: the machine word at the beginning of an accessor, as a list of one number.
            rules: the machine words at the beginning of optimizers, one for each kind of optimizer.

        Raises:
            LayoutError: the optimizers are not found, or train other numbers of values than expected.
        """

        def objects(start: int, vtables: Sequence[int]) -> Iterator[int]:
            for address in _read_words(start, SEARCHED_WORDS[1]).tolist():
                with contextlib.suppress(LayoutError):
                    if _read_words(address, 1)[0] in vtables:
                        yield address

        every = (rule for each in objects(self._tables[table], accessor) for rule in objects(each, rules))
        found = list(itertools.islice(every, 2))  # further rules may belong to the next object in memory
        sizes, expected = [int(_read_words(rule, 4)[3]) for rule in found], self._optimized(table)
        if sizes != expected:
            raise LayoutError(f"table {table}: sizes of the optimizers: {sizes} instead of {expected}")
        return [ctypes.c_uint64.from_address(rule + 24) for rule in found]

    def _optimized(self, table: str) -> list[int]:
        return [1, self.shapes[table].width - 1]

    def run_server(self, host: str, port: int) -> None:
        """Serve on this address until trainer 0 stops all servers.

        Unlike `fleet.run_server`, this method lets Python's other threads run meanwhile.
        """
        text = _string(host.encode())
        self._call.run_server(self._core, ctypes.addressof(text), port)

    def _check(self, table: str) -> None:
        """Create rows in an empty table, and raise `LayoutError` if they are not where this module expects them.

        At the end the table is empty again.
        """
        full, short = self.shapes[table].columns
        probed = sorted({self.own[0], self.own[-1]})
        first = PROBE // self.shards * self.shards
        ids = np.array([first + n * self.shards + shard for shard in probed for n in (1, 2, 5)], np.uint64)

        def check(what: str, found: object, expected: object) -> None:
            if found != expected:
                raise LayoutError(f"table {table}: {what}: {found} instead of {expected}")

        def rows() -> list[tuple[int, int]]:
            found = [self._slots(table, shard) for shard in self.own]
            return sorted(
                (int(id_), int(row)) for ids, rows in found for id_, row in zip(ids, rows, strict=True)
            )

        def columns() -> set[int]:
            pairs = [self._words(row, 2).tolist() for row in self._addresses(table, ids).tolist()]
            return {(end - begin) // 4 for begin, end in pairs}

        check("rows of the new table", (self._call.local_size(self._tables[table]), rows()), (0, []))
        check("numbers of a new row", columns(), {short})
        self._push(table, ids)
        check("numbers of a row with a vector", columns(), {full})
        expected = sorted(zip(ids.tolist(), self._addresses(table, ids).tolist(), strict=True))
        check("ids and addresses of rows", rows(), expected)
        check("counted rows", self._call.local_size(self._tables[table]), len(ids))
        values = np.zeros((len(ids), full), np.float32)
        values[:, UNSEEN_DAYS] = MANY
        self.write_rows(table, ids, values)
        self.shrink(table)
        check("rows that remain", (self._call.local_size(self._tables[table]), rows()), (0, []))

    def _slots(self, table: str, shard: int, maps: slice = slice(MAPS)) -> tuple[Ids, NDArray[np.uint64]]:
        """Return the ids and the addresses of the rows in a shard, sorted by id.

        `maps` selects some of the MAPS hash maps of the shard; by default all of them are read.
        """
        start = self._call.get_shard(self._tables[table], shard - self.own[0])
        described = self._words(start, MAPS * MAP_BYTES // 8).reshape(MAPS, -1)[maps, :2]
        slots = [
            self._words(at, 2 * count).reshape(-1, 2) for at, count in described.tolist() if at and count
        ]
        every = np.concatenate([*slots, np.zeros((0, 2), np.uint64)])
        ids, rows = every[every[:, 1] & np.uint64(MARK) == USED].T
        order = np.argsort(ids)
        return ids[order], rows[order] & ~np.uint64(MARK)

    def _addresses(self, table: str, ids: Ids) -> NDArray[np.uint64]:
        """Return the addresses of the rows with these ids. Create the rows that do not exist, without a vector."""
        found, ids = np.zeros(len(ids), np.uint64), np.ascontiguousarray(ids)
        self._call.addresses(self._tables[table], 0, found.ctypes.data, ids.ctypes.data, len(ids), 0)
        return found

    def _push(self, table: str, ids: Ids) -> None:
        """Create rows with these ids and with a vector. Existing rows without a vector get one."""
        gradients, ids = (
            np.zeros((len(ids), 3 + self.shapes[table].width), np.float32),
            np.ascontiguousarray(ids),
        )
        gradients[:, 1] = MANY  # the columns are slot, show, click, gradients
        self._call.push(self._tables[table], ids.ctypes.data, gradients.ctypes.data, len(ids))

    @staticmethod
    def _begin_and_columns(rows: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        at = (rows - np.uint64(_BASE)) >> np.uint64(3)
        begin = _WORDS[at]
        return begin, (_WORDS[at + np.uint64(1)] - begin) >> np.uint64(2)

    def size(self, table: str) -> int:
        """Return the number of rows of a table on this server."""
        return int(self._call.local_size(self._tables[table]))

    def read_shard(self, table: str, shard: int) -> list[tuple[Ids, Iterator[Values]]]:
        """Return the rows of a shard in two groups: the rows with a vector, then the rows without a vector.

        A group is a pair: the ids, ascending, and an iterator over chunks of the rows' values in the same order.

        Raises:
            LayoutError: a row has an unexpected length, or an id belongs to another shard.
        """
        ids, rows = self._slots(table, shard)
        begin, columns = self._begin_and_columns(rows)
        if (ids % np.uint64(self.shards) != shard).any():
            raise LayoutError(f"table {table}: shard {shard} has ids of other shards")
        full, short = self.shapes[table].columns
        groups = []
        for expected, selected in ((full, columns == full), (short, (columns == short) & (columns != full))):
            groups.append((ids[selected], self._chunks(begin[selected], expected)))
        if sum(len(found) for found, _ in groups) != len(ids):
            raise LayoutError(f"table {table}: shard {shard} has rows of {np.unique(columns)} numbers")
        return groups

    @staticmethod
    def _chunks(begin: NDArray[np.uint64], columns: int) -> Iterator[Values]:
        values = _row_values(columns)
        at = ((begin - np.uint64(_BASE)) >> np.uint64(4)).astype(np.int64)
        return (values[at[first : first + CHUNK_ROWS]] for first in range(0, len(at), CHUNK_ROWS))

    def shrink(self, table: str) -> None:
        """Delete the rows of a table that were not trained during the last `evict` checkpoints.

        `evict` is an argument of `Job.embedding`, which Paddle knows from the table's description.
        """
        text = _string(b"0")
        self._call.shrink(self._tables[table], ctypes.addressof(text))

    def count_unseen(self, table: str) -> None:
        """For each row of a table, add 1 to the number of checkpoints since the row was last trained.

        When a row is trained, Paddle sets this number to 0.
        """
        for shard in self.own:
            begin, _ = self._begin_and_columns(self._slots(table, shard)[1])
            at = ((begin - np.uint64(_BASE)) >> np.uint64(4)).astype(np.int64)
            _row_values(UNSEEN_DAYS + 1)[at, UNSEEN_DAYS] += 1

    def sample(self, table: str) -> TableRows:
        """Return up to SAMPLES rows of each shard of a table."""
        found, shape = [], self.shapes[table]
        for shard in self.own:
            for number in range(MAPS):
                ids, rows = self._slots(table, shard, slice(number, number + 1))
                if len(ids):
                    for id_, row in zip(ids[:SAMPLES], rows[:SAMPLES], strict=True):
                        begin, columns = self._begin_and_columns(row[None])
                        vectors = shape.vectors(next(self._chunks(begin, int(columns[0]))))
                        found.append(TableRows(id_[None], vectors))
                    break
        return TableRows.concatenate(found, shape.width)

    def write_rows(self, table: str, ids: Ids, values: Values) -> None:
        """Set all numbers of the rows with these ids. Create the rows that do not exist.

        Args:
            table: name of the table.
            ids: ids of the rows.
            values: the numbers, shape [rows, columns]. `RowShape.columns` gives the number of columns for rows with a
                vector and for rows without one.

        Raises:
            LayoutError: the server created rows with fewer numbers.
        """
        full, _ = self.shapes[table].columns
        wanted = values.shape[1]
        if wanted == full:
            try:  # let Paddle draw no random values for new rows: that would take most of the time
                for size in self._sizes[table]:
                    size.value = 0
                self._push(table, ids)
            finally:  # the earlier values may be the 0 of another thread, so restore the known ones
                for size, value in zip(self._sizes[table], self._optimized(table), strict=True):
                    size.value = value
        rows = self._addresses(table, ids)
        begin, columns = self._begin_and_columns(rows)
        if (columns < wanted).any():
            raise LayoutError(
                f"table {table}: new rows have {np.unique(columns)} numbers instead of {wanted}"
            )
        longer = columns > wanted  # rows that got their vector only after the checkpoint that is now restored
        _WORDS[(rows[longer] - np.uint64(_BASE) >> np.uint64(3)) + np.uint64(1)] = begin[longer] + np.uint64(
            4 * wanted
        )
        _row_values(wanted)[((begin - np.uint64(_BASE)) >> np.uint64(4)).astype(np.int64)] = values


class PendingPushes:
    """Finds out from the memory of Paddle's client whether the servers have received all gradients of this trainer.

    The client puts each gradient into the queue of its table. Two threads of the client take gradients from the queues
    and send them. The client also counts the messages that are not answered: before a thread takes a gradient, it
    increments this number, and when the last server has answered, the number is decremented.
    """

    def __init__(self, tables: int) -> None:
        """Find the queues of the client. Call this after `fleet.init_worker()`, while nothing is pushed.

        Args:
            tables: number of embedding tables.

        Raises:
            LayoutError: the library or the memory differs from what this module expects.
        """
        try:
            paddle_library = library()
            client = int(ctypes.c_uint64.in_dll(paddle_library, _CLIENT).value)
            vtables = _vtables(paddle_library, (_DENSE_QUEUE, _SPARSE_QUEUE))
            # The queues contain pointers, so the same function returns the size of all kinds of queues.
            self._size = paddle_library[_QUEUE_SIZE]
        except (OSError, ValueError, AttributeError) as error:
            raise LayoutError(f"Paddle's library lacks a symbol: {error}") from error
        self._size.restype, self._size.argtypes = _SIZE, [_POINTER]
        (head, dense), (_, sparse) = (self._find_queues(client, vtable) for vtable in vtables)
        state = int(_read_words(head - _STATE_BYTES, 1)[0])
        if len(sparse) != tables or state & 0xFFFF != 1 or state >> 32:
            raise LayoutError(
                f"the client has {len(sparse)} queues for {tables} tables, and state {state:#x}"
            )
        self._queues = dense + sparse
        self._unanswered = ctypes.c_uint32.from_address(head - _STATE_BYTES + 4)

    @staticmethod
    def _find_queues(client: int, vtable: int) -> tuple[int, list[int]]:
        """Find the client's list of queues of one kind, for dense or for sparse gradients.

        Args:
            client: address of the client.
            vtable: the first word of the blocks that count the references to these queues.

        Returns:
            The address of the client's word that contains the address of the list's first node, and the addresses of
            the queues in the list.

        Raises:
            LayoutError: the client has no such list.
        """
        for index, start in enumerate(_read_words(client, SEARCHED_WORDS[1]).tolist()):
            with contextlib.suppress(LayoutError):
                queues = list[int]()
                for _, queue, block in _follow_list(start, 4):
                    if int(_read_words(block, 1)[0]) != vtable or queue != block + 16:
                        raise LayoutError("the list has something else than queues")
                    queues.append(queue)
                if queues:
                    return client + 8 * index, queues
        raise LayoutError("the client has no list of queues")

    def wait(self) -> None:
        """Wait until the servers have received all gradients that this trainer has pushed.

        Raises:
            DeadlineError: this took longer than PUSH_SECONDS.
        """
        deadline = time.monotonic() + PUSH_SECONDS
        # Look at the queues first: a gradient counts as not answered before it leaves its queue.
        while any(map(self._size, self._queues)) or self._unanswered.value:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"waited {PUSH_SECONDS} s until the pservers have received the gradients of a step. Fix: see "
                    "server.log of all ranks: python -m launcher logs --role pserver"
                )
            time.sleep(POLL_SECONDS)
