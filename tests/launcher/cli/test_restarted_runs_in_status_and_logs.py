"""What commands show of a run that restarts: attempts, causes, what it waits for, and earlier logs."""

import json

import pytest

from launcher.cli import run_display
from launcher.cli.job_sessions import ClusterSession

from .conftest import (
    K8S_JOB,
    make_idle,
    make_job,
    make_pod,
    make_restarts,
    make_status,
    make_view,
    print_screen,
)
from .fake_cluster import FakeCluster


@pytest.mark.parametrize(("count", "title", "first"), [(2, "(2)", 0), (40, "(40, the last 5)", 35)])
def test_status_shows_the_attempt_and_the_newest_restarts_with_time_and_first_line_of_the_cause(
    count, title, first
):
    status = make_status(attempt=count, restarts=make_restarts(count))
    shown = print_screen(make_view(pods=[make_pod("p0", rank=0)], status=status))
    assert any(line.endswith(f"attempt {count}, {count} restarts") for line in shown)
    at = shown.index(f"Restarts {title}") + 2
    cells = [line.split(maxsplit=3) for line in shown[at : at + count - first]]
    cause = "rank 1 (pod p1 on node2): trainer exited with SIGKILL, time"
    assert [(attempt, text) for _, _, attempt, text in cells] == [
        (str(k), f"{cause} {k}") for k in range(first, count)
    ]
    assert count > 2 or cells[0][:2] == ["2026-11-21", "04:53:18Z"]
    assert not any("[x] line" in line for line in shown)


def test_a_pod_that_was_preempted_and_removed_is_explained_by_its_event(tmp_path):
    """Its object is gone as soon as its processes have exited."""
    cluster = FakeCluster(tmp_path)
    cluster.add_release(trainers=2)
    cluster.jobs = [make_job(K8S_JOB)]
    cluster.pods = [make_pod("p0", rank=0)]
    for name in (f"{K8S_JOB}-1-x2x4z", "another-job-1-abcde"):
        cluster.events.append(
            {
                "reason": "Preempted",
                "message": "Preempted by pod 42 on node node2",
                "involvedObject": {"name": name},
                "lastTimestamp": "2026-11-21T05:00:00Z",
            }
        )
    view = ClusterSession(cluster, "paddle-training").poll_view()
    removed = [note for note in view.notes if "removed" in note]
    assert removed == [f"pod {K8S_JOB}-1-x2x4z was removed: Preempted: Preempted by pod 42 on node node2"]
    assert removed[0] in run_display.remarks(view)


def put(job_folder, name, value):
    (job_folder / "output" / name).write_text(json.dumps(value))


def test_status_as_json_has_restarts_and_waiting_for(cli, job_folder):
    restarts = make_restarts(2)
    put(job_folder, "status.json", make_idle(state="restarting", restarts=restarts, waitingFor="rank 2"))
    value = json.loads(cli("status", "--path", job_folder, "-o", "json")[1])
    assert value["state"] == "restarting"
    assert value["progress"]["restarts"] == restarts
    assert value["progress"]["waiting_for"] == "rank 2"
    assert value["progress"]["pass"] is None and value["ranks"][2]["pass"] is None


def test_every_table_counts_passes_from_1(cli, job_folder):
    put(job_folder, "status.json", make_status())
    rows = [line.split() for line in cli("status", "--path", job_folder)[1].splitlines()]
    assert [row[5] for row in rows if row[:1] == ["0"]] == ["7"]
    rows = [line.split() for line in cli("results", "--path", job_folder)[1].splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["1", "2"]


def test_results_show_the_number_of_restarts_and_copy_earlier_logs(cli, job_folder, tmp_path):
    put(job_folder, "run.json", {"runId": K8S_JOB, "state": "complete", "restarts": make_restarts(2)})
    code, out, _ = cli("results", "--path", job_folder, "--to", tmp_path / "to")
    assert code == 0
    assert "complete (restarts: 2;" in out
    assert (
        tmp_path / "to" / "node_2" / "attempt-0" / "train.log"
    ).read_text() == "trainer 2, first attempt\n"


@pytest.mark.parametrize(
    ("state", "attempt", "logs"),
    [
        ("training", 1, {0: "trainer 0, first attempt\n", 1: "trainer 0\n"}),
        ("rendezvous", 2, {0: "trainer 0, first attempt\n", 1: "trainer 0\n"}),
        ("failed", 5, {2: "trainer 0, first attempt\n", 5: "trainer 0\n"}),
    ],
)
def test_an_attempts_log_is_found_by_its_number(cli, job_folder, state, attempt, logs):
    put(job_folder, "status.json", {"state": state, "attempt": attempt})
    node = job_folder / "output" / "node_0"
    (node / "attempt-0").rename(node / f"attempt-{min(logs)}")
    for number, text in logs.items():
        assert cli("logs", "--path", job_folder, "--attempt", number)[:2] == (0, text)


def test_following_an_earlier_attempts_log_stops_at_its_end(cli, job_folder):
    put(job_folder, "status.json", make_status(attempt=1))
    text = "trainer 1, first attempt\n"
    assert cli("logs", "--path", job_folder, "--rank", 1, "--attempt", 0, "--follow")[:2] == (0, text)


@pytest.mark.parametrize(("state", "known"), [("training", "0, 2"), ("rendezvous", "0, 1")])
def test_an_attempt_without_a_log_is_reported_with_those_that_have_one(cli, job_folder, state, known):
    put(job_folder, "status.json", {"state": state, "attempt": 2})
    attempt = {"training": 3, "rendezvous": 2}[state]
    code, out, err = cli("logs", "--path", job_folder, "--attempt", attempt)
    assert (code, out) == (64, "")
    assert f"--attempt {attempt}: rank 0 has no log of this attempt" in err
    assert f"there are logs of: {known}. Fix: " in err
