"""Tests of the chart with runtime collective: ports, processes, GPUs, data, and values that are rejected."""

from __future__ import annotations

import pytest
from chart_tools import CHART, ONE_MACHINE, env, one, render, run_json, settings

SCRIPT = CHART / "ci" / "collective.yaml"
GPUS = {kind: {"cpu": 1, "memory": "2Gi", "nvidia.com/gpu": 4} for kind in ("requests", "limits")}


def template(**values):
    """Return the template of the training pod of a script."""
    return one(render(SCRIPT, values=values), "Job", "training")["spec"]["template"]


def test_each_process_has_a_port_and_the_next_ones_are_master_and_peers():
    made = template()
    [train] = made["spec"]["containers"]
    assert [(port["name"], port["containerPort"]) for port in train["ports"]] == [
        ("process-0", 7164),
        ("process-1", 7165),
        ("master-0", 7166),
        ("peers", 7167),
    ]
    found = env(train)
    assert (found["CONF_PADDLE_PORTS_NUM"], found["CONF_PADDLE_PORTS_NUM_SPARSE"]) == ("2", "1")
    found = settings(made)
    assert (found["peerPort"], found["training"]["processesPerPod"], found["release"]["gpusPerPod"]) == (
        7167,
        2,
        0,
    )


def test_the_number_of_trainers_changes_the_data_but_not_the_digest_of_the_source():
    """So that a run with other trainers, for whom the data Job makes other shards, continues the checkpoints."""

    def digests(**values):
        data = {"source": "file://a.txt"} | values.pop("data", {})
        release = settings(template(data=data, **values))["release"]
        return release["dataDigest"], release["sourceDigest"]

    (shards, source), (other_shards, same_source) = digests(trainers=2), digests(trainers=5)
    assert shards != other_shards
    assert source == same_source
    assert digests(trainers=2, data={"seed": 7})[1] != source


@pytest.mark.parametrize(
    ("processes", "resources", "expected"),
    [(None, None, (1, 0)), (None, GPUS, (4, 4)), (1, GPUS, (1, 4))],
)
def test_processes_are_by_default_as_many_as_gpus(processes, resources, expected):
    values = {"training": {"processesPerPod": processes}, **({"resources": resources} if resources else {})}
    found = settings(template(**values))
    assert (found["training"]["processesPerPod"], found["release"]["gpusPerPod"]) == expected


def test_a_script_that_reads_its_own_data_has_neither_data_job_nor_init_container():
    manifests = render(SCRIPT)
    assert [item["kind"] for item in manifests].count("Job") == 1
    assert "initContainers" not in template()["spec"]
    assert settings(template())["release"]["dataDigest"] == "none"
    assert (run_json(manifests)["k8sDataJob"], run_json(manifests)["dataDigest"]) == ("", "none")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_script_with_a_source_waits_for_its_data(enabled):
    data = {"enabled": enabled, "source": "file://lines.txt"}
    assert [one["name"] for one in template(data=data)["spec"]["initContainers"]] == ["await-data"]
    fleet = run_json(render(ONE_MACHINE, values={"jobName": "digits", "trainers": 2}))
    assert run_json(render(SCRIPT, values={"data": data}))["dataDigest"] == fleet["dataDigest"], (
        "the same data"
    )


def test_options_with_names_of_old_flags_are_a_scripts_own():
    options = ["--config=a.yaml", "--local=1"]
    assert settings(template(training={"extraArgs": options}))["training"]["extraArgs"] == options
