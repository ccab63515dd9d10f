"""Runs of one job beside each other (`runs`, `compare`, `results --run`, `clean`), and what a push finds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.cli import runs
from launcher.cli.cluster import Cluster
from launcher.cli.runs import Past
from launcher.cli.session import ClusterSession

Cli = Callable[..., tuple[int, str, str]]
DAY = 86400.0


def add_run(job: Path, name: str, days_ago: float, error: float, **fingerprint: object) -> None:
    """An output that was moved aside: two passes in twenty minutes with three trainers."""
    folder = job / "runs" / name
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "network").write_bytes(b"x" * 1000)
    ended = time.time() - days_ago * DAY
    told = {
        "runId": name,
        "state": "complete",
        "started": ended - 1200,
        "finished": ended,
        "score": {"error": error},
        "restarts": [],
        "fingerprint": {"trainers": 3, "batchSize": 64, "program": "a" * 64, **fingerprint},
    }
    (folder / "run.json").write_text(json.dumps(told))
    (folder / "metrics.csv").write_text(
        "pass,rank,attempt,samples,seconds,samples_per_second,train_loss,test_error\n"
        f"0,0,0,100,2.0,50,0.6,{error + 0.1}\n1,0,0,100,2.0,50,0.5,{error}\n"
    )


@pytest.fixture
def job(job_folder: Path) -> Path:
    add_run(job_folder, "quick-start-aaaa", 1, 0.13, extraArgs=["--learning_rate=0.01"])
    add_run(job_folder, "quick-start-bbbb", 3, 0.12, extraArgs=["--learning_rate=0.03"])
    add_run(job_folder, "quick-start-cccc", 9, 0.15, extraArgs=["--learning_rate=0.01"])
    return job_folder


def names(job: Path) -> list[str]:
    return sorted(path.name for path in (job / "runs").iterdir())


def test_runs_lists_the_present_one_first_then_the_newest_with_what_differs(cli: Cli, job: Path) -> None:
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
    told = {run["name"]: run for run in json.loads(out)}
    assert code == 0
    assert told["quick-start-bbbb"]["settings"]["--learning_rate"] == "0.03"
    assert [row["test_error"] for row in told["quick-start-bbbb"]["passes"]] == [0.22, 0.12]


def test_compare_shows_only_the_settings_that_differ_and_both_curves(cli: Cli, job: Path) -> None:
    code, out, _ = cli("compare", "--path", job, "quick-start-a", "quick-start-b")
    assert code == 0
    assert "--learning_rate" in out
    assert "batchSize" not in out
    assert "0.1300" in out
    assert "0.1200" in out
    assert "test_error of quick-start-bbbb: █▁" in out


def keep_program(job: Path, name: str, text: str, **options: str) -> None:
    told = {"options": options, "files": {"trainer_config.py": text}}
    (job / "runs" / name / "program.json").write_text(json.dumps(told))


def test_compare_shows_defaults_that_differ_and_the_programs_diff(cli: Cli, job: Path) -> None:
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
    told = json.loads(cli("compare", "--path", job, "defaults", "other", "-o", "json")[1])
    assert told["differing"] == ["program", "--width"]
    assert "+SIZE = 2" in told["diff"]


def test_a_long_diff_of_programs_ends_with_the_number_of_lines_that_are_hidden(cli: Cli, job: Path) -> None:
    add_run(job, "other", 2, 0.12, program="b" * 64)
    add_run(job, "one", 2, 0.12)
    keep_program(job, "other", "x\n" * 150, rate="1")
    keep_program(job, "one", "", rate="1")
    assert "\n53 more lines: -o json has all" in cli("compare", "--path", job, "one", "other")[1]


def test_a_run_of_an_earlier_launcher_counts_as_having_the_same_defaults(cli: Cli, job: Path) -> None:
    add_run(job, "newer", 2, 0.12, program="b" * 64)
    keep_program(job, "newer", "", learning_rate="0.01", width="8")
    told = json.loads(cli("compare", "--path", job, "newer", "quick-start-b", "-o", "json")[1])
    assert told["differing"] == ["program", "--learning_rate"]
    assert told["diff"] == ["the programs differ, but the text in which they do was not kept"]


def test_runs_shows_the_best_pass_of_a_run_that_ended_early(cli: Cli, job: Path) -> None:
    path = job / "runs" / "quick-start-bbbb" / "run.json"
    about = {"keepBest": "error", "patience": 1, "passes": 9, "modelPass": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | about))
    assert "error 0.1200, best error 0.2200 after pass 1, ended early" in cli("runs", "--path", job)[1]


def test_compare_without_names_takes_the_present_run_and_the_one_before_it(cli: Cli, job: Path) -> None:
    code, shown, _ = cli("compare", "--path", job)
    assert code == 0
    assert "of quick-start-aaaa:" in shown
    assert shown == cli("compare", "--path", job, "output", "quick-start-aaaa")[1]


@pytest.mark.parametrize(
    ("name", "why"), [("quick-start", "means several runs"), ("x", "is no run of this job")]
)
def test_a_name_that_is_no_run_is_refused_with_those_there_are(
    cli: Cli, job: Path, name: str, why: str
) -> None:
    code, _, err = cli("compare", "--path", job, "output", name)
    assert code == 64
    assert why in err
    assert "quick-start-cccc" in err


def test_results_of_a_run_that_was_moved_aside_are_copied(cli: Cli, job: Path, tmp_path: Path) -> None:
    code, out, _ = cli("results", "--path", job, "--run", "quick-start-b", "--to", tmp_path / "got")
    assert code == 0
    assert "error 0.1200" in out
    assert (tmp_path / "got" / "model" / "network").read_bytes() == b"x" * 1000


def test_clean_keeps_the_newest_and_what_is_in_use_and_says_what_became_free(cli: Cli, job: Path) -> None:
    (job / "runs" / "quick-start-cccc" / "run.lock").write_text("{}")
    code, out, err = cli("clean", "--path", job, "--keep", "1", "--yes")
    assert code == 0
    assert names(job) == ["quick-start-aaaa", "quick-start-cccc"]
    assert out.startswith("removed quick-start/runs/quick-start-bbbb: 1,")
    assert "keeps quick-start/runs/quick-start-cccc: a run writes there" in err
    assert (job / "output" / "model").is_dir()


def test_clean_keeps_what_ended_within_the_given_days(cli: Cli, job: Path) -> None:
    assert cli("clean", "--path", job, "--keep", "0", "--older-than", "5", "--yes")[0] == 0
    assert names(job) == ["quick-start-aaaa", "quick-start-bbbb"]


def test_clean_without_an_answer_removes_nothing(cli: Cli, job: Path) -> None:
    code, _, err = cli("clean", "--path", job, "--keep", "0")
    assert code == 64
    assert "--yes" in err
    assert len(names(job)) == 3


def test_a_run_whose_model_the_present_one_began_with_and_one_that_a_pod_reads_stay() -> None:
    def past(folder: str, **fingerprint: str) -> Past:
        return Past(folder, {"fingerprint": fingerprint, "finished": 1.0}, [], locked=False)

    pasts = [past("output", initFrom="quick-start/runs/a"), past("runs/a"), past("runs/b"), past("runs/c")]
    going, staying = runs.unused(pasts, 0, 0, {"b"})
    assert [p.name for p in going] == ["c"]
    assert [(p.name, why) for p, why in staying] == [
        ("a", "the present run began with its model (training.initFrom)"),
        ("b", "a pod reads it"),
    ]


@pytest.mark.parametrize(("phase", "used"), [("Running", {"b"}), ("Pending", {"b"}), ("Succeeded", set())])
def test_a_run_is_in_use_when_a_living_pod_was_given_its_folder(phase: str, used: set[str]) -> None:
    pasts = [Past(folder, {}, [], locked=False) for folder in ("output", "runs/b", "runs/bb")]
    pod = {
        "metadata": {"name": "server", "namespace": "another"},
        "spec": {"containers": [{"args": ["serve", "--model", "/home/jobpath/job/runs/b/model"]}]},
        "status": {"phase": phase},
    }
    cluster = SimpleNamespace(items_everywhere=lambda kind, doing: [pod] if kind == "pod" else [])
    session = ClusterSession(cast(Cluster, cluster), "paddle-training", print)
    assert runs.read_by_pods(session, pasts) == used


def test_a_file_that_is_there_already_is_not_sent_again_and_another_one_of_its_name_is_refused(
    cli: Cli, job: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("1,a\n")
    push = ("push", "--path", job, "--source", file)
    assert cli(*push)[0] == 0
    there = job.parent / "sources" / "rows.csv"
    before = there.stat().st_ino
    code, out, err = cli(*push)
    assert (code, there.stat().st_ino) == (0, before)
    assert "nothing to send" in err
    assert "data.source=file://rows.csv" in out
    for other in ("2,b\n", "a longer one\n"):
        file.write_text(other)
        code, _, err = cli(*push)
        assert code == 3
        assert "there already with other content; nothing was sent" in err
        assert there.read_text() == "1,a\n"
    assert cli(*push, "--force")[0] == 0
    assert there.read_text() == "a longer one\n"
