"""The view of a run: built from API objects and files."""

import io

import pytest
from rich.console import Console

from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.views import pass_tables, run_view_builder, status_text

PENDING = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]


def seen(api, jobs=None, pods=(), **files):
    run = ReleaseRun.from_json("paddle-training", "paddle", api.run)
    both = {api.k8s_job: api.job(api.k8s_job), api.data_job: api.job(api.data_job, ("Complete", "", ""))}
    return run_view_builder.ClusterSnapshot(
        run=run, jobs=both if jobs is None else jobs, pods=pods, files=api.files(**files)
    )


def test_a_running_training_shows_each_rank_with_pod_node_and_figures(api):
    pods = [api.pod(f"{api.k8s_job}-{rank}-abcde", rank=rank, node=f"node{rank + 1}") for rank in range(3)]
    view = run_view_builder.build_cluster_view(seen(api, pods=pods, status=api.status()))
    assert view.state == "training"
    assert [(r.rank, r.pod, r.node, r.phase, r.number, r.batch, r.loss) for r in view.ranks] == [
        (rank, f"{api.k8s_job}-{rank}-abcde", f"node{rank + 1}", "Running", 6, 40, 0.31) for rank in range(3)
    ]
    assert view.progress.fraction == 0.65
    assert status_text.status_line(view) == (
        "training: pass 7 of 10, batch 40/80, 30,000 samples/s, loss 0.3123, ETA 1 min 15 s, attempt 0"
    )


def test_the_newest_pod_of_a_rank_is_shown_after_a_replacement(api):
    pods = [
        api.pod("new", rank=0, made="2026-11-21T05:00:00Z"),
        api.pod("old", rank=0, phase="Failed", made="2026-11-21T04:00:00Z"),
    ]
    assert run_view_builder.build_cluster_view(seen(api, pods=pods)).ranks[0].pod == "new"


def test_a_pending_pod_is_shown_with_its_reason_in_status_and_wait(api):
    pods = [api.pod("p0", rank=0, phase="Pending", conditions=PENDING, node=None)]
    view = run_view_builder.build_cluster_view(seen(api, pods=pods))
    assert view.state == "pending"
    assert view.ranks[0].reason == "Unschedulable: no node fits"
    assert status_text.describe_wait(view) == "rank 0 (p0): Unschedulable: no node fits"


def test_a_running_data_job_is_what_the_training_waits_for(api):
    jobs = {api.k8s_job: api.job(api.k8s_job), api.data_job: api.job(api.data_job, active=1)}
    pods = [api.pod("data", job=api.data_job), api.pod("p0", rank=0, phase="Pending")]
    view = run_view_builder.build_cluster_view(seen(api, jobs, pods))
    assert view.state == "preparing"
    assert f"data job still running: {api.data_job}" in view.notes


def in_training(api, pods, *conditions, **files):
    """Return the view of a run whose training pods prepare the data."""
    run = ReleaseRun.from_json(
        "paddle-training", "paddle", {**api.run, "k8sDataJob": "", "dataPreparedBy": "trainingPods"}
    )
    jobs = {api.k8s_job: api.job(api.k8s_job, *conditions)}
    found = run_view_builder.ClusterSnapshot(run=run, jobs=jobs, pods=pods, files=api.files(**files))
    return run_view_builder.build_cluster_view(found)


def preparing(api, rank, phase="Pending", **state):
    status = [{"name": "prepare", "state": state}] if state else []
    return api.pod(f"p{rank}", rank=rank, phase=phase, initContainerStatuses=status)


def test_training_pods_that_prepare_data_are_counted_and_waited_for(api):
    pods = [preparing(api, 0, running={}), preparing(api, 1, running={}), preparing(api, 2)]
    view = in_training(api, pods)
    assert (view.state, view.data.state, view.data.active) == ("preparing", "running", 2)
    assert status_text.describe_wait(view) == "the training pods prepare the data (2 of 3 prepare it)"
    waiting = in_training(api, [api.pod("p0", rank=0, phase="Pending", conditions=PENDING, node=None)])
    assert (waiting.state, waiting.data.state) == ("preparing", "waiting")
    assert "Unschedulable: no node fits" in status_text.describe_wait(waiting)


def test_data_that_training_pods_prepared_is_complete_when_one_of_them_is_done_or_the_manifest_is_there(api):
    done = preparing(api, 0, terminated={"exitCode": 0})
    view = in_training(api, [done, preparing(api, 1, running={})])
    assert (view.state, view.data.state, view.data.reason) == ("pending", "complete", "")
    replaced = in_training(
        api, [preparing(api, 0, running={})], status=api.status(), manifest={"dataDigest": "d" * 64}
    )
    assert (replaced.state, replaced.data.state) == ("training", "complete")
    assert not replaced.notes
    over = in_training(api, [], ("Complete", "", ""), status=api.status(state="complete"))
    assert over.data.state == "complete"


