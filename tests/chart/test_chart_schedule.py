"""A release with training.schedule: a CronJob whose Jobs prepare their own data, and no Job of the release."""

from __future__ import annotations

import pytest
from chart_tools import CHART, ONE_MACHINE, env, one, render, run_json, settings

SCENARIO = CHART / "ci" / "schedule.yaml"


def pod_spec(manifests):
    return one(manifests, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def test_the_release_has_a_cron_job_instead_of_jobs():
    made = render(SCENARIO)
    assert not [item for item in made if item["kind"] == "Job"]
    cron = one(made, "CronJob")
    spec = cron["spec"]
    assert cron["metadata"]["name"] == "nightly"
    assert (spec["schedule"], spec["timeZone"]) == ("30 1 * * 1-5", "Etc/UTC")
    assert spec["concurrencyPolicy"] == "Forbid"
    assert "suspend" not in spec, "Helm 4 would reject each upgrade of a schedule that somebody has suspended"
    described = run_json(made)
    assert (described["cronJob"], described["k8sJob"], described["k8sDataJob"]) == ("nightly", "nightly", "")
    assert run_json(render(ONE_MACHINE))["cronJob"] == ""


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


def test_scheduling_suspend_suspends_the_schedule():
    values = {"training": {"schedule": "@daily"}, "scheduling": {"suspend": True}}
    spec = one(render(ONE_MACHINE, values=values), "CronJob")["spec"]
    assert spec["suspend"] is True
    assert "suspend" not in spec["jobTemplate"]["spec"]


def test_helm_test_asks_rank_0_of_any_run():
    [container] = one(render(SCENARIO), "Pod")["spec"]["containers"]
    assert env(container)["K8S_JOB"] == ""
    [container] = one(render(ONE_MACHINE), "Pod")["spec"]["containers"]
    assert env(container)["K8S_JOB"] == run_json(render(ONE_MACHINE))["k8sJob"]
    assert env(container)["RANK_0"] == "http://{run}-0.demo:7168/healthz"


@pytest.mark.parametrize(
    "schedule", ["0 2 * * *", "*/15 2-4 1,15 JAN-MAR *", "@daily", "30 23 31 12 sun", "0  2 * * 1-5/2"]
)
def test_cron_syntax_is_accepted(schedule):
    assert one(render(ONE_MACHINE, values={"training": {"schedule": schedule}}), "CronJob")
