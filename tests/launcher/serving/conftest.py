"""A model of three classes, built without training, whose predictions follow from its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launcher.trainer import export, server_tables
from launcher.trainer import program_loader as programs

PROGRAM = """
import numpy as np
import paddle
from helper import LABELS
from launcher.program import Ids, Real, hash64

COLUMNS = ("kind", "words", "size")
LABEL = "label"
BLANK = {"kind": "a"}
OPTIONS = {"words": 4}

def inputs(job):
    return {"words": Ids(job.options["words"]), "size": Real(), "label": Real()}

def parse(row, job):
    if row["kind"] == "neutral":
        return None
    if row["size"] == "wide":
        return {"words": [], "size": [1.0, 2.0], "label": 0.0}
    words = [int(word) if word.isdecimal() else hash64(word) for word in row["words"].split()]
    return {"words": words, "size": float(row["size"]), "label": LABELS.index(row["kind"])}

def network(data, job):
    words = data["words"]
    pooled = job.embedding(words, 3, "word/vector", pool="sum")
    first = job.embedding(words[:, :1], 2, "first", pool="sum")  # ids that the network computes
    z = paddle.static.nn.fc(paddle.concat([pooled, first, data["size"]], 1), 3, name="score")
    loss = paddle.mean(paddle.square(z))
    return paddle.nn.functional.softmax(z), loss

def metrics(prediction, label):
    return {"mean": float(np.mean(prediction))}

def optimizer(job):
    return paddle.optimizer.Adam(0.1)

def describe(prediction):
    return f"most likely {LABELS[int(prediction.argmax())]}"
"""
ROW = {"words": "5 77", "size": 0.5}
HIGH = 2**64 - 1
TABLES = {
    "word/vector": {
        5: [1.0, -1.0, 0.5],
        77: [0.25, 2.0, -1.0],
        2**63: [3.0, 0.0, 0.0],
        HIGH: [0.0, 0.0, 9.0],
    },
    "first": {5: [-1.0, 1.0], 77: [0.5, 0.5]},
}


def write_variant(source: Path, target: Path, factor: float) -> Path:
    """Replace the folder `target` by a copy of a model with vectors multiplied by `factor`, as a training does."""
    new = target.with_name("new")
    shutil.copytree(source, new)
    vectors = np.load(next(new.glob("embeddings/word*/vectors.npy")), mmap_mode="r+")
    vectors *= factor
    vectors.flush()
    description = json.loads((new / "model.json").read_text())
    (new / "model.json").write_text(json.dumps(description | {"created": factor}))
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return target


def read_metric(text: str, name: str) -> str:
    """Return the value of a metric, with its labels in `name`, in a text of /metrics."""
    return next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} "))


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py deselects or skips tests of Paddle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the model of `made` as tests of Paddle, which builds this model."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "made" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.paddle)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Build a model; return its `folder` and `expected(words, size)`, which calculates the probabilities of a row."""
    root = tmp_path_factory.mktemp("served")
    (root / "program").mkdir()
    config = root / "program" / "trainer_config.py"
    config.write_text(PROGRAM)
    (root / "program" / "helper.py").write_text('LABELS = ["a", "b", "c"]\n')
    import paddle

    from launcher.trainer.network import build_network

    paddle.enable_static()
    program = programs.load_program(config, root / "tables")
    network = build_network(program, "served")
    rng = np.random.default_rng(3)
    block = network.main.global_block()
    values = {name: rng.normal(size=block.var(name).shape).astype(np.float32) for name in network.dense()}
    tables = {
        name: server_tables.TableRows(
            np.array(list(rows), np.uint64), np.array(list(rows.values()), np.float32)
        )
        for name, rows in TABLES.items()
    }
    folder = root / "model"
    export.export_from_memory(folder, program, values, tables, lambda _: {"mean": 0.5})
    weight = next(value for name, value in values.items() if value.ndim == 2)
    bias = next(value for name, value in values.items() if value.ndim == 1)

    def expected(words: list[int], size: float) -> np.ndarray:
        pooled = np.sum([TABLES["word/vector"].get(word, [0] * 3) for word in [*words, 0]], axis=0)
        first = np.array(TABLES["first"].get(words[0] if words else 0, [0, 0]))
        z = np.concatenate([pooled, first, [size]]) @ weight + bias
        return np.exp(z - z.max()) / np.exp(z - z.max()).sum()

    return SimpleNamespace(folder=folder, expected=expected, program=program)


@pytest.fixture(scope="module")
def moto_client() -> Iterator[Any]:
    """Start moto, which answers in this process; return a client of S3. Once in a module: a start takes 0.2 s."""
    moto = pytest.importorskip("moto", reason="moto is only in the environment of the tests")
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(key, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        with moto.mock_aws():
            yield boto3.client("s3")


@pytest.fixture
def s3(moto_client: Any) -> Iterator[Any]:
    """Create an empty bucket `bucket`, which is removed at the end of the test; return a client of S3."""
    moto_client.create_bucket(Bucket="bucket")
    yield moto_client
    for each in moto_client.list_objects_v2(Bucket="bucket").get("Contents", []):
        moto_client.delete_object(Bucket="bucket", Key=each["Key"])
    moto_client.delete_bucket(Bucket="bucket")