def test_data_that_training_pods_could_not_prepare_fails_the_run_with_the_reason_of_a_pod(api):
    ended = {"exitCode": 65, "finishedAt": "2026-11-21T04:00:09Z", "message": "data.sha256 is wrong"}
    failed = preparing(api, 1, phase="Failed", terminated=ended)
    view = in_training(api, [failed], ("Failed", "PodFailurePolicy", "x"))
    assert (view.state, view.data.state) == ("failed", "failed")
    assert view.cause == "p1 (rank 1): data.sha256 is wrong"
    assert status_text.remarks(view) == []


def test_a_job_without_pods_is_explained_by_its_own_event(api):
    event = {"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity restricted"}
    what = seen(api)
    view = run_view_builder.build_cluster_view(
        run_view_builder.ClusterSnapshot(what.run, what.jobs, (), {api.k8s_job: [event]})
    )
    assert view.training.reason == "FailedCreate: violates PodSecurity restricted"
    assert "violates PodSecurity" in status_text.describe_wait(view)


def test_the_first_pod_that_failed_is_the_cause(api):
    def ended(when, text):
        return [{"name": "t", "state": {"terminated": {"exitCode": 70, "finishedAt": when, "message": text}}}]

    pods = [
        api.pod(
            "late", rank=0, phase="Failed", containerStatuses=ended("2026-11-21T04:00:09Z", "lost rank 1")
        ),
        api.pod(
            "first", rank=1, phase="Failed", containerStatuses=ended("2026-11-21T04:00:01Z", "trainer died")
        ),
    ]
    jobs = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Failed", "PodFailurePolicy", "x"))}
    view = run_view_builder.build_cluster_view(seen(api, jobs, pods))
    assert (view.state, view.cause) == ("failed", "first (rank 1): trainer died")


def test_the_cause_in_status_json_overrides_the_pods_messages(api):
    jobs = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Failed", "x", "y"))}
    view = run_view_builder.build_cluster_view(
        seen(api, jobs, status=api.status(state="failed", cause="rank 2: SIGSEGV"))
    )
    assert view.cause == "rank 2: SIGSEGV"


def test_a_failed_data_job_is_the_cause_with_the_reason_of_data_failed_json(api):
    jobs = {**seen(api).jobs, api.data_job: api.job(api.data_job, ("Failed", "BackoffLimitExceeded", "z"))}
    failure = {"dataDigest": "d" * 64, "reason": "sha256 does not match"}
    view = run_view_builder.build_cluster_view(seen(api, jobs, data_failure=failure))
    assert (view.state, view.cause) == ("failed", "the data Job failed: sha256 does not match")


def test_a_cause_that_the_data_job_and_all_pods_report_is_shown_once(api):
    cause = "data.whl has no member 'x'; it has " + ", ".join(f"corpora/member_{n}.csv" for n in range(12))

    def dead(container, text):
        ended = {"exitCode": 65, "finishedAt": "2026-11-21T04:00:01Z", "message": text}
        return [{"name": container, "state": {"terminated": ended}}]

    waited = (
        f"the data Job of this run failed: {cause} (read from /home/jobpath/quick-start/data-failed.json)"
    )
    pods = [
        api.pod("d", job=api.data_job, phase="Failed", containerStatuses=dead("prepare", cause)),
        *(
            api.pod(f"p{n}", rank=n, phase="Failed", initContainerStatuses=dead("await-data", waited))
            for n in range(3)
        ),
    ]
    jobs = {name: api.job(name, ("Failed", "PodFailurePolicy", "x")) for name in (api.k8s_job, api.data_job)}
    view = run_view_builder.build_cluster_view(
        seen(api, jobs, pods, data_failure={"dataDigest": "d" * 64, "reason": cause})
    )
    text = io.StringIO()
    shown = Console(width=100, file=text)
    shown.print(status_text.status_screen(view))
    assert text.getvalue().count("has no member") == 1
    assert text.getvalue().count("\n") < 20
    assert status_text.remarks(view) == []


def test_the_same_reason_of_several_ranks_is_one_remark_with_all_ranks(api):
    pods = [
        api.pod(f"p{rank}", rank=rank, phase="Pending", conditions=PENDING, node=None) for rank in range(2)
    ]
    view = run_view_builder.build_cluster_view(seen(api, pods=pods))
    assert status_text.remarks(view) == ["rank 0 (p0), rank 1 (p1): Unschedulable: no node fits"]


def test_a_run_whose_pods_succeeded_before_its_job_is_complete_is_finishing(api):
    pods = [api.pod(f"p{rank}", rank=rank, phase="Succeeded") for rank in range(3)]
    assert run_view_builder.build_cluster_view(seen(api, pods=pods)).state == "finishing"


