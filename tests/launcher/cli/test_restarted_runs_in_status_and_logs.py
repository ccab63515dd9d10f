"""What commands show of a run that restarts: attempts, causes, what it waits for, and earlier logs."""

import json

import pytest

from launcher.cli import run_view
from launcher.cli.job_sessions import ClusterSession

from .conftest import (
    FAILED,
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


def ended(code, when, message=""):
    end = {"exitCode": code, "finishedAt": when, "message": message}
    return [{"name": "train", "state": {"terminated": end}}]


RUNNING = [make_pod(f"p{rank}", rank=rank) for rank in range(3)]


def test_status_shows_the_attempt_and_each_restart_with_time_and_first_line_of_its_cause():
    shown = print_screen(make_view(pods=RUNNING, status=make_status(attempt=2, restarts=make_restarts(2))))
    assert any(line.endswith("attempt 2, 2 restarts") for line in shown)
    at = shown.index("Restarts (2)")
    assert shown[at + 2 : at + 4] == [
        f"2026-11-21 04:5{3 + k}:18Z        {k}  rank 1 (pod p1 on node2): trainer exited with SIGKILL, time {k}"
        for k in range(2)
    ]
    assert not any("[x] line" in line for line in shown)


def test_only_the_newest_of_many_restarts_are_shown():
    shown = print_screen(make_view(pods=RUNNING, status=make_status(attempt=40, restarts=make_restarts(40))))
    assert "Restarts (40, the last 5)" in shown
    assert [k for k in range(40) if any(line.endswith(f"time {k}") for line in shown)] == [35, 36, 37, 38, 39]


def test_a_run_at_rendezvous_shows_what_it_waits_for_and_its_checkpoint():
    status = make_idle(state="rendezvous", attempt=1, restarts=make_restarts(1), waitingFor="rank 1 to come")
    seen = make_view(pods=RUNNING, status=status, run={"runId": K8S_JOB, "resume": [3, 500]})
    assert not seen.is_over
    assert seen.progress.fraction == 0.3
    assert run_view.status_line(seen) == (
        "rendezvous: attempt 1, 1 restart, resumes from pass 4, batch 500, waits for rank 1 to come"
    )
    assert "waits for rank 1 to come" in print_screen(seen)


def test_a_checkpoint_that_may_be_outdated_is_not_shown():
    for state in ("stopped", "rendezvous"):
        status = make_idle(state=state, attempt=3, restarts=make_restarts(1))
        assert "resumes from p" not in run_view.status_line(
            make_view(pods=RUNNING, status=status, run={"runId": K8S_JOB, "resume": [3, 5]})
        )


def test_a_run_that_waits_for_a_rank_shows_the_reason_and_when_it_gives_up():
    full = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available",
    }
    pending = make_pod("p1", rank=1, phase="Pending", conditions=[full])
    pods = [make_pod("p0", rank=0), pending, make_pod("p2", rank=2)]
    status = make_idle(state="rendezvous", waitingFor="rank 1 to join", waitingSince=1000.0, joinSeconds=7200)
    end = (
        "(since 1970-01-01 00:16:40Z; the run gives up at 1970-01-01 02:16:40Z: rendezvousSeconds + training."
    )
    wait = f"rank 1 (p1): Unschedulable: 0/2 nodes are available {end}rankWaitHours)"
    assert run_view.describe_wait(make_view(pods=pods, status=status)) == wait
    assert end in "\n".join(print_screen(make_view(pods=pods, status=status)))
    status = make_status(joinSeconds=7200, updated=1000.0)
    assert end not in run_view.status_line(make_view(pods=[make_pod("p0", rank=0)], status=status))
    of_rank_0 = make_view(pods=[make_pod("p1", rank=1), make_pod("p2", rank=2)], status=status)
    assert run_view.describe_wait(of_rank_0) == f"a new pod of rank 0 {end}rankWaitHours)"


FULL = 'Usage of EmptyDir volume "work" exceeds the limit "12Mi". '
EVICTED = 'Evicted: Usage of EmptyDir volume "work" exceeds the limit "12Mi". Fix: increase workDir.sizeLimit'


