"""Save and load tables in binary form: a trainer sends commands to the pservers of its own pod through Unix sockets.

Each pserver has a thread that executes one command at a time (`serve_commands`). `OwnServers` is the trainer's side. A
command is a name with arguments. The answer is the result of the command, or an exception.

To save its tables, the pserver forks. The child process writes the files from its copy of the memory, and meanwhile the
pserver continues to serve the training. The kernel copies each page of memory that the training changes meanwhile, so
the tables may need twice their memory. If the container does not have so much memory, the pserver writes the files
itself, and the training waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from launcher.errors import DeadlineError, GangError, LauncherError
from launcher.io import cgroup_memory, checkpoints, files
from launcher.schema import CheckpointContents, CheckpointFile
from launcher.trainer import row_files, server_tables
from launcher.trainer.server_memory import ServerMemory
from launcher.trainer.server_tables import Ids, OptimizerRule, ServerLayout, TableRows, Values

ANSWER_SECONDS = 3600.0  # longest time in which a pserver writes or loads its files
WORKERS = 2  # threads that write or load files
CHILD_NICENESS = 5
MEMORY_SHARE = 1.1
"""How much free memory a pserver needs to fork, as a multiple of its own memory. The result is multiplied by the number
of pservers in the pod, because all of them fork at the same time."""
_PR_SET_PDEATHSIG = 1
Files = dict[str, CheckpointFile]


def socket_path(work_dir: Path, server: int) -> Path:
    """Return the path of a pserver's socket. `server` is the number of the pserver in its pod, from 0."""
    return work_dir / f"pserver-{server}.sock"


def serve_commands(memory: ServerMemory, rules: Mapping[str, OptimizerRule], number: int, path: Path) -> None:
    """Start a thread that executes the commands of this pod's trainer, and return at once.

    Args:
        memory: the tables of this pserver.
        rules: the optimizer of each table by its name.
        number: this pserver's number in the job.
        path: the socket, see `socket_path`.
    """
    # The path of a socket may have only 107 bytes. A path relative to the process' working folder is shorter.
    listener = Listener(os.path.relpath(path), "AF_UNIX")
    commands = _Commands(memory, rules, number)
    threading.Thread(target=commands.serve, args=(listener,), name="commands", daemon=True).start()


