"""Tests of saving tables by a forked process, with a pserver that holds numbers instead of Paddle's tables."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from launcher.errors import DataError, GangError, StorageError
from launcher.io import files
from launcher.schema import CheckpointContents
from launcher.trainer import row_files
from launcher.trainer.server_commands import OwnServers
from launcher.trainer.server_tables import RowShape, ServerLayout, TableRows
from local.paths import CLONE
from testkit.waiting import until

SHAPE, SHARDS = RowShape(2, "sgd"), 4
SERVER = """
import errno, os, sys, time
from pathlib import Path
import numpy as np
from launcher.io import cgroup_memory
from launcher.trainer import row_files, server_commands
from launcher.trainer.server_tables import DenseShape, OptimizerRule, RowShape, TableRows

class Memory:
    shapes, shards, own = {"words": RowShape(2, "sgd")}, 4, range(4)
    rows = {"words": {n: np.full(SHAPE.columns[0], n, np.float32) for n in range(1, 41)}}
    dense, dense_shape = {"Param": np.zeros(3, np.float32)}, DenseShape({}, range(0), 7)
    unseen = []

    def shrink(self, table):
        pass

    def count_unseen(self, table):
        self.unseen.append(table)

    def size(self, table):
        return len(self.rows[table])

    def sample(self, table):
        return TableRows(np.array([1], np.uint64), np.stack([self.rows[table][1][5:]]))

    def read_shard(self, table, shard):
        ids = [n for n in sorted(self.rows[table]) if n % 4 == shard]
        values = np.stack([self.rows[table][n] for n in ids])
        return [(np.array(ids, np.uint64), [values]), (np.zeros(0, np.uint64), [])]

    def write_rows(self, table, ids, values):
        self.rows[table].update(zip(ids.tolist(), values.copy()))

SHAPE = RowShape(2, "sgd")
exec(sys.argv[1])
path = server_commands.socket_path(Path.cwd(), 0)
server_commands.serve_commands(Memory(), {"words": OptimizerRule("sgd", 0.1)}, 0, path)
print("ready", flush=True)
sys.stdin.read()
"""
SLOW = """
write_shard = row_files.write_shard
def slow(path, *more):
    (Path.cwd() / "writer").write_text(str(os.getpid()))
    while not (Path.cwd() / "go").exists():
        time.sleep(0.01)
    return write_shard(path, *more)
row_files.write_shard = slow
"""
SERVER = SERVER.replace("class Memory", 'SHAPE = RowShape(2, "sgd")\nclass Memory')


class Pserver:
    """A process that executes commands as a pserver, and the trainer's connection to it."""

    def __init__(self, folder: Path, change: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, change],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(CLONE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.servers = OwnServers.connect(folder, ServerLayout([("", 0)], range(1), SHARDS))

    def rows(self) -> dict[int, float]:
        """Return w[0] of each row in the files by its id."""
        paths = sorted((self.folder / "tables/words").iterdir())
        return {
            key: float(row[5])
            for path in paths
            for ids, values in row_files.read_shard(path, SHAPE, SHARDS)
            for key, row in zip(ids.tolist(), values, strict=True)
        }

    def writer(self) -> int:
        """Return the process id of the process that writes files, once it does (with SLOW)."""
        path = self.folder / "writer"
        return until(lambda: path.exists() and int(path.read_text() or 0), "a process that writes")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Pserver] = []

    def begin(change: str = "") -> Pserver:
        started.append(Pserver(tmp_path, change))
        return started[-1]

    yield begin
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def save(pserver: Pserver) -> None:
    pserver.servers.save(pserver.folder, [])
    pserver.servers.receive()


