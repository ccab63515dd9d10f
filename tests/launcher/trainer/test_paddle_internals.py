"""Tests of Paddle's private parts: its version, and the largest message between trainer and server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import SettingsError
from launcher.paths import Position
from launcher.runtimes.fleet import FleetRuntime
from launcher.trainer import row_files
from launcher.trainer.server_tables import RowShape

from .conftest import TRAINED, prepare_own
from .loopback_training import LoopbackTraining

pytestmark = pytest.mark.paddle
EACH, ROWS = 4000, 40
PROGRAM = (
    TRAINED
    + """
from launcher.trainer import paddle_internals

COLUMNS = ("first",)
OPTIONS = {"limit": 0}

def inputs(job):
    return {"label": Real(), "ids": Ids(4000)}

def parse(row, job):
    first = int(row["first"]) * 4000
    return {"label": 1.0, "ids": list(range(first + 1, first + 4001))}

def network(data, job):
    if job.options["limit"]:
        paddle_internals.raise_message_limit(job.options["limit"])
    found = job.embedding(data["ids"], 128, "wide", pool="mean")
    guess = paddle.static.nn.fc(found, 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["label"]))
"""
)


def gang(tmp_path: Path, *options: str) -> LoopbackTraining:
    """Return a run with one batch of 160,000 ids of width 128: 85 MB of gradients and 82 MB of vectors."""
    rows = [str(n) for n in range(ROWS)]
    more = {"BATCH_SIZE": str(ROWS), "ARGS": json.dumps(options)}
    return prepare_own(tmp_path, PROGRAM, [rows], rows[:2], **more)


@pytest.mark.long
def test_a_message_above_the_default_limit_of_brpc_arrives_completely(tmp_path: Path) -> None:
    started = gang(tmp_path)
    codes = started.run()
    assert set(codes.values()) == {0}, f"{codes}\n{started.log()[-3000:]}\n{started.server_log()[-2000:]}"
    parts = (started.output.checkpoint(Position(1)) / "tables" / "wide").iterdir()
    shape = RowShape(128, "sgd")
    assert (
        sum(len(ids) for path in parts for ids in row_files.map_ids(path, shape, verify=True)) == EACH * ROWS
    )


def test_a_dropped_message_leaves_a_fatal_line_of_the_runtime(tmp_path: Path) -> None:
    started = gang(tmp_path, "--limit=8000000")
    seen: list[str] = []

    def watch(_: Any) -> None:
        logs = started.log() + started.server_log()
        seen.extend(each.pattern for each in FleetRuntime().log_meanings if each.search(logs))
        if seen:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        started.run(60, watch=watch)
    assert "Set max_body_size to allow bigger messages" in seen


def one_table(width: int, ids: int) -> Any:
    return SimpleNamespace(tables=[SimpleNamespace(name="t", width=width)], ids={"t": ids})


def test_batches_too_large_for_a_message_are_rejected_before_training() -> None:
    from launcher.trainer import network, paddle_internals

    assert paddle_internals.raise_message_limit() == paddle_internals.MAX_BYTES
    network.check_message_sizes(one_table(16, 26), 65536, "async", paddle_internals.MAX_BYTES)
    with pytest.raises(SettingsError, match=r"training\.batchSize is 65536, but must be at most 8192: "):
        network.check_message_sizes(one_table(16, 26), 65536, "async", 8192 * 26 * 84 * 12)
    network.check_message_sizes(one_table(16, 26), 65536, "sync", 65536 * 26 * 84)


def test_another_version_of_paddle_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    import paddle

    from launcher.trainer import network

    monkeypatch.setattr(paddle, "__version__", "3.0.0")
    with pytest.raises(
        SettingsError, match=r"PaddlePaddle 3\.0\.0 is installed, but .* needs 2\.6\.2: .*Fix: pip"
    ):
        network.prepare_paddle(1)
