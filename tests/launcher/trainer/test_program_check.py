"""Tests of the check of a program before submission: each error is found and reported in one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli import uploads
from launcher.errors import LauncherError, SettingsError

from .loopback_training import PROGRAMS

# Paddle warns of its own expressions, and here it runs in the tests' process.
pytestmark = [pytest.mark.paddle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
DATA = {
    "format": "lines",
    "delimiter": ",",
    "quoting": "minimal",
    "header": True,
    "columns": [],
    "encoding": "utf-8",
    "member": "",
    "tables": [],
}
TRAINING = {"mode": "async", "batchSize": 256, "keepBest": "", "args": []}
ROWS = "".join(f"{i % 2}\t{i}\t{['red', 'blue', 'green'][i % 3]} shoes\n" for i in range(100))
SHOP = (PROGRAMS / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
SCORE = 'fc(hidden, 1, name="score")'
LOSS = 'paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(score, data["bought"]))'
SQUARE = 'paddle.mean(paddle.square(score - data["bought"]))'


def check(folder: Path, changes: dict[str, str], **training: object) -> str:
    """Check the page's example with some of its text changed."""
    text = SHOP
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "trainer_config.py").write_text(text)
    (folder / "rows.txt").write_text(ROWS)
    return uploads.check_program(folder / "trainer_config.py", TRAINING | training, folder / "rows.txt", DATA)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_valid_program_passes_in_each_mode_without_paddle_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    found = check(tmp_path, {}, mode=mode)
    assert found == "it parses the first 100 rows (0 skipped) and trains on 61"
    output = capfd.readouterr()
    assert (output.out, "INFO" in output.err) == ("", False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'"word", pool': '"words", pool'}, r"trainer_config.py:27: .*embedding 'words' has the same name as an input"),
        ({SCORE: 'fc(hidden, 1, name="s", bias_attr=paddle.ParamAttr(name="b"))', "both = ": "x = paddle."
          'create_parameter([1], "float32", "tab"); words = job.embedding(data["words"], 8, "tab", pool="sum")'
          "\n    both = "}, "'tab' has the same name as a parameter"),
        ({"sigmoid(score), loss": "sigmoid(paddle.mean(score)), loss"}, r"a prediction of shape \[\], but .* row"),
        ({"sigmoid(score), loss": "sigmoid(paddle.reshape(score, [1, -1])), loss"}, r"\[1, 61\] for a batch of 61"),
        ({LOSS: 'score - data["bought"]'}, r"'loss' of shape \[batch, 1\], but it must be one number.*mean"),
        ({LOSS: '{"a": paddle.mean(score), "b": score}'}, r"'b' of shape \[batch, 1\]"),
        ({SCORE: 'fc(hidden, 2, name="score")', LOSS: SQUARE},
         r"label bought of shape \[batch, 1\] with .* \[batch, 2\] at trainer_config.py:31: .*expand_as"),
        ({SCORE: SCORE + ".squeeze(1)", LOSS: SQUARE}, r"\[batch, 1\] with a value of shape \[batch\]"),
        ({SCORE: 'fc(hidden, 2, name="score")'}, r"\[batch, 1\] with a value of shape \[batch, 2\]"),
        ({'"bought": Real()': '"bought": Real(2)', '"bought": whole': '"bought": [1, 0] or whole', LOSS: SQUARE},
         r"label bought of shape \[batch, 2\] with a value of shape \[batch, 1\]"),
        ({"fc(both, 16": "fc(paddle.reshape(both, [-1, 10]), 16"}, r"trainer_config.py:29: .*InvalidArgument"),
        ({LOSS: 'paddle.mean(data["bought"])'}, "the loss depends on no parameter of network"),
        ({LOSS: 'paddle.mean(paddle.static.nn.fc(data["visits"], 1))'}, "loss does not depend on embedding 'word'"),
        ({"both = paddle.concat([words, data[\"visits\"]], axis=1)": "both = words",
          'paddle.static.nn.fc(both, 16, activation="relu", name="hidden")': "both",
          "paddle.static.nn." + SCORE: "paddle.sum(hidden, axis=1, keepdim=True)"}, "no parameter except its emb"),
        ({"return paddle.nn.functional.sigmoid(score), loss": "return score"}, r"must return \(prediction, loss\)"),
        ({"float(np.mean((prediction > 0.5) != (label > 0.5)))": "prediction"}, "than one number as error"),
        ({"(prediction > 0.5)": "(predicted > 0.5)"}, r"metrics\(\) on prediction \[61, 1\] .* NameError"),
        ({"(label > 0.5)": "label.reshape(-1, 7)"}, r"metrics\(\) .* trainer_config.py:36: .*reshape"),
        ({"paddle.optimizer.Adam(": "paddle.optimizer.Momentum("}, "cannot be trained with Momentum"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_trained_is_one_message(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=f"(?s){message}") as caught:
        check(tmp_path, changes)
    assert "paddle/base" not in str(caught.value), "Paddle's own stack is left out"
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize(
    ("training", "changes", "message"),
    [
        ({"batchSize": 10**7}, {}, "training.batchSize is 10000000, but must be at most"),
        ({"args": ["--widht=3"]}, {}, "did you mean width"),
        ({"keepBest": "auc"}, {}, "training.keepBest is 'auc', but must be one of error: metrics"),
    ],
)
def test_settings_that_do_not_fit_the_network_are_found(
    tmp_path: Path, training: dict[str, object], changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check(tmp_path, changes, **training)


def test_a_score_of_rows_of_one_class_may_be_undefined(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    no_row = {"float(np.mean((prediction > 0.5) != (label > 0.5)))": "float(np.mean(label[label > 1]))"}
    assert "trains on 61" in check(tmp_path, no_row)
    assert "Mean of empty slice" not in capfd.readouterr().err
    needs_both = "float(np.mean(label)) if len(set(label[:, 0])) == 2 else float('no classes')"
    changes = {"float(np.mean((prediction > 0.5) != (label > 0.5)))": needs_both}
    assert "trains on 61" in check(tmp_path, changes | {'"bought": whole': '"bought": 0 * whole'})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({'row["words"].split()': 'row["wrds"].split()'},
         r"parse\(\) on rows.txt, row 1 .*trainer_config.py:20: `.*wrds.*`: KeyError: 'wrds'. The row: '0.t0.tred shoes'"),  # noqa: E501
        ({'whole_number(row, "visits", 0, 10**6)': 'float(row["words"])'},
         r"rows.txt, row 1: could not convert .* \(trainer_config.py:21: `.*row\[\"words\"\]\)\),`\). The row: '0"),
        ({"import numpy as np": "import numpy as np\nimport no_such_module"},
         r"trainer_config.py:4: `import no_such_module`\): the module no_such_module is not installed here"
         ".*README.md#more-python-packages"),
        ({"def parse(row, job):": "def parse(row, job):\n    import no_such_module\n"},
         r"trainer_config.py:19: `import no_such_module`: the module .*README.md#more-python-packages"),
    ],
)  # fmt: skip
def test_an_error_in_parse_is_reported_with_row_line_and_code(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(LauncherError, match=message):
        check(tmp_path, changes)


def test_a_label_that_is_repeated_on_purpose_is_accepted(tmp_path: Path) -> None:
    wide = 'paddle.mean(paddle.square(score - paddle.expand_as(data["bought"], score)))'
    changes = {SCORE: 'fc(hidden, 3, name="score")', LOSS: wide}
    assert "trains on 61" in check(tmp_path, changes)


def test_without_paddle_the_unchecked_parts_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads.importlib.util, "find_spec", lambda name: None)
    assert "paddle is not installed here" in check(tmp_path, {SCORE: "no network at all"})
    assert "Trainer 0 checks its network on the cluster" in check(tmp_path, {})


def test_with_another_version_of_paddle_the_unchecked_parts_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddle.__version__", "3.0.0")
    found = check(tmp_path, {SCORE: "no network at all"})
    assert "PaddlePaddle 3.0.0, not 2.6.2, is installed here (pip install '.[model]')" in found
