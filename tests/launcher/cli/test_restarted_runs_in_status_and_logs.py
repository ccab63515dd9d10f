"""What commands show of a run that restarts: attempts, causes, what it waits for, and earlier logs."""

import json

import pytest

from launcher.cli import run_display
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
    unscheduled,
)
from .fake_cluster import FakeCluster


def ended(code, when, message=""):
    end = {"exitCode": code, "finishedAt": when, "message": message}
    return [{"name": "train", "state": {"terminated": end}}]


P0, *_ = RUNNING = [make_pod(f"p{rank}", rank=rank) for rank in range(3)]


@pytest.mark.parametrize(("count", "title", "first"), [(2, "(2)", 0), (40, "(40, the last 5)", 35)])
def test_status_shows_the_attempt_and_the_newest_restarts_with_time_and_first_line_of_the_cause(
    count, title, first
):
    status = make_status(attempt=count, restarts=make_restarts(count))
    shown = print_screen(make_view(pods=RUNNING, status=status))
    assert any(line.endswith(f"attempt {count}, {count} restarts") for line in shown)
    at = shown.index(f"Restarts {title}") + 2
    cells = [line.split(maxsplit=3) for line in shown[at : at + count - first]]
    cause = "rank 1 (pod p1 on node2): trainer exited with SIGKILL, time"
    assert [(attempt, text) for _, _, attempt, text in cells] == [
        (str(k), f"{cause} {k}") for k in range(first, count)
    ]
    assert count > 2 or cells[0][:2] == ["2026-11-21", "04:53:18Z"]
    assert not any("[x] line" in line for line in shown)


def test_a_run_at_rendezvous_shows_what_it_waits_for_and_its_checkpoint_unless_that_may_be_outdated():
    status = make_idle(state="rendezvous", attempt=1, restarts=make_restarts(1), waitingFor="rank 1 to come")
    record = {"runId": K8S_JOB, "resume": [3, 500]}
    seen = make_view(pods=RUNNING, status=status, run=record)
    assert not seen.is_over
    assert seen.progress.fraction == 0.3
    assert run_display.status_line(seen) == (
        "rendezvous: attempt 1, 1 restart, resumes from pass 4, batch 500, waits for rank 1 to come"
    )
    assert "waits for rank 1 to come" in print_screen(seen)
    for state in ("stopped", "rendezvous"):
        status = make_idle(state=state, attempt=3, restarts=make_restarts(1))
        assert "resumes from p" not in run_display.status_line(
            make_view(pods=RUNNING, status=status, run=record)
        )


def test_a_run_that_waits_for_a_rank_shows_the_reason_and_when_it_gives_up():
    pending = make_pod("p1", rank=1, phase="Pending", conditions=unscheduled("0/2 nodes are available"))
    pods = [make_pod("p0", rank=0), pending, make_pod("p2", rank=2)]
    status = make_idle(state="rendezvous", waitingFor="rank 1 to join", waitingSince=1000.0, joinSeconds=7200)
    end = (
        "(since 1970-01-01 00:16:40Z; the run gives up at 1970-01-01 02:16:40Z: rendezvousSeconds + training."
    )
    wait = f"rank 1 (p1): Unschedulable: 0/2 nodes are available {end}rankWaitHours)"
    assert run_display.describe_wait(make_view(pods=pods, status=status)) == wait
    assert end in "\n".join(print_screen(make_view(pods=pods, status=status)))
    status = make_status(joinSeconds=7200, updated=1000.0)
    assert end not in run_display.status_line(make_view(pods=[make_pod("p0", rank=0)], status=status))
    of_rank_0 = make_view(pods=[make_pod("p1", rank=1), make_pod("p2", rank=2)], status=status)
    assert run_display.describe_wait(of_rank_0) == f"a new pod of rank 0 {end}rankWaitHours)"


FULL = 'Usage of EmptyDir volume "work" exceeds the limit "12Mi". '
EVICTED = 'Evicted: Usage of EmptyDir volume "work" exceeds the limit "12Mi". Fix: increase workDir.sizeLimit'


def evicted(name, rank, made="1"):
    status = {"reason": "Evicted", "message": FULL, "containerStatuses": ended(143, "1", "received SIGTERM")}
    return make_pod(name, rank=rank, phase="Failed", made=made, **status)


OLD, NEW = evicted("p1", 1), {"rank": 1, "made": "2"}
LOST = f"(lost: rank 1 (its previous pod): {EVICTED})"


@pytest.mark.parametrize(
    ("pods", "status", "expected"),
    [
        (
            [evicted("p0", 0), OLD],
            make_idle(state="stopped", cause="rank 0 (p0): received SIGTERM"),
            f"(lost: rank 0 (p0), rank 1 (p1): {EVICTED})",
        ),
        ([P0, OLD], make_idle(state="rendezvous"), f"a new pod of rank 1 (lost: rank 1 (p1): {EVICTED})"),
        (
            [P0, OLD, make_pod("p1-new", phase="Pending", **NEW)],
            make_idle(state="rendezvous"),
            f"rank 1 (p1-new): not scheduled yet {LOST}",
        ),
        (
            [P0, OLD, make_pod("p1-new", **NEW)],
            make_idle(state="rendezvous", waitingFor="rank 1 (p1-new) to stage its shard"),
            f"rank 1 (p1-new) to stage its shard {LOST}",
        ),
        ([P0, OLD, make_pod("p1-new", **NEW)], make_status(), ""),
    ],
    ids=["all pods", "no new pod yet", "new pod is pending", "new pod prepares again", "new pod trains"],
)
def test_a_run_that_waits_shows_why_kubernetes_ended_its_pods(pods, status, expected):
    seen = make_view(pods=[*pods, make_pod("p2", rank=2)], status=status)
    line = run_display.status_line(seen)
    assert expected in line and ("Evicted" in line) is bool(expected)
    assert expected in run_display.describe_wait(seen)
    shown = "\n".join(print_screen(seen)).count(FULL.strip(" ."))
    assert shown == bool(expected), "each reason is shown once"


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


@pytest.mark.parametrize("with_files", [True, False])
def test_a_suspended_job_waits_for_resume(with_files):
    files = {"status": make_status()} if with_files else {}
    seen = make_view(make_job(K8S_JOB, suspended=True), **files)
    wait = "`resume`: the Job is suspended and will continue from its newest checkpoint"
    assert run_display.describe_wait(seen) == wait
    assert wait in run_display.status_line(seen)
    assert f"waits for {wait}" in print_screen(seen)


DISRUPTED = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(("code", "status"), [(143, {}), (69, {}), (137, DISRUPTED)])
def test_the_cause_is_never_a_harmless_or_replaced_pod(code, status):
    def failed(name, rank, when, code, message, **status):
        return make_pod(
            name, rank=rank, phase="Failed", made=when, containerStatuses=ended(code, when, message), **status
        )

    pods = [
        failed("old", 0, "1", 71, "storage was lost"),
        failed("stopped", 1, "2", code, "x", **status),
        failed("guilty", 0, "3", 70, "used up"),
        failed("late", 2, "4", 70, "lost rank 0"),
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