def evicted(name, rank, made="1"):
    status = {"reason": "Evicted", "message": FULL, "containerStatuses": ended(143, "1", "received SIGTERM")}
    return make_pod(name, rank=rank, phase="Failed", made=made, **status)


@pytest.mark.parametrize(
    ("pods", "status", "expected"),
    [
        (
            [evicted("p0", 0), evicted("p1", 1)],
            {"state": "stopped", "cause": "rank 0 (p0): received SIGTERM"},
            f"(lost: rank 0 (p0), rank 1 (p1): {EVICTED})",
        ),
        (
            [make_pod("p0", rank=0), evicted("p1", 1)],
            {"state": "rendezvous"},
            f"a new pod of rank 1 (lost: rank 1 (p1): {EVICTED})",
        ),
        (
            [make_pod("p0", rank=0), evicted("p1", 1), make_pod("p1-new", rank=1, phase="Pending", made="2")],
            {"state": "rendezvous"},
            f"rank 1 (p1-new): not scheduled yet (lost: rank 1 (its previous pod): {EVICTED})",
        ),
        (
            [make_pod("p0", rank=0), evicted("p1", 1), make_pod("p1-new", rank=1, made="2")],
            {"state": "rendezvous", "waitingFor": "rank 1 (p1-new) to stage its shard"},
            f"rank 1 (p1-new) to stage its shard (lost: rank 1 (its previous pod): {EVICTED})",
        ),
    ],
    ids=["all pods", "no new pod yet", "new pod is pending", "new pod prepares again"],
)
def test_a_run_that_waits_shows_why_kubernetes_ended_its_pods(pods, status, expected):
    seen = make_view(pods=[*pods, make_pod("p2", rank=2)], status=make_idle(**status))
    assert expected in run_view.describe_wait(seen)
    assert expected in run_view.status_line(seen)
    assert "\n".join(print_screen(seen)).count(FULL.strip(" .")) == 1, "each reason is shown once"


def test_a_pod_that_trains_again_hides_why_the_previous_one_was_lost():
    pods = [
        make_pod("p0", rank=0),
        evicted("p1", 1),
        make_pod("p1-new", rank=1, made="2"),
        make_pod("p2", rank=2),
    ]
    seen = make_view(pods=pods, status=make_status())
    assert "Evicted" not in run_view.status_line(seen)


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
    assert removed[0] in run_view.remarks(view)


@pytest.mark.parametrize("with_files", [True, False])
def test_a_suspended_job_waits_for_resume(with_files):
    files = {"status": make_status()} if with_files else {}
    seen = make_view(make_job(K8S_JOB, suspended=True), **files)
    wait = "`resume`: the Job is suspended and will continue from its newest checkpoint"
    assert run_view.describe_wait(seen) == wait
    assert wait in run_view.status_line(seen)
    assert f"waits for {wait}" in print_screen(seen)


@pytest.mark.parametrize("harmless", [{"code": 143}, {"code": 69}, {"code": 137, "disrupted": True}])
def test_the_cause_is_never_a_harmless_or_replaced_pod(harmless):
    disrupted = (
        {"conditions": [{"type": "DisruptionTarget", "status": "True"}]} if "disrupted" in harmless else {}
    )
    pods = [
        make_pod(
            "old", rank=0, phase="Failed", made="1", containerStatuses=ended(71, "1", "storage was lost")
        ),
        make_pod(
            "stopped",
            rank=1,
            phase="Failed",
            made="2",
            containerStatuses=ended(harmless["code"], "2", "x"),
            **disrupted,
        ),
        make_pod("guilty", rank=0, phase="Failed", made="3", containerStatuses=ended(70, "3", "used up")),
        make_pod("late", rank=2, phase="Failed", made="4", containerStatuses=ended(70, "4", "lost rank 0")),
    ]
    seen = make_view(make_job(K8S_JOB, FAILED), pods=pods)
    assert (seen.state, seen.cause) == ("failed", "guilty (rank 0): used up")
    assert seen.training.reason == "used up"


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