class _Commands:
    """Executes the commands of a trainer in a pserver: `save`, `load` and `fill`."""

    def __init__(self, memory: ServerMemory, rules: Mapping[str, OptimizerRule], number: int) -> None:
        self._memory, self._rules, self._number = memory, rules, number

    def serve(self, listener: Listener) -> NoReturn:
        """Accept one connection after another, and execute the commands of each connection. This never ends.

        If a trainer disconnects, only its current command is lost; then the next connection is accepted.
        """
        commands = {each.__name__: each for each in (self.save, self.load, self.fill)}
        while True:
            with listener.accept() as connection, contextlib.suppress(EOFError, OSError):
                while True:
                    name, arguments = connection.recv()
                    connection.send(_result(commands[name], connection, *arguments))

    def save(self, connection: Connection, folder: Path, evicting: Collection[str], servers: int) -> Files:
        """Write all tables and dense parameters of this pserver to files. Return the size and sha256 of each file.

        Before this method returns, it sends a `Snapshot` to the trainer. The training may continue from then on.

        Args:
            connection: the connection to the trainer.
            folder: the folder of a checkpoint.
            evicting: names of the tables from which old rows are deleted before; see `OwnServers.save`.
            servers: number of pservers in this pod. All of them save at the same time, so all of them need memory.
        """
        memory = self._memory
        for table in evicting:
            memory.shrink(table)
            memory.count_unseen(table)
        samples = {table: memory.sample(table) for table in memory.shapes}
        size = sum(memory.size(table) * (8 + 4 * shape.columns[0]) for table, shape in memory.shapes.items())
        size += sum(values.nbytes for values in memory.dense.values())
        needed, free = int(MEMORY_SHARE * servers * _own_bytes()), cgroup_memory.free_bytes()
        if free < needed:
            written = self._write_files(folder)
            why = f"{needed >> 20} MiB of memory are needed to train meanwhile, and {free >> 20} are free"
            connection.send(Snapshot(samples, size, why))
            return written
        ours, theirs = Pipe(duplex=False)
        parent, child = os.getpid(), os.fork()
        if child == 0:
            try:
                _become_writer(parent, theirs.fileno())
                theirs.send(_result(self._write_files, folder))
            finally:
                os._exit(0)
        theirs.close()
        try:
            connection.send(Snapshot(samples, size))
            return dict(_receive(ours, "the process that writes the checkpoint", child))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def _write_files(self, folder: Path) -> Files:
        memory = self._memory

        def write(table: str, shard: int) -> tuple[str, CheckpointFile]:
            name = row_files.file_name(table, shard)
            path = folder / name
            with files.storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = memory.read_shard(table, shard)
                written = row_files.write_shard(path, memory.shapes[table], shard, memory.shards, rows)
            return name, written

        written = dict(
            _in_threads(write, [(table, shard) for table in memory.shapes for shard in memory.own])
        )
        name = server_tables.dense_file(self._number)
        return written | checkpoints.write_file(folder, name, lambda file: np.savez(file, **memory.dense))

    def load(self, _: Connection, folder: Path, contents: CheckpointContents) -> None:
        """Load this pserver's part of a checkpoint; see `OwnServers.load`."""
        memory = self._memory
        entries = [
            (table, *entry)
            for table in memory.shapes
            for entry in row_files.list_files(folder, contents, table, memory.own)
        ]

        def load(table: str, path: Path, sha256: str | None) -> None:
            with files.storage_errors(path):
                for rows in row_files.read_shard(path, memory.shapes[table], memory.shards, sha256):
                    memory.write_rows(table, *rows)

        _in_threads(load, entries)
        shape = memory.dense_shape
        if shape.part:
            names = [*memory.dense]
            saved = server_tables.read_dense(folder, names, shape.total, contents.servers, shape.part)
            for name, values in saved.items():
                memory.dense[name][:] = values

    def fill(self, _: Connection, table: str, ids: Ids, vectors: Values) -> None:
        """Set the rows with the ids `ids` to the vectors `vectors` of an earlier model.

        The optimizer's state of these rows becomes the state before the first step.
        """
        self._memory.write_rows(table, ids, self._memory.shapes[table].fresh(vectors, self._rules[table]))


def _in_threads(work: Callable[..., Any], tasks: Iterable[Sequence[Any]]) -> list[Any]:
    """Call `work` with the arguments of each task, in WORKERS threads. Return the results in the order of the tasks.

    If a task fails, further tasks are still started until all tasks before the failed one have ended. Then no further
    task is started, and the error is raised when the running tasks have ended.
    """
    pool = ThreadPoolExecutor(WORKERS)
    try:
        return list(pool.map(lambda task: work(*task), tasks))
    finally:
        pool.shutdown(cancel_futures=True)