def is_gone(pid: int) -> bool:
    """Return whether a process has exited; one that nobody has waited for counts as exited."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_files_have_the_rows_of_the_moment_at_which_training_went_on(start) -> None:
    pserver = start(SLOW)
    [snapshot] = pserver.servers.save(pserver.folder, [])
    writer = pserver.writer()
    assert writer != pserver.process.pid
    assert (snapshot.paused, snapshot.samples["words"].ids.tolist()) == ("", [1])
    (pserver.folder / "go").touch()
    [written] = pserver.servers.receive()
    dense = "dense/part-000.npz"
    assert sorted(written) == [dense, *(f"tables/words/shard-{n:05d}.rows" for n in range(4))]
    assert written[dense].sha256 == files.sha256_file(pserver.folder / dense)
    assert pserver.rows() == {n: float(n) for n in range(1, 41)}
    assert until(lambda: is_gone(writer), "the end of the writer")
    changed = TableRows(np.array([1, 50], np.uint64), np.array([[9, 9], [8, 8]], np.float32))
    pserver.servers.fill("words", [changed])
    pserver.servers.save(pserver.folder, ["words"])
    [written] = pserver.servers.receive()
    assert pserver.rows() == {n: float(n) for n in range(2, 41)} | {1: 9.0, 50: 8.0}
    contents = cast(CheckpointContents, SimpleNamespace(files=written, servers=1))
    pserver.servers.load(pserver.folder, contents)
    damaged = pserver.folder / "tables/words/shard-00001.rows"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"shard-00001.rows has changed since it was saved"):
        pserver.servers.load(pserver.folder, contents)
    del written["tables/words/shard-00002.rows"]
    with pytest.raises(DataError, match=r"tables/words/shard-00002.rows is not listed in contents.json"):
        pserver.servers.load(pserver.folder, contents)


def test_rows_that_change_while_a_forked_process_writes_are_not_in_its_files(start) -> None:
    pserver = start(
        SLOW + "fork = os.fork\ndef changing():\n    child = fork()\n    if child:\n"
        "        Memory.rows['words'][1][:] = 99\n    return child\nos.fork = changing\n"
    )
    pserver.servers.save(pserver.folder, [])
    pserver.writer()
    (pserver.folder / "go").touch()
    pserver.servers.receive()
    assert pserver.rows()[1] == 1.0


def test_without_memory_for_a_copy_the_training_waits_for_the_files(start) -> None:
    pserver = start("cgroup_memory.free_bytes = lambda: 1 << 20")
    [snapshot] = pserver.servers.save(pserver.folder, [])
    assert len(list((pserver.folder / "tables/words").iterdir())) == 4, "before training goes on"
    assert "MiB of memory are needed to train meanwhile, and 1 are free" in snapshot.paused
    assert len(pserver.servers.receive()[0]) == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_writing_process_ends_with_its_server(start, number: signal.Signals) -> None:
    pserver = start(SLOW)
    pserver.servers.save(pserver.folder, [])
    writer = pserver.writer()
    pserver.process.send_signal(number)
    assert pserver.process.wait(20) == -number, "a server does not wait for the process that writes"
    assert until(lambda: is_gone(writer), "the end of the writer")
    with pytest.raises(GangError, match=r"pserver 1 of the job has exited"):
        pserver.servers.receive()


def test_a_killed_writer_is_an_error_and_the_server_can_save_again(start) -> None:
    pserver = start(SLOW)
    pserver.servers.save(pserver.folder, [])
    os.kill(pserver.writer(), signal.SIGKILL)
    with pytest.raises(GangError, match=r"was killed by SIGKILL.*increase resources\.requests\.memory"):
        pserver.servers.receive()
    (pserver.folder / "go").touch()
    pserver.servers.save(pserver.folder, [])
    assert len(pserver.servers.receive()[0]) == 5


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["forked", "waiting"])
def test_a_full_disk_is_a_storage_error(start, free: int) -> None:
    pserver = start(
        f"cgroup_memory.free_bytes = lambda: {free}\n"
        "def full(path, *_):\n    raise OSError(errno.ENOSPC, 'full', str(path))\nrow_files.write_shard = full"
    )
    with pytest.raises(StorageError, match=r"no space left while writing .*/tables/words/shard-"):
        save(pserver)
    with pytest.raises(StorageError):
        save(pserver)
