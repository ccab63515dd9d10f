"""The view of a run: built from API objects and files."""

import pytest

from launcher.cli import run_display, run_view

from .conftest import (
    DATA_JOB,
    DONE,
    FAILED,
    K8S_JOB,
    make_files,
    make_idle,
    make_job,
    make_pod,
    make_status,
    make_view,
    print_screen,
    unscheduled,
)

PENDING = unscheduled("no node fits")


def test_a_running_training_shows_each_rank_with_pod_node_and_figures():
    pods = [make_pod(f"{K8S_JOB}-{rank}-abcde", rank=rank, node=f"node{rank + 1}") for rank in range(3)]
    view = make_view(pods=pods, status=make_status())
    assert view.state == "training"
    assert [(r.rank, r.pod, r.node, r.phase, r.number, r.batch, r.loss) for r in view.ranks] == [
        (rank, f"{K8S_JOB}-{rank}-abcde", f"node{rank + 1}", "Running", 6, 40, 0.31) for rank in range(3)
    ]
    assert view.progress.fraction == 0.65
    assert run_display.status_line(view) == (
        "training: pass 7 of 10, batch 40/80, 30,000 samples/s, loss 0.3123, ETA 1 min 15 s, attempt 0"
    )


def test_a_running_data_job_is_what_the_training_waits_for():
    pods = [make_pod("data", job=DATA_JOB), make_pod("p0", rank=0, phase="Pending")]
    view = make_view(make_job(DATA_JOB, active=1), pods=pods)
    assert view.state == "preparing"
    assert f"data job still running: {DATA_JOB}" in view.notes


def in_training(pods, *conditions, **files):
    """Return the view of a run whose training pods prepare the data."""
    about = {"k8sDataJob": "", "dataPreparedBy": "trainingPods"}
    return make_view(make_job(K8S_JOB, *conditions), pods=pods, about=about, **files)


def preparing(rank, phase="Pending", **state):
    status = [{"name": "prepare", "state": state}] if state else []
    return make_pod(f"p{rank}", rank=rank, phase=phase, initContainerStatuses=status)


def test_training_pods_that_prepare_data_are_counted_and_waited_for():
    pods = [preparing(0, running={}), preparing(1, running={}), preparing(2)]
    view = in_training(pods)
    assert (view.state, view.data.state, view.data.active) == ("preparing", "running", 2)
    assert run_display.describe_wait(view) == "the training pods prepare the data (2 of 3 prepare it)"
    waiting = in_training([make_pod("p0", rank=0, phase="Pending", conditions=PENDING, node=None)])
    assert (waiting.state, waiting.data.state) == ("preparing", "waiting")
    assert "Unschedulable: no node fits" in run_display.describe_wait(waiting)


def test_data_that_training_pods_prepared_is_complete_when_one_of_them_is_done_or_the_manifest_is_there():
    done = preparing(0, terminated={"exitCode": 0})
    view = in_training([done, preparing(1, running={})])
    assert (view.state, view.data.state, view.data.reason) == ("pending", "complete", "")
    replaced = in_training(
        [preparing(0, running={})], status=make_status(), manifest={"dataDigest": "d" * 64}
    )
    assert (replaced.state, replaced.data.state) == ("training", "complete")
    assert not replaced.notes
    over = in_training([], DONE, status=make_status(state="complete"))
    assert over.data.state == "complete"


def test_data_that_training_pods_could_not_prepare_fails_the_run_with_the_reason_of_a_pod():
    ended = {"exitCode": 65, "finishedAt": "2026-11-21T04:00:09Z", "message": "data.sha256 is wrong"}
    failed = preparing(1, phase="Failed", terminated=ended)
    view = in_training([failed], FAILED)
    assert (view.state, view.data.state) == ("failed", "failed")
    assert view.cause == "p1 (rank 1): data.sha256 is wrong"
    assert run_display.remarks(view) == []


