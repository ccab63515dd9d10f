"""`training.deltaSaves` on real servers: saves of what changed, and loads of a base with its deltas."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from launcher.layout import Position
from launcher.worker import outputs, parts
from launcher.worker.initial import Initial
from tests.once import once

from .conftest import listens, needs_paddle
from .forked import SHARDS
from .loopback import Loopback, Process
from .test_saves import flip
from .test_tables import PROGRAM, gang, run, saved, stage

pytestmark = needs_paddle
NAMES = ("adam", "sgd", "adagrad", "admitted", "kept", "shared")
DELTAS = [Position(1, 3), Position(1, 6), Position(1, 9)]
"""Behind the base at the end of pass 1."""
END = Position(2)
ON = {
    "PADDLE_LAUNCHER_PASSES": "2",
    "PADDLE_LAUNCHER_SAVE_EVERY_BATCHES": "3",
    "PADDLE_LAUNCHER_DELTA_SAVES": "3",
    "CONF_PADDLE_PORTS_NUM": "2",
}
State = dict[str, dict[int, list[float]]]


def free() -> int:
    first = random.randint(20000, 30000)  # noqa: S311
    return free() if any(listens("127.0.0.1", first + i) for i in range(10)) else first


def ten_batches() -> list[str]:
    """Each of other ids, but for a few; no slope is 0, so that each look-up changes its row."""
    rng = random.Random(1)  # noqa: S311
    lines = []
    for row in range(40):
        slopes = " ".join(f"{rng.choice((-1, 1)) * rng.uniform(0.5, 2):.3f}" for _ in range(4))
        lines.append(f"{100 + row}\t{1 + row % 7}\t{slopes}\t{500 + row % 9}\t1")
    return lines


def begin(root: Path, ranks: int = 1, **values: str) -> Loopback:
    program = root / "own"
    program.mkdir(parents=True)
    text = PROGRAM.replace('("evicted", {"evict": 1})', '("kept", {})')
    text = text.replace("spread=0.5", "spread=0.0").replace('"spread": 0.5', '"spread": 0.0')  # no chance
    (program / "trainer_config.py").write_text(text)
    started = gang(root, program, free(), ranks, **ON | values)
    for data in started.data:
        stage(data, ten_batches())
    return started


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Loopback:
    """A run with deltas, to its end: once for all of pytest's processes, which only look at it."""
    return once(tmp_path_factory, "whole", lambda: run(begin(tmp_path_factory.mktemp("whole"))))


@pytest.fixture
def cut(whole: Loopback, tmp_path: Path) -> Loopback:
    """The same as if it had ended behind its last delta; its next start."""
    root = tmp_path / "cut"
    shutil.copytree(whole.root, root)
    gone = replace(whole, root=root, attempt=1, values=whole.values | {"CONF_PADDLE_PORT": str(free())})
    shutil.rmtree(gone.output.save(END))
    shutil.rmtree(gone.output.model)
    return gone


def state(of: Loopback, at: Position) -> State:
    """What a save has of each row, with what it continues: appearances, weights and their optimizer's."""
    chain = outputs.contents(of.output.save(at)).get("chain", [])
    members = [
        Position(1) if "batch" not in m["folder"] else Position(1, int(m["folder"][-7:])) for m in chain
    ]
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


def size(of: Loopback, at: Position) -> int:
    """Bytes of the embedding tables' files."""
    about = outputs.contents(of.output.save(at))
    places = tuple(f"tables/{table['folder']}/" for table in about["tables"].values())
    return sum(entry["bytes"] for name, entry in about["files"].items() if name.startswith(places))


def test_a_delta_is_the_rows_that_changed_and_a_resume_by_other_servers_goes_on_as_without(
    whole: Loopback, cut: Loopback, tmp_path: Path
) -> None:
    plain = run(begin(tmp_path / "plain", PADDLE_LAUNCHER_DELTA_SAVES="0"))
    order = [Position(1), *DELTAS]
    for before, at in itertools.pairwise(order):
        for name in NAMES:
            old, new = saved(plain, before, name), saved(plain, at, name)
            changed = {key for key, row in new.items() if key not in old or old[key][3:] != row[3:]}
            assert 0 < len(changed) < len(new)
            assert set(saved(whole, at, name)) == changed, (at, name)
        assert size(whole, at) < size(whole, Position(1))
        assert_alike(state(whole, at), state(plain, at))
    versions = {at: outputs.contents(plain.output.save(at))["version"] for at in order}
    assert set(versions.values()) == {outputs.VERSION}
    assert not any("chain" in outputs.contents(plain.output.save(at)) for at in order)
    chains = [
        [member["folder"] for member in outputs.contents(whole.output.save(at)).get("chain", ())]
        for at in [Position(0, 3), Position(0, 6), Position(1), *DELTAS, END]
    ]
    names = [at.folder for at in order]
    assert chains == [[], [Position(0, 3).folder], [], names[:1], names[:2], names[:3], []]

    assert outputs.newest_save(cut.output.root) == DELTAS[-1]
    more = {"CONF_PADDLE_PORTS_NUM": "3"}
    resumed = run(replace(cut, resume=DELTAS[-1], values=cut.values | more))
    assert f"resumed from {DELTAS[-1].folder}: what the servers have is what was saved" in resumed.log()
    assert_alike(state(resumed, END), state(plain, END))


