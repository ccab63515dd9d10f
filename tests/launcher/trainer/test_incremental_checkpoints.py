"""Tests of `training.incrementalCheckpoints` on real servers: saving changed rows, restoring a chain."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from launcher.io import checkpoints
from launcher.paths import Position
from launcher.trainer import server_tables
from launcher.trainer.initial_model import InitialModel
from testkit.shared_fixtures import create_once

from .conftest import stage
from .loopback_training import SHARDS, LoopbackTraining, Process
from .test_embedding_tables import PROGRAM, gang, saved
from .test_save_and_restore import flip

pytestmark = pytest.mark.paddle
NAMES = ("adam", "sgd", "adagrad", "admitted", "kept", "shared")
INCREMENTAL = [Position(1, 3), Position(1, 6), Position(1, 9)]
"""The incremental checkpoints after the full one at the end of pass 1."""
END = Position(2)
ON = {
    "PASSES": "2",
    "CHECKPOINT_EVERY_BATCHES": "3",
    "INCREMENTAL_CHECKPOINTS": "3",
    "CONF_PADDLE_PORTS_NUM": "2",
}
State = dict[str, dict[int, list[float]]]


def ten_batches() -> list[str]:
    """Return rows with mostly different ids; no slope is 0, so that each look-up changes its row."""
    rng = random.Random(1)  # noqa: S311
    lines = []
    for row in range(40):
        slopes = " ".join(f"{rng.choice((-1, 1)) * rng.uniform(0.5, 2):.3f}" for _ in range(4))
        lines.append(f"{100 + row}\t{1 + row % 7}\t{slopes}\t{500 + row % 9}\t1")
    return lines


def prepare_training(root: Path, ranks: int = 1, **values: str) -> LoopbackTraining:
    text = PROGRAM.replace('("evicted", {"evict": 1})', '("kept", {})')
    text = text.replace("spread=0.5", "spread=0.0").replace('"spread": 0.5', '"spread": 0.0')  # no chance
    started = gang(root, text, ranks, **ON | values)
    for data in started.data:
        stage(data, ten_batches(), ten_batches())
    return started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> LoopbackTraining:
    """Return a completed run with incremental checkpoints, created once for all of pytest's processes."""
    return create_once(
        tmp_path_factory, "finished", lambda: prepare_training(tmp_path_factory.mktemp("finished")).finish()
    )


@pytest.fixture
def interrupted(finished: LoopbackTraining, tmp_path: Path) -> LoopbackTraining:
    """Return a copy of `finished` that ended after its last incremental checkpoint, ready for its next start."""
    next_start = finished.copied(tmp_path / "interrupted", None)
    shutil.rmtree(next_start.output.checkpoint(END))
    shutil.rmtree(next_start.output.model)
    return next_start


def state(of: LoopbackTraining, at: Position) -> State:
    """Return each row of a checkpoint with its chain: appearances, weights and optimizer state."""
    chain = checkpoints.read_contents(of.output.checkpoint(at)).chain
    members = [Position(1) if "batch" not in m.folder else Position(1, int(m.folder[-7:])) for m in chain]
    found: State = {}
    for name in NAMES:
        rows: dict[int, list[float]] = {}
        for member in [*members, at]:
            rows |= saved(of, member, name)
        found[name] = {key: row[3:] for key, row in rows.items()}
    return found


def assert_alike(found: State, expected: State) -> None:
    for name in NAMES:
        assert set(found[name]) == set(expected[name]), name
        for key, row in expected[name].items():
            assert np.allclose(found[name][key], row, rtol=1e-3, atol=1e-4), (name, key)


def size(of: LoopbackTraining, at: Position) -> int:
    """Return the bytes of the embedding tables' files."""
    about = checkpoints.read_contents(of.output.checkpoint(at))
    places = tuple(f"tables/{table.folder}/" for table in about.tables.values())
    return sum(entry.bytes for name, entry in about.files.items() if name.startswith(places))


def test_incremental_checkpoints_hold_changed_rows_and_other_servers_resume_from_them(
    finished: LoopbackTraining, interrupted: LoopbackTraining, tmp_path: Path
) -> None:
    plain = prepare_training(tmp_path / "plain", INCREMENTAL_CHECKPOINTS="0").finish()
    order = [Position(1), *INCREMENTAL]
    for before, at in itertools.pairwise(order):
        for name in NAMES:
            old, new = saved(plain, before, name), saved(plain, at, name)
            changed = {key for key, row in new.items() if key not in old or old[key][3:] != row[3:]}
            assert 0 < len(changed) < len(new)
            assert set(saved(finished, at, name)) == changed, (at, name)
        assert size(finished, at) < size(finished, Position(1))
        assert_alike(state(finished, at), state(plain, at))
    versions = {at: checkpoints.read_contents(plain.output.checkpoint(at)).version for at in order}
    assert set(versions.values()) == {checkpoints.VERSION}
    assert not any(checkpoints.read_contents(plain.output.checkpoint(at)).chain for at in order)
    chains = [
        [link.folder for link in checkpoints.read_contents(finished.output.checkpoint(at)).chain]
        for at in [Position(0, 3), Position(0, 6), Position(1), *INCREMENTAL, END]
    ]
    names = [at.folder for at in order]
    assert chains == [[], [Position(0, 3).folder], [], names[:1], names[:2], names[:3], []]

    assert checkpoints.newest_checkpoint(interrupted.output.root) == INCREMENTAL[-1]
    resumed = interrupted.next_attempt(INCREMENTAL[-1], CONF_PADDLE_PORTS_NUM="3").finish()
    assert "pserver 3 of 3 serves on" in resumed.server_log(server=2)
    assert f"resumed from {INCREMENTAL[-1].folder}; the servers' values are verified" in resumed.log()
    assert_alike(state(resumed, END), state(plain, END))