def test_a_job_without_pods_is_explained_by_its_own_event():
    event = {"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity restricted"}
    view = make_view(events={K8S_JOB: [event]})
    assert view.training.reason == "FailedCreate: violates PodSecurity restricted"
    assert "violates PodSecurity" in run_display.describe_wait(view)


def test_the_cause_in_status_json_overrides_the_pods_messages():
    ended = {"exitCode": 70, "finishedAt": "2026-11-21T04:00:09Z", "message": "lost rank 2"}
    pods = [preparing(0, phase="Failed", terminated=ended)]
    status = make_status(state="failed", cause="rank 2: SIGSEGV")
    view = make_view(make_job(K8S_JOB, FAILED), pods=pods, status=status)
    assert view.cause == "rank 2: SIGSEGV"
    assert make_view(make_job(K8S_JOB, FAILED), pods=pods).cause == "p0 (rank 0): lost rank 2"


def test_a_failed_data_job_is_the_cause_with_the_reason_of_data_failed_json():
    failure = {"dataDigest": "d" * 64, "reason": "sha256 does not match"}
    view = make_view(make_job(DATA_JOB, FAILED), data_failure=failure)
    assert (view.state, view.cause) == ("failed", "the data Job failed: sha256 does not match")


def test_a_cause_that_the_data_job_and_all_pods_report_is_shown_once():
    cause = "data.whl has no member 'x'; it has " + ", ".join(f"corpora/member_{n}.csv" for n in range(12))

    def dead(container, text):
        ended = {"exitCode": 65, "finishedAt": "2026-11-21T04:00:01Z", "message": text}
        return [{"name": container, "state": {"terminated": ended}}]

    waited = (
        f"the data Job of this run failed: {cause} (read from /home/jobpath/quick-start/data-failed.json)"
    )
    pods = [
        make_pod("d", job=DATA_JOB, phase="Failed", containerStatuses=dead("prepare", cause)),
        *(
            make_pod(f"p{n}", rank=n, phase="Failed", initContainerStatuses=dead("await-data", waited))
            for n in range(3)
        ),
    ]
    failed = [make_job(name, FAILED) for name in (K8S_JOB, DATA_JOB)]
    view = make_view(*failed, pods=pods, data_failure={"dataDigest": "d" * 64, "reason": cause})
    assert sum("has no member" in line for line in print_screen(view)) == 1
    assert run_display.remarks(view) == []


def test_the_same_reason_of_several_ranks_is_shown_once_with_all_ranks():
    pods = [
        make_pod(f"p{rank}", rank=rank, phase="Pending", conditions=PENDING, node=None) for rank in range(2)
    ]
    view = make_view(pods=pods)
    reason = "rank 0 (p0), rank 1 (p1): Unschedulable: no node fits"
    assert (view.state, run_display.remarks(view)) == ("pending", [reason])
    assert run_display.describe_wait(view) == reason


def test_a_run_whose_pods_succeeded_before_its_job_is_complete_is_finishing():
    pods = [make_pod(f"p{rank}", rank=rank, phase="Succeeded") for rank in range(3)]
    assert make_view(pods=pods).state == "finishing"


def test_progress_of_another_run_is_not_shown():
    view = make_view(status=make_status(runId="quick-start-older"))
    assert view.progress is None
    assert view.ranks[0].loss is None
    assert any("still contains run quick-start-older" in note for note in view.notes)


def test_a_run_whose_jobs_are_deleted_is_shown_from_its_files():
    files = {"status": make_status(state="complete"), "manifest": {"dataDigest": "d" * 64}}
    view = make_view(deleted=True, **files)
    assert (view.state, view.data.state) == ("complete", "complete")


def test_a_job_deleted_during_training_is_reported_as_missing():
    view = make_view(deleted=True, status=make_status())
    assert view.state == "missing"
    assert any(f"{K8S_JOB} does not exist" in note for note in view.notes)