def _result(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work`. Return its result, or the exception that it raised as a `LauncherError`.

    `EOFError` and `ConnectionError` are raised, because they mean that the connection to the trainer is lost.
    """
    try:
        return work(*arguments)
    except LauncherError as error:
        return error
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        traceback.print_exc()
        return GangError(f"{type(error).__name__}: {error}")


def _receive(connection: Any, who: str, child: int | None = None) -> Any:
    """Return the next message that a process sends.

    Args:
        connection: the connection to the sender.
        who: description of the sender, for errors.
        child: process id of the sender if it is a child of this process; None otherwise.

    Raises:
        LauncherError: the message is an error, and is raised. Or the sender has exited, or has sent nothing for
            ANSWER_SECONDS.
    """
    try:
        if not connection.poll(ANSWER_SECONDS):
            raise DeadlineError(
                f"{who} did not finish within {ANSWER_SECONDS:.0f} s. Fix: check the speed of the shared storage"
            )
        message = connection.recv()
    except (EOFError, OSError):
        how = "has exited"
        if child is not None:
            end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            if end is not None and end.si_code != os.CLD_EXITED:
                how = f"was killed by {signal.Signals(end.si_status).name}"
        raise GangError(
            f"{who} {how}. Fix: see the server log (python -m launcher logs --role pserver); if it was killed for "
            "lack of memory, increase resources.requests.memory and resources.limits.memory"
        ) from None
    if isinstance(message, Exception):
        raise message
    return message


def _own_bytes() -> int:
    """Return how many bytes of memory this process uses, without memory-mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


def _become_writer(parent: int, pipe: int) -> None:
    """Prepare this forked process to write files.

    The kernel will kill this process when its parent exits. All files and sockets are closed except `pipe` and the
    standard streams.

    Args:
        parent: process id of the parent.
        pipe: file descriptor of the pipe to the parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, pipe)  # also the pserver's sockets: its port must be free after the pserver has exited
    os.closerange(pipe + 1, os.sysconf("SC_OPEN_MAX"))
    os.nice(CHILD_NICENESS)


@dataclass(frozen=True)
class Snapshot:
    """Tells a trainer that its training may continue, because the files will have the current values of all rows."""

    samples: dict[str, TableRows]
    """Some rows of each table, by the table's name, to compare them with the values that the servers send."""
    size: int
    """Estimated size of the files in bytes."""
    paused: str = ""
    """Why the training had to wait until the files were written; empty if it did not have to wait."""


@dataclass(frozen=True)
class OwnServers:
    """A trainer's connections to the pservers of its own pod."""

    _layout: ServerLayout
    _connections: Mapping[int, Any]
    """Number of a pserver in the job → the connection to it."""

    @classmethod
    def connect(cls, work_dir: Path, layout: ServerLayout) -> OwnServers:
        """Connect to the pservers of this pod, which must listen already. Then remove the files of their sockets."""
        connections = {}
        for number, server in enumerate(layout.own):
            path = socket_path(work_dir, number)
            connections[server] = Client(os.path.relpath(path), "AF_UNIX")
            path.unlink()
        return cls(layout, connections)

    def _send(self, server: int, command: str, *arguments: Any) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` then raises an error with the cause
            self._connections[server].send((command, arguments))

    def receive(self, servers: Iterable[int] | None = None) -> list[Any]:
        """Return the next message of each of these servers; None: of all servers. If it is an exception, raise it."""
        chosen = self._connections if servers is None else servers
        return [_receive(self._connections[server], f"pserver {server + 1} of the job") for server in chosen]

    def save(self, folder: Path, evicting: Collection[str]) -> list[Snapshot]:
        """Let all servers write their rows and dense parameters to files. Return when the training may continue.

        The caller must then call `receive`. For each server, it returns the size and sha256 of the written files, by
        their names in the checkpoint.

        Args:
            folder: the folder of a checkpoint.
            evicting: names of the tables with the argument `evict` of `Job.embedding`. Before the save, the servers
                delete the rows of these tables that were not trained during the last `evict` checkpoints.
        """
        for server in self._connections:
            self._send(server, "save", folder, evicting, len(self._connections))
        return self.receive()

    def load(self, folder: Path, contents: CheckpointContents) -> None:
        """Let each server load its rows, its part of the dense parameters, and the state of their optimizers.

        Args:
            folder: the folder of the checkpoint.
            contents: the checkpoint's contents.json.

        Raises:
            DataError: a file of rows is damaged.
            SettingsError: the checkpoint has other dense parameters than the program, or another optimizer.
            GangError: a pserver has exited, or failed in another way.
        """
        for server in self._connections:
            self._send(server, "load", folder, contents)
        self.receive()

    def fill(self, table: str, rows: Iterable[TableRows]) -> TableRows:
        """Set rows of a table in these servers, with new optimizer state. Skip rows that belong to other servers.

        Args:
            table: name of the table.
            rows: chunks of rows of an earlier model.

        Returns:
            A sample of the rows, which the caller later compares with the rows in the servers: for each chunk, the
            first row that each server got.
        """
        layout = self._layout
        busy: list[int] = []
        samples: list[TableRows] = []
        width = 0
        for ids, vectors in rows:
            width = vectors.shape[1]
            shards = ids % np.uint64(layout.shards)
            places = {
                server: np.flatnonzero(np.isin(shards, layout.shards_of(server))) for server in layout.own
            }
            parts = {server: at for server, at in places.items() if len(at)}
            self.receive(busy)
            busy = list(parts)
            for server, at in parts.items():
                self._send(server, "fill", table, ids[at], vectors[at])
                samples.append(TableRows(ids[at[:1]], vectors[at[:1]]))
        self.receive(busy)
        return TableRows.concatenate(samples, width)
