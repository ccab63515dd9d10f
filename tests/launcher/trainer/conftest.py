"""Small generated data sets in the layout of staged data."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.dataprep.csv_records import RowPlaces
from launcher.trainer import record_files
from launcher.trainer.program_loader import TrainingProgram, load_program
from local.paths import CLONE
from testkit.shared_fixtures import create_once

from .loopback_training import LoopbackTraining, listens, prepare_training

GOOD = ["great", "lovely", "happy", "wonderful", "best", "enjoy", "sunny", "sweet"]
BAD = ["awful", "sad", "terrible", "worst", "hate", "broken", "rainy", "bitter"]
PLAIN = ["the", "a", "car", "day", "work", "train", "house", "it", "was", "with", "and", "then", "very"]


def texts(rows: int, seed: int) -> list[str]:
    """Return lines `sentiment<TAB>text`; the words decide the sentiment, and a tenth is neutral."""
    rng = random.Random(seed)  # noqa: S311
    lines = []
    for _ in range(rows):
        kind = rng.choice(["positive"] * 5 + ["negative"] * 4 + ["neutral"])
        own = {"positive": GOOD, "negative": BAD, "neutral": PLAIN}[kind]
        words = rng.choices(own, k=2) + rng.choices(PLAIN, k=6)
        rng.shuffle(words)
        lines.append(f"{kind}\t{' '.join(words)}")
    return lines


def ratings(rows: int, seed: int) -> list[str]:
    """Return lines `user<TAB>film<TAB>rating`; the film mostly decides the rating."""
    rng = random.Random(seed)  # noqa: S311
    lines = []
    for _ in range(rows):
        user, film = rng.randint(1, 30), rng.randint(1, 20)
        lines.append(f"{user}\t{film}\t{min(5, max(1, film % 5 + 1 + rng.choice([0, 0, 0, 1, -1])))}")
    return lines


def stage(folder: Path, train: list[str], test: list[str]) -> Path:
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in train))
    (folder / "test.txt").write_text("".join(f"{line}\n" for line in test))
    users = "".join(f"{i}\t{15 + i}\t{'MF'[i % 2]}\tjob{i % 3}\t1000\n" for i in range(1, 31))
    films = "".join(f"{i}\tFilm {i}\t{1950 + 2 * i}\tDrama War\n" for i in range(1, 21))
    (folder / "tables" / "ml-100k.user").write_text("user_id\tage\tgender\toccupation\tzip\n" + users)
    (folder / "tables" / "ml-100k.item").write_text("item_id\tmovie_title\trelease_year\tclass\n" + films)
    return folder


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., list[Path]]:
    """Return a function (kind, ranks, rows) that writes one folder per rank with a common test set."""

    def make(kind: str = "texts", ranks: int = 1, rows: int = 600) -> list[Path]:
        maker = {"texts": texts, "ratings": ratings}[kind]
        return [stage(tmp_path / "data" / str(i), maker(rows, i + 1), maker(200, 99)) for i in range(ranks)]

    return make


STUBS = """
import numpy as np
from launcher.program import Ids, Real

LABEL = "label"

def network(data, job): ...
def metrics(prediction, label): ...
def optimizer(job): ...
"""
"""The beginning of a program that is not trained: what follows replaces some of these parts, and adds the others."""
TRAINED = (
    STUBS
    + """
import paddle

def metrics(prediction, label):
    return {"rmse": float(np.sqrt(np.mean(np.square(prediction - label))))}

def optimizer(job):
    return paddle.optimizer.SGD(0.01)
"""
)
"""The beginning of a program that is trained."""


def write_program(folder: Path, text: str) -> Path:
    """Write a training program to a new folder, and return its file."""
    folder.mkdir(parents=True)
    path = folder / "trainer_config.py"
    path.write_text(text)
    return path


def prepare_own(
    root: Path, text: str, rows: list[list[str]], test: list[str] | None = None, **values: Any
) -> LoopbackTraining:
    """Return a training of the program `text` with the `rows` of each rank; `test`: by default those of the rank."""
    program = write_program(root / "own", text).parent
    data = [stage(root / "data" / str(rank), own, test or own) for rank, own in enumerate(rows)]
    return prepare_training(root, data, program, **values)


def load(path: Path, *arguments: str) -> TrainingProgram:
    """Load a program with the side tables in its folder `tables`."""
    return load_program(path, path.parent / "tables", arguments)


def parse(lines: list[str], program: TrainingProgram) -> record_files.Arrays:
    """Parse lines of the file `f`."""
    return record_files.split_inputs(record_files.parse_records(lines, program, RowPlaces("f"))[0])


def run_python(script: str, *arguments: str) -> str:
    """Run Python code in a new process, and return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoopbackTraining, set[int]]:
    """Return a completed run of program quick_start on two servers, and the ports that listened, from `port` on.

    It has two passes and a checkpoint inside each of them. All of pytest's processes share it: continue a copy of it.
    """
    root = tmp_path_factory.mktemp("quick-start")

    def train() -> tuple[LoopbackTraining, set[int]]:
        seen = set[int]()
        data = [stage(root / "data" / "0", texts(600, 1), texts(200, 99))]
        values = {
            "passes": 2,
            "batch_size": 64,
            "args": ["--learning_rate=0.05"],
            "checkpoint_every_batches": 8,
        }
        logs = {"log_period": 5, "dot_period": 2, "ports_num": 2, "ports_num_sparse": 2}
        gang = prepare_training(root, data, **values, **logs)
        port = gang.settings(0).port
        gang.finish(watch=lambda _: seen.update(i for i in range(-1, 5) if listens("127.0.0.1", port + i)))
        return gang, seen

    return create_once(tmp_path_factory, "quick-start", train)
