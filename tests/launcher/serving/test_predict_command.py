"""Tests of `python -m launcher predict`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli.main import run_command


def test_a_prediction_is_printed_with_the_programs_labels_and_unknown_ids(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["predict", str(made.folder), "words=5 12345", "size=1"]) == 0
    output = capsys.readouterr()
    likely = "abc"[int(made.expected([5, 12345], 1.0).argmax())]
    assert output.out == f"most likely {likely}\n"
    assert output.err == "ids that the model does not contain, treated as zeros: 1 of word/vector\n"


def test_without_labels_the_complete_vector_is_printed(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also: the command accepts the folder that `results --to` writes, which contains the model."""
    shutil.copytree(made.folder, tmp_path / "model")
    program = tmp_path / "model" / "program" / "trainer_config.py"
    program.write_text(program.read_text().replace("def describe", "def describd"))  # of the same length
    assert run_command(["predict", str(tmp_path), "words=5", "size=1"]) == 0
    numbers = [float(word) for word in capsys.readouterr().out.split()]
    assert numbers == pytest.approx(made.expected([5], 1.0), rel=1e-4)


def test_many_rows_are_printed_as_json_lines(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows"
    rows.write_text('{"words": "5", "size": 1}\n{"words": "77", "size": "2"}\n')
    assert run_command(["predict", str(made.folder), "--rows", str(rows), "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["prediction"] for one in found] == [
        pytest.approx(made.expected([5], 1.0), rel=1e-4),
        pytest.approx(made.expected([77], 2.0), rel=1e-4),
    ]


def test_only_line_ends_separate_rows(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON may have other separators of Unicode inside texts."""
    rows = tmp_path / "rows"
    rows.write_text('{"words": "5", "note": "a\u2028b\x85c", "size": 1}\n', "utf-8")
    assert run_command(["predict", str(made.folder), "--rows", str(rows)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{model}"], 64, "there is no row to predict"),
        (["{model}", "words"], 64, "'words' is not COLUMN=VALUE"),
        (["{model}", "words=5"], 65, "row 1 has no size: it has words"),
        (["{model}", "--rows", "nowhere"], 64, "--rows nowhere: no such file"),
        (["{model}", "--rows", "{model}"], 64, "cannot be read: Is a directory"),
        (["{model}", "--rows", "{rows}"], 65, "line 2 is not JSON"),
        (["{model}", "--rows", "{model}/network.pdiparams"], 65, "is not UTF-8 text"),
        (["{rows}", "words=5", "size=1"], 65, "is not a model"),
    ],
)
def test_invalid_input_is_one_message(
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    rows = tmp_path / "rows"
    rows.write_text('{"words": "5", "size": 1}\n{"words"\n')
    given = [word.format(model=made.folder, rows=rows) for word in arguments]
    assert run_command(["predict", *given]) == code
    assert message in capsys.readouterr().err
