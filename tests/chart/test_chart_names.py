"""Names and their digests: the same values change nothing, other values make a new Job."""

from __future__ import annotations

import shutil

import pytest
from chart_tools import CHART, ONE_MACHINE, one, render, run_json, settings

from launcher.cli.launch_training import nest_keys

SCRIPT = CHART / "ci" / "collective.yaml"


def names(values=None, **where):
    return run_json(render(ONE_MACHINE, values=values, **where))


def differing(before, after):
    return {key for key in ("k8sJob", "k8sDataJob", "dataDigest", "claim") if before[key] != after[key]}


RUN_KEYS = """
    jobName jobPath claim image imagePullPolicy imagePullSecrets serviceAccount trainers passes k8sJob k8sDataJob
    clusterValues cronJob storage dataPreparedBy dataDigest data packages uid gid
"""


@pytest.mark.parametrize(
    ("data", "prepared_by"),
    [
        ({}, "dataJob"),
        ({"preparedBy": "trainingPods"}, "trainingPods"),
        ({"preparedBy": "trainingPods", "enabled": False}, ""),
    ],
)
def test_run_json_has_the_names_of_the_created_objects(data, prepared_by):
    manifests = render(ONE_MACHINE, values={"data": data})
    run = run_json(manifests)
    assert set(run) == set(RUN_KEYS.split())
    jobs = {item["metadata"]["name"] for item in manifests if item["kind"] == "Job"}
    assert jobs == {run["k8sJob"], *([run["k8sDataJob"]] if prepared_by == "dataJob" else [])}
    assert run["k8sJob"] == one(manifests, "Job", "training")["metadata"]["name"]
    assert run["claim"] == one(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    assert (len(run["dataDigest"]), run["cronJob"]) == (64, "")
    assert run["dataPreparedBy"] == prepared_by
    assert bool(run["k8sDataJob"]) is (prepared_by == "dataJob")


BOTH = {"k8sJob", "k8sDataJob"}
DATA = {*BOTH, "dataDigest"}
CHANGES = (
    # The digest is of everything immutable in a Job; these are some of its fields.
    ({"k8sJob"}, ("training.passes", 11), ("training.restarts", 1), ("startFromScratch", "again")),
    ({"k8sJob"}, ("scheduling.annotations", {"a.io/b": "c"}), ("podSpecPatch", {"hostname": "a"})),
    ({"k8sDataJob"}, ("data.resources.requests.cpu", "300m"), ("data.workers", 4)),
    ({"k8sDataJob"}, ("data.podSpecPatch", {"hostname": "a"})),
    (BOTH, ("logFormat", "json"), ("image", "example.org/other:1"), ("podSecurityContext.runAsUser", 20000)),
    (BOTH, ("fullnameOverride", "other"), ("runId", "again"), ("podLabels", {"team": "a"})),
    # Kueue does not allow another queue for a running Job.
    (BOTH, ("scheduling.queue", "research"), ("data.preparedBy", "trainingPods")),
    # A proxy does not decide the data: the new data Job finds existing data.
    (BOTH, ("extraEnv", [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}])),
    (DATA, ("data.seed", 8), ("data.source", "file://other.txt"), ("data.sha256", "0" * 64)),
    (DATA, ("data.member", "a"), ("data.format", "csv"), ("data.delimiter", ";"), ("data.header", False)),
    (DATA, ("data", {"format": "csv", "columns": ["a"]}), ("data.quoting", "none")),
    (DATA, ("data.encoding", "latin-1"), ("data.testFraction", 0.2), ("data.testSource", "file://t")),
    (DATA, ("data.testRows", 9), ("trainers", 4), ("jobName", "other")),
    # The size of a claim cannot be changed.
    ({*BOTH, "claim"}, ("storage.hostPath.path", "/srv/other"), ("storage.size", "1Gi")),
    # Mutable fields of a Job, and values that are in no pod, rename nothing.
    (set(), ("training.deadlineSeconds", 5), ("ttlSecondsAfterFinished", 100), ("scheduling.suspend", True)),
    (set(), ("networkPolicy.enabled", False), ("extraEnv", []), ("monitoring.alerts.enabled", True)),
    (set(), ("storage.nfs.server", "unused")),
    # Different text with the same meaning.
    (set(), ("gradientNum", 3), ("peerPort", 7168), ("data.splitCount", 3)),
)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [(key, value, expected) for expected, *rows in CHANGES for key, value in rows],
    ids=lambda item: str(sorted(item) if isinstance(item, set) else item),  # the same in every process
)
def test_changed_value_renames_exactly_the_affected_objects(key, value, expected):
    assert differing(names(), names(nest_keys({key: value}))) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"member": "rows", "tables": []}, {"member": "rows", "tables": ["a"]}, DATA),
        ({"format": "csv", "delimiter": "\t"}, {"format": "csv", "delimiter": "\\t"}, set()),
        ({"sha256": "AB" * 32}, {"sha256": "ab" * 32}, set()),
    ],
)
def test_names_depend_on_the_meaning_of_the_data_values(before, after, expected):
    assert differing(names({"data": before}), names({"data": after})) == expected


