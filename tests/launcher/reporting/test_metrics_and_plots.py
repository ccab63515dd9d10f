"""Tests of parsing metrics.csv, of the table of passes, and of curve.png."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import metrics
from launcher.reporting import html_report
from tests.launcher.cli.conftest import METRICS

# Two passes of two ranks, the second trained twice by rank 0, and an incomplete line.
ROWS = metrics.parse_metrics(METRICS + "2,0,1,10")
HEAD = "pass,rank,attempt,samples,seconds,samples_per_second,train_loss"


def test_parse_metrics_keeps_the_last_attempt_of_a_pass_and_skips_incomplete_lines():
    assert [(row.number, row.rank, row.attempt, row.train_loss) for row in ROWS] == [
        (0, 0, 0, 0.6),
        (0, 1, 0, 0.2),
        (1, 0, 1, 0.4),
        (1, 1, 1, 0.2),
    ]


def test_pass_table_has_one_row_per_pass_with_sums_and_weighted_loss():
    table = metrics.pass_table(ROWS)
    assert table[0] == {
        "pass": 0,
        "ranks": 2,
        "samples": 400,
        "seconds": 3.0,
        "samples_per_second": 150.0,
        "train_loss": pytest.approx(0.3),
        "test_error": 0.30,
    }
    assert table[1]["test_error"] == 0.20


def test_parse_metrics_keeps_the_newest_attempt_in_any_order_of_rows():
    old, new = "0,0,0", "0,0,10"
    for rows in ((old, new), (new, old)):
        text = HEAD + "\n" + "".join(f"{row},10,1.0,10,0.{len(row)}\n" for row in rows)
        assert [row.attempt for row in metrics.parse_metrics(text)] == [10], rows


def test_ranks_that_an_elastic_run_lost_do_not_count_in_passes_that_the_others_trained_again():
    rows = ["0,0,0,50,1.0,50,0.5", "0,1,0,50,1.0,50,0.5", "1,1,0,50,1.0,50,0.5", "0,0,1,100,2.0,50,0.4"]
    table = metrics.pass_table(metrics.parse_metrics("\n".join([HEAD, *rows, ""])))
    assert [(one["pass"], one["ranks"], one["samples"]) for one in table] == [(0, 1, 100), (1, 1, 50)]


def a_row(number, rank, attempt):
    return metrics.MetricsRow(number, rank, attempt, 10, 1.0, 10.0, 0.5)


def test_restart_marks_are_between_the_passes_of_two_attempts():
    rows = [
        a_row(number, rank, attempt)
        for number, attempt in ((0, 0), (1, 1), (2, 1), (3, 4))
        for rank in (0, 1)
    ]
    assert metrics.restart_marks(rows) == [(1.5, "attempt 1"), (3.5, "attempt 4")]
    assert metrics.restart_marks([a_row(0, 0, 2), a_row(1, 0, 2)]) == []


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Return a function that takes rows of metrics.csv and the best pass, and returns the axes of the figure."""
    from matplotlib.figure import Figure

    figures = []

    def save(figure, to, **form):
        figures.append(figure)
        to.write(b"drawn" if form == {"format": "png"} else "<svg>")

    def draw_plots(header, lines, best):
        assert html_report.draw(metrics.parse_metrics("".join([header, *lines])), best, tmp_path) == (
            b"drawn",
            "<svg>",
        )
        return figures[-1].axes

    monkeypatch.setattr(Figure, "savefig", save)
    return draw_plots


def test_curve_counts_passes_from_1_and_has_a_line_for_each_restart(draw):
    lines = [f"{number},0,{number // 2},10,1.0,10,0.5,0.25\n" for number in range(4)]
    for axis in draw(f"{HEAD},test_error\n", lines, {}):
        curve, mark = axis.lines
        assert list(curve.get_xdata()) == [1, 2, 3, 4]
        assert list(mark.get_xdata()) == [2.5, 2.5]
        assert [text.get_text() for text in axis.texts] == ["attempt 1"]


def test_curve_marks_the_best_pass(draw):
    lines = [f"{number},0,0,10,1.0,10,0.5,{auc},0.5\n" for number, auc in enumerate((0.6, 0.8, 0.7))]
    best = {"metric": "auc", "pass": 1, "value": 0.8, "endedEarly": False}
    _, auc, error = draw(f"{HEAD},test_auc,test_error\n", lines, best)
    star = auc.lines[1]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([2], [0.8])
    assert auc.get_title() == "Test auc, best 0.8000 after pass 2"
    assert len(error.lines) == 1


def test_many_ranks_and_nan_losses_are_drawn_and_a_file_without_passes_is_not(tmp_path):
    lines = [f"0,{rank},0,10,1.0,10,nan,,\n" for rank in range(20)]
    rows = metrics.parse_metrics(f"{HEAD},test_error,test_auc\n" + "".join(lines))
    assert all(html_report.draw(rows, {}, tmp_path))
    assert html_report.draw([], {}, tmp_path) == (b"", "")


def test_mean_loss_without_samples_is_nan():
    assert math.isnan(metrics.mean_loss([]))


def test_importing_the_report_does_not_load_matplotlib():
    code = "import sys, launcher.reporting.html_report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_matplotlib_has_the_folder_of_mplconfigdir_which_is_created_or_else_another_one(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "work" / "matplotlib"))
    with html_report._matplotlib_cache(tmp_path):
        assert os.environ["MPLCONFIGDIR"] == str(tmp_path / "work" / "matplotlib")
    assert (tmp_path / "work" / "matplotlib").is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "file" / "below"))
    with html_report._matplotlib_cache(tmp_path):
        spare = Path(os.environ["MPLCONFIGDIR"])
        assert spare.is_dir()
    assert (os.environ["MPLCONFIGDIR"], spare.exists()) == (str(tmp_path / "file" / "below"), False)
