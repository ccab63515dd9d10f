"""The Jobs of training.schedule; charts/paddle-training/tests/schedule_test.yaml tests the CronJob."""

from __future__ import annotations

from chart_tools import CHART, one, render, settings

SCENARIO = CHART / "ci" / "schedule.yaml"


def test_its_jobs_are_the_training_job_with_the_preparation_of_the_data():
    scheduled = one(render(SCENARIO), "CronJob")["spec"]["jobTemplate"]
    once = render(SCENARIO, values={"training": {"schedule": ""}, "data": {"preparedBy": "trainingPods"}})
    job = one(once, "Job", "training")
    for part in ("labels", "annotations"):
        assert scheduled["metadata"][part] == job["metadata"][part]
    ours, theirs = (item["spec"]["template"]["spec"] for item in (scheduled, job))
    assert [container["name"] for container in ours["initContainers"]] == ["prepare"]
    assert ours == theirs
    one_run, each_run = (settings(item["spec"]["template"]) for item in (job, scheduled))
    assert each_run == one_run | {"training": one_run["training"] | {"schedule": "30 1 * * 1-5"}}