def test_a_run_killed_during_an_incremental_save_resumes_from_the_one_before(
    finished: LoopbackTraining, tmp_path: Path
) -> None:
    started = prepare_training(tmp_path / "killed")

    def kill(running: dict[str, Process]) -> None:
        trainer = running["0/trainer"]
        if not started.output.checkpoint(INCREMENTAL[0]).exists():
            return
        while trainer.poll() is None and not started.output.unfinished(INCREMENTAL[1], 0).exists():
            time.sleep(0.002)
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)

    assert started.run(watch=kill)["0/trainer"] == -signal.SIGKILL
    assert checkpoints.newest_checkpoint(started.output.root) == INCREMENTAL[0]
    resumed = started.next_attempt(INCREMENTAL[0]).finish()
    assert not checkpoints.read_contents(resumed.output.checkpoint(INCREMENTAL[1])).chain, (
        "the first checkpoint of an attempt is full"
    )
    assert_alike(state(resumed, END), state(finished, END))


def test_two_trainers_save_and_restore_a_chain_in_async_mode(tmp_path: Path) -> None:
    one_each = {"INCREMENTAL_CHECKPOINTS": "2", "CONF_PADDLE_PORTS_NUM": "1"}
    started = prepare_training(tmp_path, 2, MODE="async", **one_each).finish()
    about = [checkpoints.read_contents(started.output.checkpoint(at)) for at in INCREMENTAL]
    assert [bool(contents.chain) for contents in about] == [True, True, False], (
        "a full checkpoint after two incremental ones"
    )
    for folder in (
        started.output.checkpoint(INCREMENTAL[2]),
        started.output.checkpoint(END),
        started.output.model,
    ):
        shutil.rmtree(folder)
    resumed = started.next_attempt(INCREMENTAL[1]).finish()
    assert f"resumed from {INCREMENTAL[1].folder}; the servers' values are verified" in resumed.log(1)


def test_a_changed_member_of_a_chain_makes_only_later_checkpoints_unusable(
    interrupted: LoopbackTraining,
) -> None:
    part = sorted((interrupted.output.checkpoint(INCREMENTAL[1]) / "tables/000").iterdir())[2]
    flip(part)
    assert checkpoints.newest_checkpoint(interrupted.output.root) == INCREMENTAL[2], "its size is unchanged"
    resumed = interrupted.next_attempt(INCREMENTAL[2])
    assert resumed.run()["0/trainer"] == 71
    assert f"training cannot resume from {INCREMENTAL[1].folder}: " in resumed.log()
    assert checkpoints.newest_checkpoint(interrupted.output.root) == INCREMENTAL[0]


def test_an_incremental_checkpoint_lists_rows_of_every_member_of_its_chain(
    interrupted: LoopbackTraining,
) -> None:
    """A restore that left one of them out would be detected."""
    about = checkpoints.read_contents(interrupted.output.checkpoint(INCREMENTAL[2]))
    last = saved(interrupted, INCREMENTAL[2], "sgd")
    for at in (Position(1), *INCREMENTAL[:2]):
        own = set(saved(interrupted, at, "sgd")) - set(last)
        assert own & {n % 2**64 for n in about.rows["sgd"].ids}, at


def test_an_initial_model_is_read_from_a_chain_of_checkpoints(interrupted: LoopbackTraining) -> None:
    asked = SimpleNamespace(init_model="job/output", job_path=interrupted.root, work_dir=interrupted.root)
    found = InitialModel.find(asked)  # type: ignore[arg-type]
    assert found.source == f"job/output/{INCREMENTAL[-1].folder}"
    expected = state(interrupted, INCREMENTAL[-1])["sgd"]
    for shards in (SHARDS, 7):  # the saved number of shards, and another one
        rows = server_tables.TableRows.concatenate(found.tables["sgd"].read(shards, range(shards)), 4)
        assert rows.ids.tolist() == sorted(expected)
        assert np.allclose(rows.vectors, [expected[key][2:] for key in rows.ids.tolist()])