def test_an_earlier_job_that_is_being_deleted_is_noted():
    old = make_job("quick-start-older")
    old["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:00Z"
    view = make_view(old)
    assert any("quick-start-older (being deleted)" in note for note in view.notes)


def test_an_export_of_another_run_is_not_shown():
    exported = {"to": "s3://bucket/models/"}
    done = make_job(K8S_JOB, DONE)
    for run_id, shown in ((K8S_JOB, "s3://bucket/models/"), ("quick-start-other", "")):
        files = {"status": make_status(state="complete"), "run": {"runId": run_id, "exported": exported}}
        view = make_view(done, **files)
        assert (view.state, view.exported) == ("complete", shown)


THEIRS = {"runId": "quick-start-other", "release": "theirs", "namespace": "team-b"}


def test_data_of_another_release_in_the_folder_is_noted_with_a_fix():
    made_by = {"release": "theirs", "namespace": "team-b"}
    pods = [make_pod("p0", rank=0, phase="Pending")]
    view = make_view(pods=pods, manifest={"dataDigest": "e" * 64, "madeBy": made_by})
    (note,) = view.notes
    assert "release theirs in namespace team-b has the same jobName 'quick-start'" in note
    assert "The data of this release stays. Fix: give one of the two another jobName" in note
    for manifest in (None, {"dataDigest": "e" * 64}):
        (note,) = make_view(pods=pods, manifest=manifest).notes
        assert f"kubectl delete job {DATA_JOB} -n paddle" in note
    assert not make_view(pods=pods, manifest={"dataDigest": "d" * 64}).notes


def test_a_complete_run_whose_output_another_release_replaced_is_noted():
    done = make_job(K8S_JOB, DONE)
    view = make_view(done, run=THEIRS)
    assert (view.state, view.score) == ("complete", {})
    (note,) = view.notes
    assert note.startswith("run quick-start-other of release theirs in namespace team-b has the same jobName")
    assert f"moved to runs/{K8S_JOB}" in note
    assert make_view(run=THEIRS).notes == ()


@pytest.mark.parametrize(
    "known", [{"passes": [{"pass": 11}]}, {"run": {"runId": K8S_JOB, "resume": [12, 0]}}]
)
@pytest.mark.parametrize(("requested", "is_noted"), [(11, True), (12, False)])
def test_a_complete_run_with_more_passes_than_requested_is_noted(requested, is_noted, known):
    done = make_job(K8S_JOB, DONE)
    files = {"status": make_status(state="complete", passes=requested), **known}
    for view in (
        make_view(done, about={"passes": requested}, **files),
        run_view.build_folder_view("here", make_files(**files)),
    ):
        start = f"training.passes is {requested}, but output/ already has 12 passes: nothing was trained"
        assert any(note.startswith(start) for note in view.notes) is is_noted


@pytest.mark.parametrize(
    ("runtime", "status", "is_noted"),
    [
        ("collective", {"state": "training"}, True),
        ("collective", {"state": "training", "pass": 0}, False),
        ("collective", {"state": "starting"}, False),
        ("v1", {"state": "training"}, False),
    ],
)
def test_a_script_that_reports_no_step_is_noted(runtime, status, is_noted):
    files = make_files(status=make_idle(**status), run={"runId": "r", "fingerprint": {"runtime": runtime}})
    view = run_view.build_folder_view("here", files)
    assert any("has not reported a step yet" in note for note in view.notes) is is_noted


@pytest.mark.parametrize("files", [{}, {"status": make_status()}], ids=["at first", "after it has trained"])
def test_a_job_in_a_queue_shows_that_kueue_has_not_admitted_it_and_not_who_suspended_it(files):
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    jobs = [make_job(name, suspended=True, labels=labels) for name in (K8S_JOB, DATA_JOB)]
    view = make_view(*jobs, **files)
    expected = "queue research (Kueue) has not admitted it. Fix: wait"
    assert view.state == "suspended"
    assert run_display.describe_wait(view).startswith(f"training Job {K8S_JOB}: {expected}")
    assert expected in run_display.status_line(view)
    shown = " ".join(print_screen(view))
    assert shown.count(expected) == 1
    assert "spec.suspend" not in shown
