"""Tests of what parameter servers can train: the rest is rejected when the graph is built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.dataprep.csv_records import RowPlaces
from launcher.errors import SettingsError
from launcher.paths import Position

from .conftest import TRAINED, load, prepare_own, write_program
from .loopback_training import LoopbackTraining

# Paddle warns of its own expressions, and here it runs in the tests' process.
pytestmark = [pytest.mark.paddle, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Caution!")]

PROGRAM = (
    TRAINED
    + """
from paddle import ParamAttr
from paddle.regularizer import L1Decay, L2Decay

COLUMNS = ("ids", "numbers", "y")
LABEL = "y"
fc, optim = paddle.static.nn.fc, paddle.optimizer

def inputs(job):
    return {"ids": Ids(3), "numbers": Real(4), "y": Real()}

def parse(row, job):
    return {"ids": [int(v) for v in row["ids"].split()], "numbers": [float(v) for v in row["numbers"].split()],
            "y": float(row["y"])}

def optimizer(job):
    return optim.SGD(0.05)

def network(data, job):
    ids, numbers = data["ids"], data["numbers"]
    numbers.stop_gradient = False
    hidden = fc(numbers, 3, name="hidden")
    guess = fc(hidden, 1, name="guess")
    return guess, paddle.mean(paddle.square(guess - data["y"]))
"""
)
HIDDEN = 'hidden = fc(numbers, 3, name="hidden")'
RETURN = 'return guess, paddle.mean(paddle.square(guess - data["y"]))'
SGD = "optim.SGD(0.05)"


def changed(changes: dict[str, str]) -> str:
    text = PROGRAM
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def check(folder: Path, changes: dict[str, str]) -> None:
    """Check a changed program as `try` and `run` do before anything else."""
    from launcher.trainer import record_files, single_process

    program = load(write_program(folder, changed(changes)))
    rows, _ = record_files.parse_records(rows_of(61), program, RowPlaces("rows"))
    batch = record_files.split_inputs(rows)
    single_process.check_program(program, batch, "async", 61)


def rows_of(count: int, seed: int = 1, shift: float = 0.0) -> list[str]:
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        numbers = random.normal(size=4) + shift
        ids = " ".join(map(str, random.integers(1, 9, 3)))
        lines.append(f"{ids}\t{' '.join(f'{v:.4f}' for v in numbers)}\t{numbers.sum() / 4:.4f}")
    return lines


def weight(attribute: str) -> dict[str, str]:
    return {HIDDEN: f'hidden = fc(numbers, 3, name="hidden", weight_attr=ParamAttr({attribute}))'}


def bias(attribute: str) -> dict[str, str]:
    return {HIDDEN: f'hidden = fc(numbers, 3, bias_attr=ParamAttr(name="own", {attribute}))'}


def hidden(code: str) -> dict[str, str]:
    return {HIDDEN: f"hidden = {code}"}


def adam(arguments: str) -> dict[str, str]:
    return {SGD: f"optim.Adam(0.05, {arguments})"}


def table(optimizer: str) -> dict[str, str]:
    return hidden(f'fc(numbers, 3) + job.embedding(ids, 3, "words", pool="sum", optimizer=optim.{optimizer})')


PARAMETERS = [
    (weight("learning_rate=0.0"), "parameter 'hidden.w_0' has its own learning_rate .*trainable=False"),
    (bias("learning_rate=2.0"), "parameter 'own' has its own learning_rate"),
    (weight("regularizer=L2Decay(10.0)"), "parameter 'hidden.w_0' has a regularizer .*penalty to the loss"),
    (bias("regularizer=L1Decay(0.1)"), "parameter 'own' has a regularizer"),
    (hidden('paddle.cast(paddle.matmul(paddle.cast(numbers, "float64"), paddle.create_parameter([4, 3], "float64", '
            'name="double")), "float32")'), "parameter 'double' is not float32"),
]  # fmt: skip
PY_FUNC = """
    y = x.block.create_var(name="squares", shape=x.shape, dtype="float32")
    paddle.static.py_func(lambda x: np.array(x) ** 2, x, y, lambda x, y, slope: 2 * np.array(x) * np.array(slope))