def test_progress_of_another_run_is_not_shown(api):
    view = run_view_builder.build_cluster_view(seen(api, status=api.status(runId="quick-start-older")))
    assert view.progress is None
    assert view.ranks[0].loss is None
    assert any("still contains run quick-start-older" in note for note in view.notes)


def test_a_run_whose_jobs_are_deleted_is_shown_from_its_files(api):
    files = {"status": api.status(state="complete"), "manifest": {"dataDigest": "d" * 64}}
    view = run_view_builder.build_cluster_view(seen(api, {}, **files))
    assert (view.state, view.data.state) == ("complete", "complete")


def test_a_job_deleted_during_training_is_reported_as_missing(api):
    view = run_view_builder.build_cluster_view(seen(api, {}, status=api.status()))
    assert view.state == "missing"
    assert any(f"{api.k8s_job} does not exist" in note for note in view.notes)


def test_an_earlier_job_that_is_being_deleted_is_noted(api):
    old = api.job("quick-start-older")
    old["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:00Z"
    view = run_view_builder.build_cluster_view(seen(api, {**seen(api).jobs, "quick-start-older": old}))
    assert any("quick-start-older (being deleted)" in note for note in view.notes)


def test_json_output_calls_a_pass_as_status_json_does(api):
    value = run_view_builder.build_cluster_view(seen(api, status=api.status())).as_json()
    assert value["progress"]["pass"] == 6
    assert value["ranks"][2]["pass"] == 6


def test_an_export_of_another_run_is_not_shown(api):
    exported = {"to": "s3://bucket/models/"}
    done = {api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    for run_id, shown in ((api.k8s_job, "s3://bucket/models/"), ("quick-start-other", "")):
        files = {"status": api.status(state="complete"), "run": {"runId": run_id, "exported": exported}}
        view = run_view_builder.build_cluster_view(seen(api, done, **files))
        assert (view.state, view.exported) == ("complete", shown)


THEIRS = {"runId": "quick-start-other", "release": "theirs", "namespace": "team-b"}


def test_data_replaced_by_another_release_is_noted_with_both_names_and_a_fix(api):
    made_by = {"release": "theirs", "namespace": "team-b"}
    pods = [api.pod("p0", rank=0, phase="Pending")]
    view = run_view_builder.build_cluster_view(
        seen(api, pods=pods, manifest={"dataDigest": "e" * 64, "madeBy": made_by})
    )
    (note,) = view.notes
    assert "release theirs in namespace team-b has the same jobName 'quick-start'" in note
    assert "leftovers --remove -n paddle --release paddle-training" in note
    for manifest in (None, {"dataDigest": "e" * 64}):
        (note,) = run_view_builder.build_cluster_view(seen(api, pods=pods, manifest=manifest)).notes
        assert "leftovers --remove" in note
    assert not run_view_builder.build_cluster_view(
        seen(api, pods=pods, manifest={"dataDigest": "d" * 64})
    ).notes


def test_a_complete_run_whose_output_another_release_replaced_is_noted(api):
    done = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    view = run_view_builder.build_cluster_view(seen(api, done, run=THEIRS))
    assert (view.state, view.score) == ("complete", {})
    (note,) = view.notes
    assert note.startswith("run quick-start-other of release theirs in namespace team-b has the same jobName")
    assert f"moved to runs/{api.k8s_job}" in note
    assert run_view_builder.build_cluster_view(seen(api, run=THEIRS)).notes == ()


def test_a_reason_of_several_ranks_appears_once_in_the_status_line(api):
    pods = [
        api.pod(f"p{rank}", rank=rank, phase="Pending", conditions=PENDING, node=None) for rank in range(2)
    ]
    view = run_view_builder.build_cluster_view(seen(api, pods=pods))
    assert status_text.describe_wait(view) == "rank 0 (p0), rank 1 (p1): Unschedulable: no node fits"
    rows = [{"pass": 0, "train_loss": 0.5}]
    text = io.StringIO()
    shown = Console(width=100, file=text)
    shown.print(pass_tables.curve_table({"": rows}), pass_tables.curve_table({"": rows * 2}))
    assert "1 pass " in text.getvalue()
    assert "2 passes" in text.getvalue()


@pytest.mark.parametrize(("requested", "is_noted"), [(11, True), (12, False)])
def test_a_complete_run_with_more_passes_than_requested_is_noted(api, requested, is_noted):
    api.run = {**api.run, "passes": requested}
    done = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    files = {"status": api.status(state="complete", passes=requested), "passes": [{"pass": 11}]}
    for view in (
        run_view_builder.build_cluster_view(seen(api, done, **files)),
        run_view_builder.build_folder_view("here", api.files(**files)),
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
def test_a_script_that_reports_no_step_is_noted(api, runtime, status, is_noted):
    files = api.files(status=api.idle(**status), run={"runId": "r", "fingerprint": {"runtime": runtime}})
    view = run_view_builder.build_folder_view("here", files)
    assert any("has not reported a step yet" in note for note in view.notes) is is_noted
