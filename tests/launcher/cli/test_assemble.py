"""From API objects and files to the view that status shows."""

import io

import pytest
from rich.console import Console

from launcher.cli import assemble, render, session, storage, view

PENDING = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}]


def seen(api, jobs=None, pods=(), **files):
    run = view.Run.of("paddle-training", "paddle", api.run)
    both = {api.k8s_job: api.job(api.k8s_job), api.data_job: api.job(api.data_job, ("Complete", "", ""))}
    return assemble.Seen(run=run, jobs=both if jobs is None else jobs, pods=pods, files=files)


def test_a_running_training_shows_each_rank_with_pod_node_and_figures(api):
    pods = [api.pod(f"{api.k8s_job}-{rank}-abcde", rank=rank, node=f"node{rank + 1}") for rank in range(3)]
    looked = assemble.of_cluster(seen(api, pods=pods, status=api.status()))
    assert looked.state == "training"
    assert [(r.rank, r.pod, r.node, r.phase, r.number, r.batch, r.loss) for r in looked.ranks] == [
        (rank, f"{api.k8s_job}-{rank}-abcde", f"node{rank + 1}", "Running", 6, 40, 0.31) for rank in range(3)
    ]
    assert looked.progress.fraction == 0.65
    assert render.line(looked) == (
        "training: pass 7 of 10, batch 40/80, 30,000 samples/s, loss 0.3123, ETA 1 min 15 s, attempt 0"
    )


def test_the_newest_pod_of_a_rank_is_shown_after_a_replacement(api):
    pods = [
        api.pod("new", rank=0, made="2026-11-21T05:00:00Z"),
        api.pod("old", rank=0, phase="Failed", made="2026-11-21T04:00:00Z"),
    ]
    assert assemble.of_cluster(seen(api, pods=pods)).ranks[0].pod == "new"


def test_a_pending_pod_is_shown_with_its_reason_and_wait_says_it(api):
    pods = [api.pod("p0", rank=0, phase="Pending", conditions=PENDING, node=None)]
    looked = assemble.of_cluster(seen(api, pods=pods))
    assert looked.state == "pending"
    assert looked.ranks[0].reason == "Unschedulable: no node fits"
    assert render.waits_for(looked) == "rank 0 (p0): Unschedulable: no node fits"


def test_a_running_data_job_is_what_the_training_waits_for(api):
    jobs = {api.k8s_job: api.job(api.k8s_job), api.data_job: api.job(api.data_job, active=1)}
    pods = [api.pod("data", job=api.data_job), api.pod("p0", rank=0, phase="Pending")]
    looked = assemble.of_cluster(seen(api, jobs, pods))
    assert looked.state == "preparing"
    assert f"data job still running: {api.data_job}" in looked.notes


def test_a_job_that_cannot_make_pods_tells_the_jobs_own_event(api):
    event = {"type": "Warning", "reason": "FailedCreate", "message": "violates PodSecurity restricted"}
    what = seen(api)
    looked = assemble.of_cluster(assemble.Seen(what.run, what.jobs, (), {api.k8s_job: [event]}))
    assert looked.training.reason == "FailedCreate: violates PodSecurity restricted"
    assert "violates PodSecurity" in render.waits_for(looked)


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
    looked = assemble.of_cluster(seen(api, jobs, pods))
    assert (looked.state, looked.cause) == ("failed", "first (rank 1): trainer died")


def test_the_launchers_own_cause_goes_before_the_pods_words(api):
    jobs = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Failed", "x", "y"))}
    looked = assemble.of_cluster(seen(api, jobs, status=api.status(state="failed", cause="rank 2: SIGSEGV")))
    assert looked.cause == "rank 2: SIGSEGV"


def test_a_failed_data_job_is_the_cause_with_the_reason_it_left(api):
    jobs = {**seen(api).jobs, api.data_job: api.job(api.data_job, ("Failed", "BackoffLimitExceeded", "z"))}
    failure = {"dataDigest": "d" * 64, "reason": "sha256 does not match"}
    looked = assemble.of_cluster(seen(api, jobs, failure=failure))
    assert (looked.state, looked.cause) == ("failed", "the data Job failed: sha256 does not match")


