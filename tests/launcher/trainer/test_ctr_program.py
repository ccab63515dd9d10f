"""Tests of program ctr: rows of Criteo, scores, and generated rows with known best scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.errors import DataError
from launcher.programs.ctr import generated_rows, scores
from launcher.trainer import conversion
from launcher.trainer import program_loader as programs
from testkit.criteo_parquet import write_as_parquet

from .conftest import parse
from .loopback_training import PROGRAMS

COUNTS = ["1"] * 13
VALUES = [f"{number:08x}" for number in range(26)]


def line(label: str = "0", counts: list[str] = COUNTS, values: list[str] = VALUES) -> str:
    return "\t".join([label, *counts, *values]) + "\n"


@pytest.fixture
def ctr() -> programs.TrainingProgram:
    return programs.load_program(PROGRAMS / "ctr" / "trainer_config.py", Path("/none"))


@pytest.mark.paddle
def test_rows_of_criteo_are_accepted_with_empty_fields(ctr: programs.TrainingProgram) -> None:
    """Rows have the form of the public file: counts may be empty or negative, categories may be empty."""
    row = line("1", ["", "-1", "4", *COUNTS[3:]], ["", "68fd1e64", "68fd1e64", *VALUES[3:]])
    found = parse([row, line()], ctr)
    assert found["label"].tolist() == [[1.0], [0.0]]
    assert found["counts"][0, :3].tolist() == pytest.approx([0, 0, np.log(5)])
    first, second, third = found["ids"][0, :3].tolist()
    assert first != 0, "empty is a value to learn from, and 0 would be padding"
    assert third - second == 1 << 40, "one value in two columns is two ids"
    assert found["ids"][1, 1] != second
    assert len(np.unique(found["ids"])) == 26 * 2 - 23, "23 values are in both rows"


@pytest.mark.paddle
def test_a_category_that_is_not_hexadecimal_is_accepted(ctr: programs.TrainingProgram) -> None:
    values = ["shoes", "SHOES", "0x0000ff", "-1234567", "", *VALUES[5:]]
    rows = [line("0", values=values), line("1", values=values)]
    ids = parse(rows, ctr)["ids"].view(np.uint64)
    assert ids[0].tolist() == ids[1].tolist()
    assert (ids[0] >> np.uint64(40)).tolist() == list(range(1, 27)), "each in its column's range"
    assert len(np.unique(ids[0] & np.uint64((1 << 40) - 1))) == 26


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (line("2"), "row 1: column label is '2', but must be 0 or 1"),
        (
            line(counts=["1", "many", *COUNTS[2:]]),
            "row 1: column I2 is 'many', but must be a number up to 1e",
        ),
        (line(counts=["nan", *COUNTS[1:]]), "column I1 is 'nan'"),
        (line(counts=["inf", *COUNTS[1:]]), "column I1 is 'inf'"),
        (line(values=VALUES[1:]), "row 1 has 39 columns, but the program trainer_config.py reads 40"),
    ],
)
def test_an_invalid_row_is_reported_with_its_column(
    ctr: programs.TrainingProgram, row: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        parse([row], ctr)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    random = np.random.default_rng(1)
    score, clicked = random.integers(0, 9, 200) / 9, random.random(200) < 0.3
    above = score[clicked][:, None] - score[~clicked][None, :]
    assert scores.auc(score, clicked) == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)))


def test_log_loss_and_calibration_follow_their_definitions() -> None:
    found = scores.metrics(np.array([[0.25], [0.75], [1.0]]), np.array([[0.0], [1.0], [1.0]]))
    assert found["log_loss"] == pytest.approx(-2 * np.log(0.75) / 3, abs=1e-6)
    assert found["calibration"] == pytest.approx(1.0)
    sure = scores.metrics(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]]))
    assert np.isfinite(sure["log_loss"]), "surely wrong is expensive, not infinite"


@pytest.mark.slow
def test_the_generated_probabilities_match_the_clicks_and_have_the_best_score() -> None:
    clicks, ids, numbers = generated_rows.rows(0, 100_000, 0, 0)
    chance = generated_rows.probability(ids, numbers)
    best = scores.metrics(chance, clicks)
    assert best["calibration"] == pytest.approx(1, abs=0.01)
    for low, high in ((0.1, 0.2), (0.4, 0.5), (0.7, 0.8)):
        among = clicks[(chance > low) & (chance < high)]
        assert low < among.mean() < high
    assert 0.8 < best["auc"] < 0.9, "there is something to learn, and chance in it"
    noise = np.random.default_rng(0).normal(1, 0.3, chance.shape)
    assert scores.auc(chance * noise, clicks) < best["auc"] - 0.005
    unpaired = generated_rows.probability(np.where(np.arange(26) == 4, -1, ids), numbers)
    assert scores.auc(unpaired, clicks) < best["auc"] - 0.001, "a column that is not looked at is missed"


def test_the_best_score_of_a_file_is_that_of_its_rows(tmp_path: Path) -> None:
    generated_rows.make(tmp_path / "day1.txt", 3000, day=1, seed=5)
    clicks, ids, numbers = generated_rows.rows(0, 3000, 1, 5)
    chances, clicked = generated_rows.limit(tmp_path / "day1.txt")
    assert np.array_equal(clicked[:, 0] > 0.5, clicks)
    assert np.allclose(chances[:, 0], generated_rows.probability(ids, numbers))
    texts = (tmp_path / "day1.txt").read_text().splitlines()
    assert {text.count("\t") for text in texts} == {39}
    empty = np.mean([field == "" for text in texts for field in text.split("\t")])
    assert 0.01 < empty < 0.1


def test_rows_depend_on_the_seed_but_not_on_the_parts() -> None:
    at_once = generated_rows.rows(0, 500, 2, 0)[1]
    parts = [generated_rows.rows(first, 250, 2, 0)[1] for first in (0, 250)]
    assert np.array_equal(at_once, np.concatenate(parts))
    assert not np.array_equal(at_once, generated_rows.rows(0, 500, 2, 1)[1])


def test_a_quarter_of_the_values_is_new_each_day() -> None:
    days = [set(generated_rows.rows(0, 20_000, day, 0)[1][:, 0]) for day in (0, 1, 4)]
    assert len(days[0]) > 900, "nearly all values of the column come"
    assert 0.68 < len(days[0] & days[1]) / len(days[0]) < 0.82
    assert len(days[0] & days[2]) < 5


@pytest.mark.paddle
@pytest.mark.parametrize("by_column", [True, False])
def test_rows_of_a_parquet_file_give_the_records_of_the_same_csv(
    ctr: programs.TrainingProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_column: bool
) -> None:
    """Equal records train equally: nothing else of the data reaches the training."""
    if not by_column:
        monkeypatch.delattr(ctr.module, "parse_columns")
    monkeypatch.setattr(conversion, "RANGE_BYTES", 20_000)
    text, parquet = tmp_path / "csv" / "train.txt", tmp_path / "parquet" / "train.txt"
    for path in (text, parquet):
        path.parent.mkdir()
    generated_rows.make(text, 1000, seed=1)
    lines = [*text.read_text().splitlines(), line("1", ["", "-1", *COUNTS[2:]], ["", "shoes", *VALUES[2:]])]
    text.write_text("\n".join(lines))
    write_as_parquet(lines, parquet, batch_rows=70)
    found = [
        conversion.convert_text(ctr, path, "rows", path.parent / "records", processes=2)
        for path in (text, parquet)
    ]
    for name in ctr.inputs:
        csv, typed = (records.read_input(name) for records in found)
        assert csv.dtype == typed.dtype and (csv == typed).all(), name
    assert len(csv) == 1001
    assert len(list((parquet.parent / "records").glob("*.rec"))) > 1, "several ranges"
