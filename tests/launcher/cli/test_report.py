"""Tables and the picture of a run."""

import math
import subprocess
import sys

import pytest

from launcher import report


def test_a_pass_trained_again_counts_with_its_last_attempt_and_half_lines_do_not_count(metrics):
    rows = report.parse_metrics(metrics)
    assert [(row.number, row.rank, row.attempt, row.train_loss) for row in rows] == [
        (0, 0, 0, 0.6),
        (0, 1, 0, 0.2),
        (1, 0, 1, 0.4),
        (1, 1, 1, 0.2),
    ]


def test_the_table_has_one_row_a_pass_with_sums_and_weighted_loss(metrics):
    table = report.pass_table(report.parse_metrics(metrics))
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


def test_no_samples_have_no_loss():
    assert math.isnan(report.mean_loss([]))


def test_the_picture_appears_whole_and_alone(job_folder):
    output = job_folder / "output"
    assert report.draw_curve(output) == output / "curve.png"
    assert (output / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not [path for path in output.iterdir() if path.name.startswith(".")]


def test_without_passes_nothing_is_drawn(tmp_path):
    assert report.draw_curve(tmp_path) is None
    (tmp_path / "metrics.csv").write_text("pass,rank\n")
    assert report.draw_curve(tmp_path) is None
    assert not (tmp_path / "curve.png").exists()


def test_many_ranks_and_a_loss_that_is_none_are_drawn_too(tmp_path):
    lines = ["pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error,test_auc"]
    lines += [f"0,{rank},0,10,1.0,10,nan,," for rank in range(20)]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert report.draw_curve(tmp_path)


def test_importing_the_module_loads_no_matplotlib():
    code = "import sys, launcher.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