def test_a_cause_that_data_job_and_all_pods_tell_is_shown_once(api):
    cause = "data.whl has no member 'x'; it has " + ", ".join(f"corpora/member_{n}.csv" for n in range(12))

    def dead(container, text):
        ended = {"exitCode": 65, "finishedAt": "2026-11-21T04:00:01Z", "message": text}
        return [{"name": container, "state": {"terminated": ended}}]

    waited = f"the data Job of this run failed: {cause} (told by /home/jobpath/quick-start/data-failed.json)"
    pods = [
        api.pod("d", job=api.data_job, phase="Failed", containerStatuses=dead("prepare", cause)),
        *(
            api.pod(f"p{n}", rank=n, phase="Failed", initContainerStatuses=dead("await-data", waited))
            for n in range(3)
        ),
    ]
    jobs = {name: api.job(name, ("Failed", "PodFailurePolicy", "x")) for name in (api.k8s_job, api.data_job)}
    looked = assemble.of_cluster(seen(api, jobs, pods, failure={"dataDigest": "d" * 64, "reason": cause}))
    shown = Console(width=100, file=io.StringIO())
    shown.print(render.screen(looked))
    text = shown.file.getvalue()
    assert text.count("has no member") == 1
    assert text.count("\n") < 20
    assert render.remarks(looked) == []


def test_the_same_reason_of_several_ranks_is_one_remark_that_names_them(api):
    pods = [
        api.pod(f"p{rank}", rank=rank, phase="Pending", conditions=PENDING, node=None) for rank in range(2)
    ]
    looked = assemble.of_cluster(seen(api, pods=pods))
    assert render.remarks(looked) == ["rank 0 (p0), rank 1 (p1): Unschedulable: no node fits"]


def test_between_the_pods_good_end_and_the_jobs_the_run_is_finishing(api):
    pods = [api.pod(f"p{rank}", rank=rank, phase="Succeeded") for rank in range(3)]
    assert assemble.of_cluster(seen(api, pods=pods)).state == "finishing"


def test_progress_of_another_run_is_not_taken_for_this_ones(api):
    looked = assemble.of_cluster(seen(api, status=api.status(runId="quick-start-older")))
    assert looked.progress is None
    assert looked.ranks[0].loss is None
    assert any("still belongs to run quick-start-older" in note for note in looked.notes)


def test_a_run_whose_jobs_are_gone_is_known_by_its_files(api):
    files = {"status": api.status(state="complete"), "manifest": {"dataDigest": "d" * 64}}
    looked = assemble.of_cluster(seen(api, {}, **files))
    assert (looked.state, looked.data.state) == ("complete", "complete")


def test_a_job_deleted_in_the_middle_is_missing_and_said_so(api):
    looked = assemble.of_cluster(seen(api, {}, status=api.status()))
    assert looked.state == "missing"
    assert any(f"{api.k8s_job} does not exist" in note for note in looked.notes)


def test_an_earlier_job_that_is_being_removed_is_noted(api):
    old = api.job("quick-start-older")
    old["metadata"]["deletionTimestamp"] = "2026-11-21T04:00:00Z"
    looked = assemble.of_cluster(seen(api, {**seen(api).jobs, "quick-start-older": old}))
    assert any("quick-start-older (being removed)" in note for note in looked.notes)


def test_all_releases_of_the_chart_are_found_by_their_run_maps():
    def entry(name, release, place):
        labels = {"app.kubernetes.io/instance": release}
        return {"metadata": {"name": name, "namespace": place, "labels": labels}}

    maps = [entry("b-run", "b", "two"), entry("a-run", "a", "one"), entry("a-other", "a", "one")]
    assert view.known_runs(maps) == [("one", "a"), ("two", "b")]


def test_json_names_a_pass_as_the_status_file_does(api):
    value = assemble.of_cluster(seen(api, status=api.status())).as_json()
    assert value["progress"]["pass"] == 6
    assert value["ranks"][2]["pass"] == 6


