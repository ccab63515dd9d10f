"""Tests of checkpoints that all processes of a script write together (`all_ranks`), with and without the launcher."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from launcher.errors import DeadlineError
from launcher.io import checkpoints, files, rank_exchange
from launcher.paths import Position
from launcher.program import ScriptRun
from launcher.supervisor.peers.addresses import PodNetwork
from launcher.supervisor.peers.peer_server import PeerServer, TrainerStore

RANKS = 3
T = TypeVar("T")


@pytest.fixture(params=["files", "store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the store of rank 0's launcher as a script gets it; "" without the launcher."""
    if request.param == "files":
        yield ""
        return
    network = PodNetwork()
    network.bind_host = "127.0.0.1"
    server = PeerServer(network, 0, {})
    server.trainer_store = TrainerStore(tmp_path / "request")
    server.trainer_store.open("/trainers/0/secret")
    with contextlib.closing(server):
        yield f"127.0.0.1:{server.socket.getsockname()[1]}/trainers/0/secret/_checkpoint/"


def start_runs(root: Path, store: str, resume: str = "", **env: str) -> list[ScriptRun]:
    """Return the `ScriptRun` of each process."""
    base = {
        "PADDLE_LAUNCHER_OUTPUT_DIR": str(root / "output"),
        "PADDLE_LAUNCHER_RESUME": resume,
        "PADDLE_LAUNCHER_REQUESTS": store,
        "WORLD_SIZE": str(RANKS),
    }
    return [ScriptRun({**base, **env, "RANK": str(rank)}) for rank in range(RANKS)]


def in_all(runs: list[ScriptRun], do: Callable[[ScriptRun], T]) -> list[T]:
    """Call `do` in all processes at the same time; return the results, or raise the first error."""
    with ThreadPoolExecutor(RANKS) as pool:
        return [future.result() for future in [pool.submit(do, run) for run in runs]]


def save_part(run: ScriptRun) -> None:
    with run.save(1, 0, all_ranks=True) as folder:
        (folder / f"part-{run.rank}").write_text(f"part of {run.rank}")


def test_one_checkpoint_has_the_parts_of_all_processes_and_each_verifies_a_share(
    tmp_path: Path, store: str
) -> None:
    runs = start_runs(tmp_path, store)
    in_all(runs, save_part)
    folder = tmp_path / "output" / Position(1).folder
    contents = json.loads((folder / "contents.json").read_text())
    assert contents["processes"] == RANKS
    assert {name: one["sha256"] for name, one in contents["files"].items()} == {
        f"part-{rank}": files.sha256_file(folder / f"part-{rank}") for rank in range(RANKS)
    }
    (folder / "part-1").write_text("part of 9")
    assert [checkpoints.find_damage(folder, rank, RANKS) for rank in (0, 2)] == [None, None]
    assert "part-1 has changed" in (checkpoints.find_damage(folder, 1, RANKS) or "")
    assert "part-1 has changed" in (checkpoints.find_damage(folder) or ""), "a single process reads all files"


def test_a_later_checkpoint_of_the_same_place_replaces_it(tmp_path: Path, store: str) -> None:
    runs = start_runs(tmp_path, store)
    for _ in range(3):
        in_all(runs, save_part)
    assert checkpoints.finished_checkpoints(tmp_path / "output") == [Position(1)]
    assert in_all(start_runs(tmp_path, "", Position(1).folder), lambda run: run.start) == [(1, 0)] * RANKS


def test_without_the_part_of_one_process_there_is_no_checkpoint(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_exchange, "RANKS_SECONDS", 0.5)

    def save_unless_1(run: ScriptRun) -> int | str | None:
        try:
            with run.save(1, 0, all_ranks=True) as folder:
                (folder / f"part-{run.rank}").write_text("x")
                {0: "x", 2: "x"}[run.rank]  # process 1 fails
        except SystemExit as error:
            return error.code
        except KeyError:
            return "failed"
        return None

    code = DeadlineError.exit_code
    assert in_all(start_runs(tmp_path, store), save_unless_1) == [code, "failed", code]
    assert not list((tmp_path / "output").glob("*pass-*")), "neither a checkpoint nor a temporary folder"


def test_processes_that_save_at_different_places_fail_with_both_places(tmp_path: Path, store: str) -> None:
    def save_somewhere(run: ScriptRun) -> None:
        with run.save(1, run.rank // 2, all_ranks=True):
            pass

    with pytest.raises(ValueError, match=r"process 0 saves at \[1, 0\], but process 2 at \[1, 1\]"):
        in_all(start_runs(tmp_path, store), save_somewhere)


def test_all_processes_get_the_answer_of_process_0_whether_to_save(tmp_path: Path, store: str) -> None:
    runs = start_runs(tmp_path, store, PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES="2")

    def train(run: ScriptRun) -> list[bool]:
        asked = []
        for step in range(3):
            for _ in range(1 if run.rank == 0 else 9):  # only the steps of process 0 count
                run.report(0, step + 1, loss=1.0, samples=1)
            asked.append(run.should_save(all_ranks=True))
            if asked[-1]:
                save_part(run)
        return asked

    assert in_all(runs, train) == [[False, True, False]] * RANKS


def test_values_that_the_store_does_not_accept_are_reported(tmp_path: Path) -> None:
    network = PodNetwork()
    network.bind_host = "127.0.0.1"
    server = PeerServer(network, 0, {})
    server.trainer_store = TrainerStore(tmp_path / "request")
    server.trainer_store.open("/trainers/0/secret")
    with contextlib.closing(server):
        address = f"127.0.0.1:{server.socket.getsockname()[1]}/trainers/0/secret/"
        exchange = rank_exchange.RankExchange(0, 2, address, tmp_path / "values")
        with pytest.raises(ValueError, match=r"a test: 1,\d+,\d+ bytes are too much to exchange"):
            exchange.exchange("x" * 1_100_000, "a test")
