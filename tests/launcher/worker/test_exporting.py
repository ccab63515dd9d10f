"""The model out of the servers, by two trainers side by side: real Paddle on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from launcher.errors import DataError, StorageFailedError
from launcher.layout import Output, Position
from launcher.served import Model
from launcher.worker import model, outputs, parts, scorer
from launcher.worker.checkpoint import Save

from .conftest import needs_paddle
from .loopback import Loopback
from .test_outputs import ABOUT

pytestmark = needs_paddle
IDS_A_ROW = 100
ROWS = 30  # of each rank
PROGRAM = f"""
import numpy as np
import paddle
from launcher.worker.interface import Ids, Real

COLUMNS = ("first",)
LABEL = "label"
BLANK = {{}}

def inputs(job):
    return {{"ids": Ids({IDS_A_ROW}), "label": Real()}}

def parse(row, job):
    first = int(row["first"])
    ids = [(n * 0x9E3779B97F4A7C15) % 2**64 for n in range(first, first + {IDS_A_ROW})]
    return {{"ids": ids, "label": first / 6000}}

def network(data, job):
    whole = job.embedding(data["ids"], 3, "whole", pool="mean", spread=0.5)
    first = job.embedding(data["ids"][:, :1], 1, "first", pool="sum", spread=0.5)
    guess = paddle.static.nn.fc(paddle.concat([whole, first], 1), 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["label"]))

def metrics(prediction, label):
    return {{"error": float(np.mean(np.square(prediction - label)))}}

def optimizer(job):
    return paddle.optimizer.Adam(0.01)