def test_an_export_of_another_run_is_not_shown_as_this_ones(api):
    exported = {"to": "s3://bucket/models/"}
    done = {api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    for run_id, shown in ((api.k8s_job, "s3://bucket/models/"), ("quick-start-other", "")):
        files = {"status": api.status(state="complete"), "run": {"runId": run_id, "exported": exported}}
        looked = assemble.of_cluster(seen(api, done, **files))
        assert (looked.state, looked.exported) == ("complete", shown)


THEIRS = {"runId": "quick-start-other", "release": "theirs", "namespace": "team-b"}


def test_data_that_another_release_replaced_is_noted_with_both_names_and_the_fix(api):
    made_by = {"release": "theirs", "namespace": "team-b"}
    pods = [api.pod("p0", rank=0, phase="Pending")]
    looked = assemble.of_cluster(seen(api, pods=pods, manifest={"dataDigest": "e" * 64, "madeBy": made_by}))
    (note,) = looked.notes
    assert "release theirs in namespace team-b has the same jobName 'quick-start'" in note
    assert "leftovers --remove -n paddle --release paddle-training" in note
    for manifest in (None, {"dataDigest": "e" * 64}):
        (note,) = assemble.of_cluster(seen(api, pods=pods, manifest=manifest)).notes
        assert "leftovers --remove" in note
    assert not assemble.of_cluster(seen(api, pods=pods, manifest={"dataDigest": "d" * 64})).notes


def test_a_complete_run_whose_output_another_release_moved_aside_keeps_its_score(api):
    done = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    moved = {"runId": api.k8s_job, "score": {"error": 0.25}}
    looked = assemble.of_cluster(seen(api, done, run=THEIRS, moved=moved))
    assert (looked.state, looked.score) == ("complete", {"error": 0.25})
    assert looked.notes == (
        "run quick-start-other of release theirs in namespace team-b has the same jobName and moved this "
        f"run's output to runs/{api.k8s_job}",
    )


def test_a_complete_job_whose_output_is_another_releases_is_no_complete_run(api):
    done = {**seen(api).jobs, api.k8s_job: api.job(api.k8s_job, ("Complete", "", ""))}
    looked = assemble.of_cluster(seen(api, done, run=THEIRS, status=api.status(runId="quick-start-other")))
    assert looked.state == "failed"
    assert "run quick-start-other of release theirs in namespace team-b" in looked.cause
    assert looked.notes == ()
    for known in (
        {"run": THEIRS, "stale": True},
        {"run": None},
    ):  # read before the end; the folder was removed
        assert assemble.of_cluster(seen(api, done, **known)).state == "complete"


def test_a_reason_of_several_ranks_is_told_once_in_the_line_too(api):
    pods = [
        api.pod(f"p{rank}", rank=rank, phase="Pending", conditions=PENDING, node=None) for rank in range(2)
    ]
    looked = assemble.of_cluster(seen(api, pods=pods))
    assert render.waits_for(looked) == "rank 0 (p0), rank 1 (p1): Unschedulable: no node fits"
    rows = [{"pass": 0, "train_loss": 0.5}]
    shown = Console(width=100, file=io.StringIO())
    shown.print(render.curves(rows), render.curves(rows * 2))
    assert "1 pass " in shown.file.getvalue()
    assert "2 passes" in shown.file.getvalue()


@pytest.mark.parametrize(
    ("checkpoints", "asked", "more", "told"),
    [
        (["pass-00010", "pass-00011"], 10, {}, "12. The checkpoint of pass 10 is no longer kept (training."),
        (["pass-00009", "pass-00011"], 10, {}, "12. The checkpoint of pass 10 is pass-00009 in output/. Fix"),
        (["pass-00009", "pass-00009-batch-0000005"], 10, {}, None),
        (["pass-00011", "pass-99999"], 1, {"passes": [{"pass": 11}]}, "12. The checkpoint of pass 1 is no"),
        (["pass-00009", "pass-99999"], 10, {"passes": [{"pass": 9}]}, None),
        (["pass-00011"], 10, {"run": {"modelPass": 6}}, "7. The checkpoint of pass 10 is no longer kept"),
    ],
)
def test_a_complete_run_that_had_more_passes_than_asked_says_what_it_gives(
    api, checkpoints, asked, more, told
):
    jobs = {api.k8s_job: api.job(api.k8s_job, ("Complete", "", "")), api.data_job: api.job(api.data_job)}
    files = {"status": api.status(state="complete", passes=asked), "checkpoints": checkpoints, **more}
    api.run = {**api.run, "passes": asked}
    for looked in (assemble.of_cluster(seen(api, jobs, **files)), assemble.of_folder("here", files)):
        found = [note for note in looked.notes if "nothing was trained" in note]
        assert len(found) == (told is not None)
        begin = f"training.passes is {asked}, but output/ already has 12 passes: nothing was trained. Model "
        assert all(note.startswith(f"{begin}and score are of pass {told}") for note in found)
        assert all(f"for a model of {asked} pass{'es' * (asked > 1)}, train" in note for note in found)


def test_complete_checkpoints_are_known_by_their_done_file(job_folder):
    for name in ("pass-00001/done", "pass-00002/contents.json"):
        file = job_folder / "output" / name
        file.parent.mkdir()
        file.write_text("")
    found = session.status_files(storage.FolderStorage(job_folder))
    assert found["checkpoints"] == ["pass-00001"]