def test_a_run_killed_inside_a_delta_goes_on_from_the_delta_before(whole: Loopback, tmp_path: Path) -> None:
    started = begin(tmp_path / "killed")

    def kill(running: dict[str, Process]) -> None:
        trainer = running["0/trainer"]
        if not started.output.save(DELTAS[0]).exists():
            return
        while trainer.poll() is None and not started.output.unfinished(DELTAS[1], 0).exists():
            time.sleep(0.002)
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)

    assert started.run(watch=kill)["0/trainer"] == -signal.SIGKILL
    assert outputs.newest_save(started.output.root) == DELTAS[0]
    resumed = run(replace(started, resume=DELTAS[0], attempt=1))
    assert "chain" not in outputs.contents(resumed.output.save(DELTAS[1])), "an attempt begins with a base"
    assert_alike(state(resumed, END), state(whole, END))


def test_two_trainers_save_and_load_a_chain_in_async(tmp_path: Path) -> None:
    started = run(begin(tmp_path, 2, PADDLE_LAUNCHER_MODE="async", PADDLE_LAUNCHER_DELTA_SAVES="2"))
    about = [outputs.contents(started.output.save(at)) for at in DELTAS]
    assert ["chain" in contents for contents in about] == [True, True, False], "a base after two deltas"
    assert len(set(about[1]["rows"]["sgd"]["ids"])) > len(saved(started, DELTAS[1], "sgd")), "older ones, too"
    for folder in (started.output.save(DELTAS[2]), started.output.save(END), started.output.model):
        shutil.rmtree(folder)
    resumed = run(replace(started, resume=DELTAS[1], attempt=1))
    assert f"resumed from {DELTAS[1].folder}: what the servers have is what was saved" in resumed.log(1)


def test_a_member_of_a_chain_with_other_bytes_costs_the_saves_behind_it_only(cut: Loopback) -> None:
    part = sorted((cut.output.save(DELTAS[1]) / "tables/000").iterdir())[5]
    flip(part)
    assert outputs.newest_save(cut.output.root) == DELTAS[2], "its length is right"
    assert replace(cut, resume=DELTAS[2]).run()["0/trainer"] == 71
    assert f"{DELTAS[1].folder} cannot be gone on from" in cut.log()
    assert outputs.newest_save(cut.output.root) == DELTAS[0]


def test_a_delta_proves_rows_of_each_save_that_it_continues(cut: Loopback) -> None:
    """So a load that left one of them out would be seen."""
    about = outputs.contents(cut.output.save(DELTAS[2]))
    last = saved(cut, DELTAS[2], "sgd")
    for at in (Position(1), *DELTAS[:2]):
        own = set(saved(cut, at, "sgd")) - set(last)
        assert own & {n % 2**64 for n in about["rows"]["sgd"]["ids"]}, at


def test_a_new_run_begins_with_a_delta_and_what_it_continues(cut: Loopback) -> None:
    asked = SimpleNamespace(init_from="output", job_path=cut.root, work_dir=cut.root)
    found = Initial.find(asked)  # type: ignore[arg-type]
    assert found.source == f"output/{DELTAS[-1].folder}"
    expected = state(cut, DELTAS[-1])["sgd"]
    for shards in (SHARDS, 7):  # as they lie, and all files for each
        rows = parts.Rows.whole(found.tables["sgd"].stretches(shards, range(shards)), 4)
        assert rows.ids.tolist() == sorted(expected)
        assert np.allclose(rows.vectors, [expected[key][2:] for key in rows.ids.tolist()])


def test_a_table_that_forgets_rows_is_refused_by_name(tmp_path: Path) -> None:
    started = begin(tmp_path)
    (started.program / "trainer_config.py").write_text(PROGRAM)
    assert started.run()["0/trainer"] == 64
    assert "training.deltaSaves (PADDLE_LAUNCHER_DELTA_SAVES) is 3" in started.log()
    assert "the table evicted of the program forgets rows" in started.log()
