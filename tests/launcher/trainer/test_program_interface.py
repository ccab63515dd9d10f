"""Tests of the built-in programs' parsers and of the interface of programs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from launcher.dataprep.csv_records import RowPlaces
from launcher.errors import DataError, SettingsError
from launcher.program import bucket
from launcher.trainer import program_loader as programs
from launcher.trainer import record_files

from .conftest import STUBS, load, parse, ratings, stage, write_program
from .loopback_training import PROGRAMS

OWN = (
    STUBS
    + """
from launcher.program import whole_number
COLUMNS = ("age", "name", "bought")
LABEL = "bought"
OPTIONS = {"rate": 0.1, "rows": 10, "fast": False}
def inputs(job): return {"age": Real(), "name": Ids(3, cut=True), "bought": Real()}
def parse(row, job):
    if row["name"] == "nobody":
        return None
    return {"age": whole_number(row, "age", 0, 150), "name": [ord(c) for c in row["name"]],
            "bought": float(row["bought"])}
"""
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return write_program(tmp_path / "own", OWN)


@pytest.fixture(autouse=True)
def clean_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "texts", raising=False)


def test_rows_become_arrays_and_skipped_rows_are_counted(own: Path) -> None:
    lines = ["7\tabcd\t1\n", "8\tnobody\t0\n", "9\tb\\ta\t0\n"]
    found, skipped = record_files.parse_records(lines, load(own), RowPlaces("f"))
    assert skipped == 1
    assert found["name"].tolist() == [[97, 98, 99], [98, 9, 97]], "cut at 3; escapes of the line undone"
    assert found["age"].tolist() == [[7.0], [9.0]]
    assert (found["name"].dtype, found["age"].dtype) == (np.int64, np.float32)
    with pytest.raises(
        DataError, match=r"f, row 2: column age is 'x', but must be a whole number from 0 to 150"
    ):
        parse(["1\ta\t1\n", "x\ta\t1\n"], load(own))


def test_all_missing_parts_of_a_program_are_listed_at_once(own: Path) -> None:
    own.write_text("LABEL = 'x'\ndef inputs(job): return {}\n")
    with pytest.raises(SettingsError) as caught:
        load(own)
    assert "lacks 5 of the 7 things" in str(caught.value)
    for name in ("COLUMNS", "parse(", "network(", "metrics(", "optimizer("):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "has a syntax error in line 1"),
        (
            "import broken\n",
            r"own/broken.py, which the program .*trainer_config.py imports, has a syntax error in line 2",
        ),
        (
            "import nowhere_at_all\n",
            r"cannot be loaded \(trainer_config.py:1: .*the module nowhere_at_all is not installed here",
        ),
        (OWN.replace("Ids(3, cut=True)", "3"), "each an Ids"),
        (OWN.replace('LABEL = "bought"', 'LABEL = "sold"'), "must return the label 'sold'"),
        (OWN + "TABLES = ('users',)\n", "needs the tables users, but there are none"),
        (
            OWN + "def prepare(job): return 1 / 0\n",
            r"the program .* failed in prepare\(\) at trainer_config.py:\d+: `.* 1 / 0`: ZeroDivision",
        ),
    ],
)
def test_an_invalid_program_is_rejected_with_its_file_and_line(own: Path, text: str, message: str) -> None:
    own.write_text(text)
    (own.parent / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(SettingsError, match=message):
        load(own)


def test_a_program_may_define_dataclasses_with_postponed_annotations(own: Path) -> None:
    parts = ("from __future__ import annotations", "from dataclasses import dataclass", "@dataclass")
    own.write_text("\n".join((*parts, "class Film:", "    year: int", OWN)))
    assert load(own).module.Film(1999).year == 1999


def test_arguments_set_the_programs_options_by_their_defaults_type(own: Path) -> None:
    found = load(own, "--rate=0.5", "--rows=3", "--fast=true", "--seed=7")
    assert found.job.options == {"rate": 0.5, "rows": 3, "fast": True}
    assert found.seed == 7
    with pytest.raises(SettingsError, match=r"rows must be a whole number, as its default 10 is"):
        load(own, "--rows=many")
    with pytest.raises(SettingsError, match=r"'--speed=3', but .* has only .*--rate=0.1"):
        load(own, "--speed=3")
    with pytest.raises(SettingsError, match=r"did you mean rate\?$"):
        load(own, "--rat=3")
    with pytest.raises(SettingsError, match=r"'--seed=-1', but seed must be at least 0"):
        load(own, "--seed=-1")


@pytest.mark.parametrize(("default", "kind"), [("None", "NoneType"), ("(8, 8)", "tuple")])
def test_an_option_that_is_no_number_text_or_truth_value_cannot_be_set(
    own: Path, default: str, kind: str
) -> None:
    own.write_text(OWN.replace('"rate": 0.1', f'"layers": {default}'))
    assert "layers" in load(own).job.options
    with pytest.raises(SettingsError, match=rf"'--layers=4', but the default of layers is a {kind}"):
        load(own, "--layers=4")


def test_the_id_of_a_word_is_the_same_in_every_process() -> None:
    assert bucket("lovely", 65536) == 51958
    assert bucket("\udce9", 65536) == bucket(b"\xe9".decode(errors="surrogateescape"), 65536), (
        "a byte that is no UTF-8"
    )
    assert {bucket(str(i), 4) for i in range(100)} == {1, 2, 3}, "0 is kept for filling up"


@pytest.mark.paddle
def test_quick_start_skips_neutral_rows_and_reports_an_unknown_sentiment() -> None:
    program = load(PROGRAMS / "quick_start" / "trainer_config.py")
    found = parse(["positive\tGood, good!\n", "neutral\tso\n", "negative\tbad\n"], program)
    assert found["label"].tolist() == [[1.0], [0.0]]
    good = bucket("good", 65536)
    assert found["words"][0, :3].tolist() == [good, good, 0]
    with pytest.raises(DataError, match="column sentiment is 'mixed', but must be one of"):
        parse(["mixed\tx\n"], program)
    one = parse(["positive\ta\n"] * 3, program)
    with pytest.raises(ValueError, match="all 3 rows are positive"):
        program.module.check_labels(one["label"])


@pytest.mark.paddle
def test_recommendation_numbers_features_from_the_tables_and_checks_each_column(tmp_path: Path) -> None:
    folder = stage(tmp_path / "s", [], [])
    path = PROGRAMS / "recommendation" / "trainer_config.py"
    program = programs.load_program(path, folder / "tables")
    found = parse(ratings(50, 1), program)
    ids = {n for side in ("users", "films") for each in program.job.side[side].values() for n in each}
    assert found["features"].max() <= max(ids) == len(ids), "numbered from 1 on"
    assert found["features"][:, :8].min() > 0, "user, age, gender, occupation, film, decade, two genres"
    for line, message in (
        ("31\t1\t3", "column user_id is '31', but ml-100k.user has no such row"),
        ("1\t99\t3", "column item_id is '99'"),
        ("1\t1\t6", "column rating is '6', but must be a number from 1 to 5"),
        ("1\t1\tmany", "column rating is 'many'"),
    ):
        with pytest.raises(DataError, match=message):
            parse([line], program)
    with pytest.raises(SettingsError, match=r"needs the tables ml-100k\.user, ml-100k\.item"):
        programs.load_program(path, tmp_path / "nowhere")
