"""`python -m launcher predict`, as a person types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli.main import run


def test_it_says_a_row_in_the_programs_words_and_tells_of_unknown_ids(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", str(made.folder), "words=5 12345", "size=1"]) == 0
    told = capsys.readouterr()
    likely = "abc"[int(made.expected([5, 12345], 1.0).argmax())]
    assert told.out == f"most likely {likely}\n"
    assert told.err == "ids that the model does not know, read as zeros: 1 of word/vector\n"


def test_without_own_words_it_prints_the_whole_vector(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also: the folder that `results --to` made is as good as the model inside."""
    shutil.copytree(made.folder, tmp_path / "model")
    program = tmp_path / "model" / "program" / "trainer_config.py"
    program.write_text(program.read_text().replace("def describe", "def describd"))  # of the same length
    assert run(["predict", str(tmp_path), "words=5", "size=1"]) == 0
    numbers = [float(word) for word in capsys.readouterr().out.split()]
    assert numbers == pytest.approx(made.expected([5], 1.0), rel=1e-4)


def test_many_rows_come_as_lines_of_json(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows"
    rows.write_text('{"words": "5", "size": 1}\n{"words": "77", "size": "2"}\n')
    assert run(["predict", str(made.folder), "--rows", str(rows), "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["prediction"] for one in found] == [
        pytest.approx(made.expected([5], 1.0), rel=1e-4),
        pytest.approx(made.expected([77], 2.0), rel=1e-4),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["{model}"], 64, "there is no row to predict"),
        (["{model}", "words"], 64, "'words' is no column=value"),
        (["{model}", "words=5"], 65, "row 1 has no size: it has words"),
        (["{model}", "--rows", "nowhere"], 64, "--rows nowhere: there is no such file"),
        (["{model}", "--rows", "{model}"], 64, "cannot be read: Is a directory"),
        (["{model}", "--rows", "{rows}"], 65, "line 2 is no JSON"),
        (["{model}", "--rows", "{model}/network.pdiparams"], 65, "is no text in UTF-8"),
        (["{rows}", "words=5", "size=1"], 65, "holds no model"),
    ],
)
def test_what_cannot_be_is_one_message(
    made: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    rows = tmp_path / "rows"
    rows.write_text('{"words": "5", "size": 1}\n{"words"\n')
    given = [word.format(model=made.folder, rows=rows) for word in arguments]
    assert run(["predict", *given]) == code
    assert told in capsys.readouterr().err
