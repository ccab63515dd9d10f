"""Tests of the callback for `paddle.Model.fit`, with PaddlePaddle 2.6.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.io import checkpoints
from launcher.metrics import parse_metrics
from launcher.paths import Position
from launcher.program import ScriptRun, hapi_callback

pytestmark = pytest.mark.paddle

EPOCHS, STEPS, BATCH = 3, 5, 8


def fit(root: Path, resume: str = "", fails_at: int = 0, **env: str) -> tuple[ScriptRun, dict[str, Any]]:
    """Train a network with `paddle.Model.fit`, and return its run and its parameters.

    Args:
        root: folder of the run.
        resume: the checkpoint to resume from.
        fails_at: the step, counted over all epochs that this process trains, at which training fails; 0: never.
        env: variables of the script.
    """
    import paddle

    paddle.disable_static()  # another test of this process may have enabled it
    run = ScriptRun(
        {
            "PADDLE_LAUNCHER_OUTPUT_DIR": str(root / "output"),
            "PADDLE_LAUNCHER_RESUME": resume,
            "PADDLE_LAUNCHER_PASSES": str(EPOCHS),
            "PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES": "1000",
            **env,
        }
    )
    paddle.seed(1 if not resume else 9)  # a resumed process begins with other parameters
    rows = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4)).astype("float32")
    data = paddle.io.TensorDataset(
        [paddle.to_tensor(rows), paddle.to_tensor((rows[:, :1] > 0).astype("int64"))]
    )
    paddle.utils.unique_name.switch()  # parameters get the names that they have in a new process
    network = paddle.nn.Linear(4, 2)
    rate = paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)
    model = paddle.Model(network)
    adam = paddle.optimizer.Adam(rate, parameters=network.parameters())
    model.prepare(adam, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    steps = 0
    train = model.train_batch

    def train_batch(*args: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == fails_at:
            raise RuntimeError("a lost GPU")
        return train(*args, **options)

    model.train_batch = train_batch
    model.fit(data, data, BATCH, epochs=run.epochs, verbose=0, callbacks=[hapi_callback(run)])
    return run, {name: value.numpy() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("resumed", [Position(1), Position(1, 3), Position(EPOCHS)])
def test_a_resumed_fit_ends_with_the_parameters_of_one_without_a_failure(
    tmp_path: Path, resumed: Position
) -> None:
    run, expected = fit(tmp_path / "whole")
    every = {"PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES": "3"}
    fails = 0 if resumed == Position(EPOCHS) else STEPS + 1 + resumed.batches
    broken = tmp_path / "broken"
    if fails:
        with pytest.raises(RuntimeError, match="a lost GPU"):
            fit(broken, fails_at=fails, **(every if resumed.batches else {}))
    else:
        fit(broken)
    assert checkpoints.newest_checkpoint(broken / "output") == resumed
    again, found = fit(broken, resumed.folder)
    assert again.start == (resumed.passes, resumed.batches)
    assert all((found[name] == value).all() for name, value in expected.items())
    rows = [
        parse_metrics((root / "output" / "metrics.csv").read_text()) for root in (tmp_path / "whole", broken)
    ]
    assert [[row.number for row in one] for one in rows] == [list(range(EPOCHS))] * 2
    assert [row.tests for row in rows[0]] == [row.tests for row in rows[1]]
    assert sorted(rows[0][0].tests) == ["acc", "loss"]
    assert run.rank == 0
