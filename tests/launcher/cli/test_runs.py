"""The runs of a job (`runs`, `compare`, `results --run`, `clean`), and a repeated push."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.cli.cluster.cluster_api import Cluster
from launcher.cli.commands import clean
from launcher.cli.session import ClusterSession
from launcher.cli.storage.run_history import SavedRun
from launcher.schema import RunFile

Cli = Callable[..., tuple[int, str, str]]
DAY = 86400.0


def add_run(job: Path, name: str, days_ago: float, error: float, **fingerprint: object) -> None:
    """Create an earlier run: two passes in twenty minutes with three trainers."""
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
    assert "test_error of quick-start-bbbb  0.2200  █▁" in out


def keep_program(job: Path, name: str, text: str, **options: str) -> None:
    told = {"options": options, "files": {"trainer_config.py": text}}
    (job / "runs" / name / "program.json").write_text(json.dumps(told))


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
    told = json.loads(cli("compare", "--path", job, "defaults", "other", "-o", "json")[1])
    assert told["differing"] == ["program", "--width"]
    assert "+SIZE = 2" in told["diff"]


def test_a_long_diff_of_programs_ends_with_the_number_of_lines_that_are_hidden(cli: Cli, job: Path) -> None:
    add_run(job, "other", 2, 0.12, program="b" * 64)
    add_run(job, "one", 2, 0.12)
    keep_program(job, "other", "x\n" * 150, rate="1")
    keep_program(job, "one", "", rate="1")
    assert "\n53 more lines; -o json prints all" in cli("compare", "--path", job, "one", "other")[1]


def test_a_run_of_an_earlier_launcher_counts_as_having_equal_defaults(cli: Cli, job: Path) -> None:
    add_run(job, "newer", 2, 0.12, program="b" * 64)
    keep_program(job, "newer", "", learning_rate="0.01", width="8")
    told = json.loads(cli("compare", "--path", job, "newer", "quick-start-b", "-o", "json")[1])
    assert told["differing"] == ["program", "--learning_rate"]
    assert told["diff"] == ["the programs differ, but their text was not saved"]


def test_runs_shows_the_best_pass_of_a_run_that_ended_early(cli: Cli, job: Path) -> None:
    path = job / "runs" / "quick-start-bbbb" / "run.json"
    about = {"keepBest": "error", "patience": 1, "passes": 9, "modelPass": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | about))
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


def test_clean_keeps_the_newest_and_used_runs_and_prints_the_removed_bytes(cli: Cli, job: Path) -> None:
    (job / "runs" / "quick-start-cccc" / "run.lock").write_text("{}")
    code, out, err = cli("clean", "--path", job, "--keep", "1", "--yes")
    assert code == 0
    assert names(job) == ["quick-start-aaaa", "quick-start-cccc"]
    assert out.startswith("removed quick-start/runs/quick-start-bbbb: 1,")
    assert "kept: quick-start/runs/quick-start-cccc: a run writes to it" in err
    assert (job / "output" / "model").is_dir()


def test_clean_keeps_runs_that_finished_within_the_given_days(cli: Cli, job: Path) -> None:
    assert cli("clean", "--path", job, "--keep", "0", "--older-than", "5", "--yes")[0] == 0
    assert names(job) == ["quick-start-aaaa", "quick-start-bbbb"]


def test_clean_without_confirmation_removes_nothing(cli: Cli, job: Path) -> None:
    code, _, err = cli("clean", "--path", job, "--keep", "0")
    assert code == 64
    assert "--yes" in err
    assert len(names(job)) == 3


@pytest.mark.parametrize("key", ["initModelPath", "initFrom"])  # the latter is of earlier launchers
def test_the_run_of_the_initial_model_and_one_that_a_pod_uses_are_kept(key: str) -> None:
    def past(folder: str, **fingerprint: str) -> SavedRun:
        return SavedRun(folder, RunFile(fingerprint=fingerprint, finished=1.0), [])

    pasts = [
        past("output", **{key: "quick-start/runs/a"}),
        past("runs/a"),
        past("runs/b"),
        past("runs/c"),
    ]
    assert [(run.name, why) for run, why in clean.explain_kept_runs(pasts, 0, 0, {"b"})] == [
        ("a", "the current run started from its model (training.initModelPath)"),
        ("b", "a pod uses it"),
        ("c", ""),
    ]


@pytest.mark.parametrize(("phase", "used"), [("Running", {"b"}), ("Pending", {"b"}), ("Succeeded", set())])
def test_a_run_is_used_if_a_live_pod_has_its_folder_in_its_spec(phase: str, used: set[str]) -> None:
    pasts = [SavedRun(folder, RunFile(), []) for folder in ("output", "runs/b", "runs/bb")]
    pod = {
        "metadata": {"name": "server", "namespace": "another"},
        "spec": {"containers": [{"args": ["serve", "--model", "/home/jobpath/job/runs/b/model"]}]},
        "status": {"phase": phase},
    }
    cluster = SimpleNamespace(list_in_all_namespaces=lambda kind, action: [pod] if kind == "pod" else [])
    session = ClusterSession(cast(Cluster, cluster), "paddle-training", print)
    assert clean.find_runs_used_by_pods(session, pasts) == used


def test_an_equal_file_is_not_sent_again_and_a_different_one_is_rejected(
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
        assert "exists already with other content; nothing was sent" in err
        assert there.read_text() == "1,a\n"
    assert cli(*push, "--force")[0] == 0
    assert there.read_text() == "a longer one\n"
