"""Names and their digests: the same values change nothing, other values make a new Job."""

from __future__ import annotations

import shutil

import pytest
from chart_tools import CHART, ONE_MACHINE, one, render, run_json


def names(values=None, **where):
    return run_json(render(ONE_MACHINE, values=values, **where))


def changed(values, **where):
    """Return which names differ from those of the default values."""
    return differing(names(), names(values, **where))


def differing(before, after):
    return {key for key in ("k8sJob", "k8sDataJob", "dataDigest", "claim") if before[key] != after[key]}


def test_run_json_has_the_names_of_the_created_objects():
    manifests = render(ONE_MACHINE)
    run = run_json(manifests)
    assert run["k8sJob"] == one(manifests, "Job", "training")["metadata"]["name"]
    assert run["k8sDataJob"] == one(manifests, "Job", "data")["metadata"]["name"]
    assert run["claim"] == one(manifests, "PersistentVolumeClaim")["metadata"]["name"]
    assert len(run["dataDigest"]) == 64
    assert set(run) == {
        *("jobName", "jobPath", "claim", "image", "imagePullPolicy", "imagePullSecrets", "serviceAccount"),
        *(
            "trainers",
            "passes",
            "k8sJob",
            "k8sDataJob",
            "clusterValues",
            "cronJob",
            "storage",
            "dataPreparedBy",
            "dataDigest",
            "data",
            "uid",
            "gid",
        ),
    }
    assert run["dataPreparedBy"] == "dataJob"


def test_run_json_says_that_training_pods_prepare_the_data():
    manifests = render(ONE_MACHINE, values={"data": {"preparedBy": "trainingPods"}})
    run = run_json(manifests)
    assert run["k8sJob"] == one(manifests, "Job")["metadata"]["name"]
    assert (run["k8sDataJob"], run["dataPreparedBy"]) == ("", "trainingPods")
    off = run_json(render(ONE_MACHINE, values={"data": {"preparedBy": "trainingPods", "enabled": False}}))
    assert (off["k8sDataJob"], off["dataPreparedBy"]) == ("", "")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # The digest is of everything immutable in a Job; these are some of its fields.
        ({"training": {"passes": 11}}, {"k8sJob"}),
        ({"training": {"restarts": 1}}, {"k8sJob"}),
        ({"logFormat": "json"}, {"k8sJob", "k8sDataJob"}),
        ({"image": "example.org/other:1"}, {"k8sJob", "k8sDataJob"}),
        ({"podSecurityContext": {"runAsUser": 20000}}, {"k8sJob", "k8sDataJob"}),
        ({"fullnameOverride": "other"}, {"k8sJob", "k8sDataJob"}),
        ({"runId": "again"}, {"k8sJob", "k8sDataJob"}),
        ({"startFromScratch": "again"}, {"k8sJob"}),
        # Kueue does not allow another queue for a running Job.
        ({"scheduling": {"queue": "research"}}, {"k8sJob", "k8sDataJob"}),
        ({"data": {"resources": {"requests": {"cpu": "300m"}}}}, {"k8sDataJob"}),
        # A proxy does not decide the data: the new data Job finds existing data.
        ({"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}, {"k8sJob", "k8sDataJob"}),
        ({"podLabels": {"team": "a"}}, {"k8sJob", "k8sDataJob"}),
        ({"scheduling": {"annotations": {"a.io/b": "c"}}}, {"k8sJob"}),
        ({"data": {"seed": 8}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"source": "file://other.txt"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"sha256": "0" * 64}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"member": "a"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"format": "csv"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"delimiter": ";"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"header": False}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"format": "csv", "columns": ["a"]}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"quoting": "none"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"encoding": "latin-1"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"testFraction": 0.2}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"testSource": "file://t"}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"testRows": 9}}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"data": {"workers": 4}}, {"k8sDataJob"}),
        ({"data": {"preparedBy": "trainingPods"}}, {"k8sJob", "k8sDataJob"}),
        ({"trainers": 4}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"jobName": "other"}, {"k8sJob", "k8sDataJob", "dataDigest"}),
        ({"storage": {"hostPath": {"path": "/srv/other"}}}, {"k8sJob", "k8sDataJob", "claim"}),
        # The size of a claim cannot be changed.
        ({"storage": {"size": "1Gi"}}, {"k8sJob", "k8sDataJob", "claim"}),
        # Mutable fields of a Job, and values that are in no pod, rename nothing.
        ({"training": {"deadlineSeconds": 5}}, set()),
        ({"ttlSecondsAfterFinished": 100}, set()),
        ({"scheduling": {"suspend": True}}, set()),
        ({"networkPolicy": {"enabled": False}}, set()),
        ({"extraEnv": []}, set()),
        ({"monitoring": {"alerts": {"enabled": True}}}, set()),
        ({"storage": {"nfs": {"server": "unused"}}}, set()),
        # Different text with the same meaning.
        ({"gradientNum": 3, "peerPort": 7168, "data": {"splitCount": 3}}, set()),
    ],
    ids=lambda item: str(sorted(item) if isinstance(item, set) else item),  # the same in every process
)
def test_changed_value_renames_exactly_the_affected_objects(values, expected):
    assert changed(values) == expected


def test_other_side_tables_are_other_data():
    both = (names({"data": {"member": "rows", "tables": tables}}) for tables in ([], ["a"]))
    assert differing(*both) == {"k8sJob", "k8sDataJob", "dataDigest"}


def test_tab_and_its_escape_give_the_same_data_digest():
    csv = {"format": "csv"}
    tab, escape = ({"data": {**csv, "delimiter": text}} for text in ("\t", "\\t"))
    assert names(tab) == names(escape)


def test_upper_and_lower_case_sha256_give_the_same_data_digest():
    assert names({"data": {"sha256": "AB" * 32}}) == names({"data": {"sha256": "ab" * 32}})


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