"""
WROTE = re.compile(r"(\w+): wrote (\d+) of (\d+) rows")


def run(gang: Loopback) -> None:
    codes = gang.run()
    assert set(codes.values()) == {0}, f"{codes}\n{gang.log()[-3000:]}\n{gang.server_log()[-2000:]}"


@pytest.fixture
def gang(tmp_path: Path, port: int) -> Loopback:
    program = tmp_path / "program"
    program.mkdir()
    (program / "trainer_config.py").write_text(PROGRAM)
    data = []
    for rank in range(2):
        folder = tmp_path / "data" / str(rank)
        (folder / "tables").mkdir(parents=True)
        firsts = range(1 + rank * IDS_A_ROW, 1 + 2 * ROWS * IDS_A_ROW, 2 * IDS_A_ROW)
        (folder / "train.txt").write_text("".join(f"{first}\n" for first in firsts))
        (folder / "test.txt").write_text("1\n5901\n")
        data.append(folder)
    values = {"PADDLE_LAUNCHER_PASSES": "1", "PADDLE_LAUNCHER_BATCH_SIZE": "8", "CONF_PADDLE_PORT": str(port)}
    return Loopback(tmp_path, data, program, values=values)


def test_two_trainers_write_every_row_of_the_servers_and_do_so_again_from_the_save(gang: Loopback) -> None:
    run(gang)
    count = 2 * ROWS * IDS_A_ROW
    wrote = [{name: (int(own), int(all_)) for name, own, all_ in WROTE.findall(gang.log(n))} for n in (0, 1)]
    assert all(each["whole"][0] > 1000 for each in wrote), "side by side"
    assert sum(each["whole"][0] for each in wrote) == count
    assert {each["first"][1] for each in wrote} == {2 * ROWS}
    model = Model(gang.output.model)
    whole = model.tables["whole"]
    every = np.sort(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    assert (whole.ids == every).all()
    save = gang.output.save(Position(1))
    about = outputs.contents(save)["tables"]["whole"]
    files = sorted((save / "tables" / about["folder"]).iterdir())
    ids, vectors = parts.Rows.whole(parts.read_rows(files, 3, about["rule"]), 3)
    assert (ids == every).all()
    assert np.allclose(whole.vectors, vectors, rtol=parts.TOLERANCE)
    live = float(gang.output.metrics_csv.read_text().splitlines()[1].rpartition(",")[2])
    assert model.score["error"] == pytest.approx(live, rel=1e-4)
    assert json.loads((gang.output.model / "score.json").read_text()) == model.score
    before = whole.vectors.copy()

    shutil.rmtree(gang.output.model)
    again = replace(gang, resume=Position(1), attempt=1)
    run(again)
    assert "Pass=" not in again.log(), "nothing was left to train"
    assert np.allclose(Model(gang.output.model).tables["whole"].vectors, before, rtol=parts.TOLERANCE)
    assert not list(gang.output.root.glob(".model*"))


def test_ids_that_are_not_those_of_the_save_make_no_model(tmp_path: Path) -> None:
    from launcher.worker import exporting

    output = tmp_path / "output"
    save = Save(output, Position(1), 0)
    save.begin(100)
    held = [np.array(ids, np.uint64) for ids in ([7, 2**64 - 1, 3], [], [5])]
    for rank, ids in enumerate(held):
        save.add(rank, save.ids("000", rank, ids), {})
    config = tmp_path / "trainer_config.py"
    config.touch()
    save.end(
        config, 3, ABOUT | {"tables": {"whole": {"folder": "000", "rows": None, "width": 1, "rule": "sgd"}}}
    )
    table = SimpleNamespace(network=SimpleNamespace(tables=[SimpleNamespace(name="whole")]))
    ranks = [
        SimpleNamespace(output_dir=output, passes=1, rank=rank, trainers=2, attempt=0) for rank in (0, 1)
    ]
    found = exporting._ids(ranks[0], table, Position(1))["whole"]
    assert [ids.tolist() for ids in found] == [[3, 7, 2**64 - 1], [], [5]]
    flipped = Output(output).save(Position(1)) / "ids" / "000-0.npy"
    content = flipped.read_bytes()
    flipped.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StorageFailedError, match=r"ids/000-0\.npy has other bytes than were saved"):
        exporting._ids(ranks[0], table, Position(1))
    assert "other bytes" in str(outputs.fault(flipped.parents[1])), "the next attempt trains that pass again"
    exporting._ids(ranks[1], table, Position(1))  # each looks at its share of the files


def test_the_scorer_knows_of_no_server_and_says_what_is_wrong_also_when_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(folder: Path, test: Path) -> dict[str, float]:
        if test.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if test.name == "wrong":
            raise ZeroDivisionError(folder)
        return {"servers": float(any(name.startswith("PADDLE_") for name in os.environ)), "pid": os.getpid()}

    monkeypatch.setattr(model, "score", told)
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1")
    own = scorer.Scorer()
    for _ in range(2):
        found = own.score(tmp_path, tmp_path / "test")
        assert found["servers"] == 0
        assert found["pid"] != os.getpid()
    with pytest.raises(DataError, match=r"cannot be scored with .*/wrong: ZeroDivisionError"):
        own.score(tmp_path, tmp_path / "wrong")
    with pytest.raises(DataError, match=r"its process ended with exit code -9"):
        own.score(tmp_path, tmp_path / "killed")


def test_no_model_is_an_error_of_the_scorers_caller(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be scored with .*model.json"):
        scorer.Scorer().score(tmp_path, tmp_path / "test")


@pytest.mark.parametrize(
    ("mode", "rank", "said"), [("sync", 1, "writing"), ("geo", 0, "writing"), ("geo", 1, "waiting")]
)
def test_only_a_trainer_that_writes_a_part_of_the_model_says_so(
    mode, rank, said, tmp_path: Path, monkeypatch
) -> None:
    from launcher.worker import books, exporting, loop

    monkeypatch.setattr(exporting, "export", lambda *_, **__: None)
    here = SimpleNamespace(
        settings=SimpleNamespace(mode=mode, rank=rank),
        progress=books.Progress(tmp_path / "progress.json"),
        **dict.fromkeys(("program", "trainer", "config", "log")),
    )
    loop.Loop._export(here, Position(1))
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == said