def test_jobs_of_a_schedule_are_the_training_job_with_the_preparation_of_the_data():
    scenario = CHART / "ci" / "schedule.yaml"
    scheduled = one(render(scenario), "CronJob")["spec"]["jobTemplate"]
    once = render(scenario, values={"training": {"schedule": ""}, "data": {"preparedBy": "trainingPods"}})
    job = one(once, "Job", "training")
    for part in ("labels", "annotations"):
        assert scheduled["metadata"][part] == job["metadata"][part]
    ours, theirs = (item["spec"]["template"]["spec"] for item in (scheduled, job))
    assert [container["name"] for container in ours["initContainers"]] == ["prepare"]
    assert ours == theirs
    one_run, each_run = (settings(item["spec"]["template"]) for item in (job, scheduled))
    assert each_run == one_run | {"training": one_run["training"] | {"schedule": "30 1 * * 1-5"}}


def test_the_number_of_trainers_changes_the_data_of_a_script_but_not_the_digest_of_its_source():
    """So that a run with other trainers, for whom the data Job makes other shards, continues the checkpoints."""

    def digests(**values):
        values["data"] = {"source": "file://a.txt"} | values.get("data", {})
        made = one(render(SCRIPT, values=values), "Job", "training")["spec"]["template"]
        return settings(made)["release"]["dataDigest"], settings(made)["release"]["sourceDigest"]

    (shards, source), (other_shards, same_source) = digests(trainers=2), digests(trainers=5)
    assert shards != other_shards
    assert source == same_source
    assert digests(trainers=2, data={"seed": 7})[1] != source


@pytest.mark.parametrize("enabled", [True, False])
def test_a_script_and_the_other_runtimes_have_the_same_data(enabled):
    script = render(SCRIPT, values={"data": {"enabled": enabled, "source": "file://lines.txt"}})
    assert run_json(script)["dataDigest"] == names({"jobName": "digits", "trainers": 2})["dataDigest"]


def test_newer_chart_alone_starts_no_training(tmp_path):
    """Neither the chart's version nor a comment of a template is part of a pod template or a name."""
    copy = tmp_path / "paddle-training"
    shutil.copytree(CHART, copy)
    chart = copy / "Chart.yaml"
    chart.write_text(
        chart.read_text(encoding="utf-8").replace("version: 0.1.0", "version: 0.2.0"), encoding="utf-8"
    )
    pod = copy / "templates" / "_pod.tpl"
    pod.write_text(
        pod.read_text(encoding="utf-8").replace("# Libraries", "# All libraries"), encoding="utf-8"
    )
    assert names(chart=copy) == names()
    old, new = (one(render(ONE_MACHINE, chart=path), "Job", "training")["spec"] for path in (CHART, copy))
    assert old == new


def test_releases_with_equal_joined_names_get_different_volumes():
    """Volumes have no namespace: "a-b" + "c" and "a" + "b-c" must have different names."""
    first = names(namespace="a-b", release="c")["claim"]
    second = names(namespace="a", release="b-c")["claim"]
    assert first.startswith("a-b-c-")
    assert second.startswith("a-b-c-")
    assert first != second


def test_longest_names_fit_into_the_limits_of_kubernetes():
    namespace, release = "n" * 63, "r" * 53
    manifests = render(
        ONE_MACHINE, values={"jobName": "j" * 45, "trainers": 1000}, namespace=namespace, release=release
    )
    for item in manifests:
        limit = 253 if item["kind"].startswith(("Persistent", "ConfigMap", "Network")) else 63
        assert len(item["metadata"]["name"]) <= limit, item["kind"]
    run = run_json(manifests)
    assert len(f"{run['k8sJob']}-999") <= 63, "the pod's name is its host name"


def test_the_number_of_trainers_of_an_elastic_run_is_in_no_name():
    elastic = {"training.minTrainers": 2, "training.maxTrainers": 5}
    before = names(nest_keys({"trainers": 3, **elastic}))
    assert differing(before, names(nest_keys({"trainers": 5, **elastic}))) == set()
    assert differing(before, names(nest_keys({"trainers": 3, **elastic, "training.minTrainers": 3}))) == {
        "k8sJob"
    }
    assert differing(before, names(nest_keys({"trainers": 3, **elastic, "training.maxTrainers": 4}))) == DATA
    assert differing(names(), names(nest_keys({"training.minTrainers": 3}))) == {"k8sJob"}
