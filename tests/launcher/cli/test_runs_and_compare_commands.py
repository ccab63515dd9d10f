"""The runs of a job: `runs`, `compare` and `results --run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import add_run, update_json

Cli = Callable[..., tuple[int, str, str]]


def test_runs_lists_the_current_run_first_with_differing_settings(cli: Cli, job: Path) -> None:
    add_run(job, ".quick-start-dddd.0123.old", 2, 0.13)  # `clean` is removing it
    code, out, _ = cli("runs", "--path", job)
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "output",
        "quick-start-aaaa",
        "quick-start-bbbb",
        "quick-start-cccc",
    ]
    assert "--learning_rate" in lines[0]
    assert "20 min 00 s" in lines[2]
    assert "1.00" in lines[2], "three pods for twenty minutes are one pod hour"
    assert "error 0.1300" in lines[2]


def test_runs_as_json_has_the_settings_and_the_passes(cli: Cli, job: Path) -> None:
    code, out, _ = cli("runs", "--path", job, "-o", "json")
    answer = {run["name"]: run for run in json.loads(out)}
    assert code == 0
    assert answer["quick-start-bbbb"]["settings"]["--learning_rate"] == "0.03"
    assert [row["test_error"] for row in answer["quick-start-bbbb"]["passes"]] == [0.22, 0.12]


def test_compare_shows_only_the_settings_that_differ_and_both_curves(cli: Cli, job: Path) -> None:
    code, out, _ = cli("compare", "--path", job, "quick-start-a", "quick-start-b")
    assert code == 0
    assert "--learning_rate" in out
    assert "batchSize" not in out
    assert "0.1300" in out
    assert "0.1200" in out
    assert "test_error of quick-start-bbbb  0.2200  █▁" in out


def keep_program(job: Path, name: str, text: str, **options: str) -> None:
    answer = {"options": options, "files": {"trainer_config.py": text}}
    (job / "runs" / name / "program.json").write_text(json.dumps(answer))


def test_compare_shows_differing_defaults_and_the_programs_diff(cli: Cli, job: Path) -> None:
    add_run(job, "other", 2, 0.12, program="b" * 64, extraArgs=["--width=16"])
    add_run(job, "defaults", 2, 0.12)
    keep_program(job, "other", "LABEL = 'x'\nSIZE = 2\n", width="16", rate="0.1", seed="1")
    keep_program(job, "defaults", "LABEL = 'x'\nSIZE = 1\n", width="8", rate="0.1", seed="1")
    code, out, _ = cli("compare", "--path", job, "defaults", "other")
    assert code == 0
    assert "--width" in out, "one of the two is a default"
    assert "--rate" not in out
    assert "--- defaults/trainer_config.py" in out
    assert "\n-SIZE = 1\n+SIZE = 2\n" in out
    answer = json.loads(cli("compare", "--path", job, "defaults", "other", "-o", "json")[1])
    assert answer["differing"] == ["program", "--width"]
    assert "+SIZE = 2" in answer["diff"]


def test_a_long_diff_of_programs_ends_with_the_number_of_lines_that_are_hidden(cli: Cli, job: Path) -> None:
    add_run(job, "other", 2, 0.12, program="b" * 64)
    add_run(job, "one", 2, 0.12)
    keep_program(job, "other", "x\n" * 150, rate="1")
    keep_program(job, "one", "", rate="1")
    assert "\n53 more lines; -o json prints all" in cli("compare", "--path", job, "one", "other")[1]


def test_compare_says_if_the_text_of_a_program_was_not_saved(cli: Cli, job: Path) -> None:
    add_run(job, "newer", 2, 0.12, program="b" * 64)
    answer = json.loads(cli("compare", "--path", job, "newer", "quick-start-b", "-o", "json")[1])
    assert answer["differing"] == ["program", "--learning_rate"]
    assert answer["diff"] == ["the programs differ, but their text was not saved"]


def test_runs_shows_the_best_pass_of_a_run_that_ended_early(cli: Cli, job: Path) -> None:
    about = {"keepBest": "error", "patience": 1, "passes": 9, "modelPass": 0}
    update_json(job / "runs" / "quick-start-bbbb" / "run.json", **about)
    assert "error 0.1200, best error 0.2200 after pass 1, stopped early" in cli("runs", "--path", job)[1]


def test_compare_without_names_uses_the_current_and_the_previous_run(cli: Cli, job: Path) -> None:
    code, shown, _ = cli("compare", "--path", job)
    assert code == 0
    assert "of quick-start-aaaa " in shown
    assert shown == cli("compare", "--path", job, "output", "quick-start-aaaa")[1]


@pytest.mark.parametrize(
    ("name", "why"), [("quick-start", "matches several runs"), ("x", "is not a run of this job")]
)
def test_an_unknown_run_is_rejected_with_the_known_ones(cli: Cli, job: Path, name: str, why: str) -> None:
    code, _, err = cli("compare", "--path", job, "output", name)
    assert code == 64
    assert why in err
    assert "quick-start-cccc" in err


def test_results_of_an_earlier_run_are_copied(cli: Cli, job: Path, tmp_path: Path) -> None:
    code, out, _ = cli("results", "--path", job, "--run", "quick-start-b", "--to", tmp_path / "got")
    assert code == 0
    assert "error 0.1200" in out
    assert (tmp_path / "got" / "model" / "network").read_bytes() == b"x" * 1000