"""
OPERATORS = [
    ({HIDDEN: HIDDEN + "\n    x = hidden" + PY_FUNC + "    hidden = y"},
     r"operator py_func at trainer_config.py:\d+: .* runs a Python function, which exported models do not have"),
    (hidden("paddle.sum(paddle.nn.Embedding(9, 3, sparse=True)(ids), 1)"),
     r"lookup_table_v2 embedding_0.w_0 at trainer_config.py:\d+: .*sparse gradients.*Fix: use job.embedding"),
    (hidden('paddle.sum(paddle.static.nn.embedding(ids, [9, 3], is_sparse=True, param_attr="own"), 1)'),
     "lookup_table_v2 own .*sparse gradients"),
    (hidden("paddle.sum(paddle.static.nn.sparse_embedding(paddle.reshape(ids, [-1, 1]), [9, 3])"
            ".reshape([-1, 3, 3]), 1)"), "lookup_table sparse_embedding_0.w_0 .*sparse gradients"),
    (hidden("paddle.sum(paddle.nn.Embedding(9, 3, sparse=True, weight_attr=ParamAttr(trainable=False))(ids), 1)"),
     "embedding_0.w_0 .*sparse gradients"),
    (hidden("fc(numbers, 3) + paddle.static.nn.nce(numbers, ids[:, :1], 9, is_sparse=True)"),
     "operator nce .*nce_0.w_0.* sparse gradients"),
    (hidden("fc(paddle.static.nn.data_norm(numbers, name='dn'), 3)"), "operator data_norm dn.* uses data_norm"),
    (hidden("paddle.static.nn.cond(paddle.mean(numbers) > 0, lambda: fc(numbers, 3), lambda: 2 * fc(numbers, 3))"),
     "operator conditional_block .*loop or a branch .*paddle.where"),
    (hidden("paddle.static.nn.while_loop(lambda i, h: i < 3, lambda i, h: [i + 1, 0.5 * h], "
            '[paddle.full([1], 0, "int64"), fc(numbers, 3)])[1]'), "operator while .*loop or a branch"),
    ({RETURN: "[g] = paddle.static.gradients([guess], [numbers])\n"
              '    return guess, paddle.mean(paddle.square(guess - data["y"])) + paddle.mean(g * g)'},
     "operator .* calculates gradients or updates parameters itself"),
    ({RETURN: "paddle.static.ExponentialMovingAverage(0.9).update()\n    " + RETURN},
     "operator .* calculates gradients or updates parameters itself"),
    ({HIDDEN: 'seen = paddle.static.create_global_var([1], 0.0, "float32", persistable=True, name="seen")\n    '
              "paddle.increment(seen)\n    hidden = fc(numbers, 3) * seen"},
     r"variable 'seen' at trainer_config.py:\d+: `paddle.increment\(seen\)` is changed by the network"),
    ({HIDDEN: HIDDEN + '\n    block = numbers.block\n    own = block.var("hidden.w_0")\n'
              "    paddle.assign(paddle.clip(own, -1, 1), own)"}, "variable 'hidden.w_0' .*is changed by the network"),
    (hidden("paddle.nn.utils.weight_norm(paddle.nn.Linear(4, 3))(numbers)"), "'linear_0.w_1' .*is changed by"),
    ({HIDDEN: 'hidden = fc(numbers, 3, weight_attr=ParamAttr(trainable=False), bias_attr=False)',
      'guess = fc(hidden, 1, name="guess")': "guess = paddle.sum(hidden, 1, keepdim=True)"},
     "the loss depends on no parameter"),
]  # fmt: skip
OPTIMIZERS = [
    (adam("beta1=0.5"), "the Adam of the network has beta1, .*optimizer=…"),
    (adam("beta2=0.9"), "the Adam of the network has beta2"),
    (adam("epsilon=0.1"), "the Adam of the network has epsilon"),
    (adam("use_multi_tensor=True"), "the Adam of the network has use_multi_tensor"),
    (adam("weight_decay=0.1"), "the Adam of the network has weight_decay, .*penalty"),
    (adam("weight_decay=L1Decay(0.1)"), "the Adam of the network has weight_decay"),
    (adam("grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)"), "the Adam of the network has grad_clip"),
    ({SGD: "optim.SGD(0.1, grad_clip=paddle.nn.ClipGradByNorm(1.0))"}, "the SGD of the network has grad_clip"),
    ({SGD: "optim.SGD(0.1, grad_clip=paddle.nn.ClipGradByValue(1.0))"}, "the SGD of the network has grad_clip"),
    *((table("SGD(0.1)") | {RETURN: f"paddle.nn.clip.set_gradient_clip(paddle.nn.{name}(1.0))\n    " + RETURN},
       "embedding 'words' is clipped by set_gradient_clip")
      for name in ("ClipGradByValue", "ClipGradByNorm", "ClipGradByGlobalNorm")),
    ({SGD: "optim.SGD(0.1, parameters=[paddle.create_parameter([1], 'float32')])"}, "has parameters"),
    ({SGD: "optim.SGD(optim.lr.StepDecay(0.1, 5))"}, "the learning rate is a StepDecay"),
    *(({SGD: f"optim.{name}(0.1)"}, f"the network cannot be trained with {name}")
      for name in ("Momentum", "AdamW", "Lamb", "RMSProp", "Adagrad", "Adamax", "Adadelta")),
    (table("Adam(0.1, weight_decay=0.1)"), "the Adam of embedding 'words' has weight_decay"),
    (table("SGD(0.1, grad_clip=paddle.nn.ClipGradByValue(1.0))"), "the SGD of embedding 'words' has grad_clip"),
    (table("Adagrad(0.1, epsilon=0.1, initial_accumulator_value=0.1)"), "of embedding 'words' has epsilon"),
    (table("AdamW(0.1)"), "embedding 'words' cannot be trained with AdamW: .* Adam, SGD, Adagrad for tables"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [*PARAMETERS, *OPERATORS, *OPTIMIZERS])
def test_what_the_servers_cannot_train_is_rejected_by_name(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=f"(?s){message}") as caught:
        check(tmp_path / "own", changes)
    assert "Fix: " in str(caught.value)
    assert "paddle/base" not in str(caught.value), "Paddle's own stack is left out"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        weight("learning_rate=1.0, regularizer=L2Decay(0.0), need_clip=False, do_model_average=False"),
        weight("trainable=False, learning_rate=0.5, regularizer=L2Decay(0.1)"),
        adam("weight_decay=0.0, lazy_mode=True, multi_precision=True"),
        adam("beta1=0.9, beta2=0.999, epsilon=1e-8, parameters=None, weight_decay=None, grad_clip=None"),
        table("Adagrad(0.1, epsilon=1e-6, initial_accumulator_value=0.1)"),
        {RETURN: 'x = guess - data["y"]' + PY_FUNC + "    return guess, paddle.mean(y)"},
        table("Adam(0.1, beta1=0.5, epsilon=0.01)"),
        {
            RETURN: "p = paddle.nn.functional.sigmoid(guess)\n    "
            "paddle.static.auc(paddle.concat([1 - p, p], 1), ids[:, :1])\n    " + RETURN
        },
    ],
)
def test_what_changes_nothing_on_the_servers_is_accepted(tmp_path: Path, changes: dict[str, str]) -> None:
    check(tmp_path / "own", changes)


MANY = {
    HIDDEN: """layer = paddle.static.nn.batch_norm(fc(numbers, 4, name="hidden"), name="bn")
    for _ in range(2):
        layer = fc(layer, 4, weight_attr=ParamAttr(name="shared"), bias_attr=False)
    layer = paddle.static.nn.prelu(paddle.static.nn.layer_norm(layer), "all")
    steps, _ = paddle.nn.LSTM(1, 3)(paddle.unsqueeze(numbers, 2))
    words = paddle.sum(paddle.nn.Embedding(9, 2)(ids), 1)
    fixed = fc(numbers, 2, weight_attr=ParamAttr(name="fixed", trainable=False))
    hidden = paddle.concat([layer, steps[:, -1], words, fixed], 1)"""
}


def training(
    root: Path, changes: dict[str, str], shifts: tuple[float, ...] = (0.0,), **values: str
) -> LoopbackTraining:
    rows = [rows_of(64, rank, shift) for rank, shift in enumerate(shifts)]
    return prepare_own(root, changed(changes), rows, rows_of(16, 99), **{"BATCH_SIZE": "16"} | values)


def parameters(gang: LoopbackTraining, passes: int) -> dict[str, np.ndarray]:
    return dict(np.load(gang.output.checkpoint(Position(passes)) / "params.npz"))


def test_servers_train_layers_as_one_process_does(tmp_path: Path) -> None:
    from launcher.trainer.single_process import SingleProcessTrainer
    from launcher.trainer.trial_data import RowFormat, write_records

    gang = training(tmp_path, MANY, MODE="sync", PASSES="2").finish()
    program = load(gang.program / "trainer_config.py")
    rows = write_records(program, gang.data[0] / "train.txt", RowFormat(), tmp_path / "rows", 0.0)["train"]
    alone = SingleProcessTrainer(program)
    start = alone.parameters()
    list(alone.passes(rows, rows, 2, 16))
    found, expected = parameters(gang, 2), alone.parameters()
    assert set(found) == set(expected)
    assert {"shared", "fixed", "bn.w_1", "embedding_0.w_0", "lstm_cell_0.w_0"} <= set(found)
    for name, values in expected.items():
        assert np.allclose(found[name], values, rtol=1e-4, atol=1e-6), name
        assert (name == "fixed") == np.array_equal(start[name], values), "all others were trained"


def test_moving_statistics_are_those_of_all_trainers_and_are_restored(tmp_path: Path) -> None:
    changes = hidden('fc(paddle.static.nn.batch_norm(numbers, name="bn"), 3)')
    changes[SGD] = (
        "optim.SGD(0.001)"  # with 0.05, delayed gradients of a busy machine let the training diverge
    )
    gang = training(tmp_path, changes, (0.0, 10.0), CHECKPOINT_EVERY_BATCHES="3").finish()
    mean = parameters(gang, 1)["bn.w_1"]
    assert (mean > 1).all(), "trainer 0 alone has the mean 0"
    assert f"test_rmse={gang.read_score()['rmse']:.4f}" in gang.log(), (
        "the exported model has the same statistics"
    )
    resumed = gang.next_attempt(Position(0, 3), PASSES="2").finish()
    assert "the servers' values are verified" in resumed.log()
    assert (parameters(resumed, 2)["bn.w_1"] > mean).all(), (
        "it continues from the statistics of the checkpoint"
    )


def test_all_ranks_sum_moving_statistics_in_one_order(tmp_path: Path) -> None:
    """A set of names has another order in each pod."""
    from launcher.trainer.network import build_network, prepare_paddle

    layers = "".join(f"\n    hidden = paddle.static.nn.batch_norm(hidden, name='bn{i}')" for i in range(10))
    program = load(write_program(tmp_path / "own", changed(hidden(f"numbers{layers}"))))
    prepare_paddle(1)
    expected = [f"bn{i}.w_{n}" for i in range(10) for n in (1, 2)]
    assert build_network(program, "served").statistics == expected


def test_a_nan_loss_is_final_and_the_message_has_its_position(tmp_path: Path) -> None:
    gang = training(tmp_path, {RETURN: "return guess, paddle.mean(paddle.log(0 * guess - 1))"})
    assert gang.run()["0/trainer"] == 65, gang.log()[-2000:]
    why = "error: the loss is nan at pass 1, batch 1: nothing was learned yet. Fix: see network()"
    assert why in gang.log()
    progress = gang.read_progress()
    assert (progress["pass"], progress["batch"]) == (0, 1)


RANDOM = weight('name="own", trainable=False, initializer=paddle.nn.initializer.Assign(np.random.rand(4, 3))')


def test_a_fixed_parameter_that_starts_differently_on_each_rank_is_rejected(tmp_path: Path) -> None:
    gang = training(tmp_path, RANDOM, (0.0, 0.0))
    codes = gang.run()
    assert (codes["0/trainer"], codes["1/trainer"]) == (64, 64), gang.log()[-2000:]
    assert "the parameter 'own', which is not trained, starts with other values on each rank" in gang.log()


def test_a_fixed_parameter_is_restored(tmp_path: Path) -> None:
    gang = training(tmp_path, RANDOM).finish()
    before = parameters(gang, 1)["own"]
    resumed = gang.next_attempt(Position(1), PASSES="2").finish()
    assert np.array_equal(parameters(resumed, 2)["own"], before)
