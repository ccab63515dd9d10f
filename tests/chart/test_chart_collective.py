"""Tests of the chart with runtime collective: ports, processes, GPUs, data, and values that are rejected."""

from __future__ import annotations

import operator
from functools import reduce

import pytest
import yaml
from chart_tools import CHART, ONE_MACHINE, env, helm_template, one, render, run_json

from launcher.cli.launch_training import nest_keys

SCRIPT = CHART / "ci" / "collective.yaml"
GPUS = {kind: {"cpu": 1, "memory": "2Gi", "nvidia.com/gpu": 4} for kind in ("requests", "limits")}
FLEET_ONLY = {
    "trainerCount": 2,
    "portsNum": 3,
    "portsNumSparse": 1,
    "training.mode": "sync",
    "training.savingPeriod": 2,
    "training.logPeriod": 10,
    "training.dotPeriod": 1,
    "training.incrementalCheckpoints": 1,
    "training.keepBest": "auc",
    "training.patience": 1,
    "training.initModelPath": "previous",
}
"""Values that only other runtimes have → a value other than the default."""


def pod(**values):
    """Return the spec of the training pod of a script."""
    return one(render(SCRIPT, values=values), "Job", "training")["spec"]["template"]["spec"]


def test_each_process_has_a_port_and_the_next_ones_are_master_and_peers():
    [train] = pod()["containers"]
    assert [(port["name"], port["containerPort"]) for port in train["ports"]] == [
        ("process-0", 7164),
        ("process-1", 7165),
        ("master-0", 7166),
        ("peers", 7167),
    ]
    found = env(train)
    assert (found["CONF_PADDLE_PORTS_NUM"], found["CONF_PADDLE_PORTS_NUM_SPARSE"]) == ("2", "1")
    assert found["PADDLE_LAUNCHER_PEER_PORT"] == "7167"
    assert found["PADDLE_LAUNCHER_PROCESSES_PER_POD"] == "2"
    assert "PADDLE_LAUNCHER_GPUS_PER_POD" not in found


def test_the_number_of_trainers_changes_the_data_but_not_the_digest_of_the_source():
    """So that a run with other trainers, for whom the data Job makes other shards, continues the checkpoints."""

    def digests(**values):
        found = env(pod(data={"source": "file://a.txt"} | values.pop("data", {}), **values)["containers"][0])
        return found["PADDLE_LAUNCHER_DATA_DIGEST"], found["PADDLE_LAUNCHER_SOURCE_DIGEST"]

    (shards, source), (other_shards, same_source) = digests(trainers=2), digests(trainers=5)
    assert shards != other_shards
    assert source == same_source
    assert digests(trainers=2, data={"seed": 7})[1] != source


def test_each_run_of_a_schedule_has_a_digest_of_its_own():
    """Otherwise the second night finds the output of the first one complete, and trains nothing."""
    values = {"training": {"schedule": "@daily"}, "data": {"enabled": True, "source": "file://a.txt"}}
    job = one(render(SCRIPT, values=values), "CronJob")["spec"]["jobTemplate"]
    [train] = job["spec"]["template"]["spec"]["containers"]
    for name in ("PADDLE_LAUNCHER_SOURCE_DIGEST", "PADDLE_LAUNCHER_DATA_DIGEST"):
        assert env(train)[name].endswith("-$(PADDLE_LAUNCHER_K8S_JOB)")
    names = [variable["name"] for variable in train["env"]]
    assert names.index("PADDLE_LAUNCHER_K8S_JOB") < names.index("PADDLE_LAUNCHER_SOURCE_DIGEST")


@pytest.mark.parametrize(
    ("processes", "resources", "expected"),
    [(None, None, ("1", None)), (None, GPUS, ("4", "4")), (1, GPUS, ("1", "4"))],
)
def test_processes_are_by_default_as_many_as_gpus(processes, resources, expected):
    values = {"training": {"processesPerPod": processes}, **({"resources": resources} if resources else {})}
    found = env(pod(**values)["containers"][0])
    names = ("PADDLE_LAUNCHER_PROCESSES_PER_POD", "PADDLE_LAUNCHER_GPUS_PER_POD")
    assert tuple(map(found.get, names)) == expected


def test_a_script_that_reads_its_own_data_has_neither_data_job_nor_init_container():
    manifests = render(SCRIPT)
    assert [item["kind"] for item in manifests].count("Job") == 1
    assert "initContainers" not in pod()
    assert env(pod()["containers"][0])["PADDLE_LAUNCHER_DATA_DIGEST"] == "none"
    assert (run_json(manifests)["k8sDataJob"], run_json(manifests)["dataDigest"]) == ("", "none")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_script_with_a_source_waits_for_its_data(enabled):
    data = {"enabled": enabled, "source": "file://lines.txt"}
    assert [one["name"] for one in pod(data=data)["initContainers"]] == ["await-data"]
    fleet = run_json(render(ONE_MACHINE, values={"jobName": "digits", "trainers": 2}))
    assert run_json(render(SCRIPT, values={"data": data}))["dataDigest"] == fleet["dataDigest"], (
        "the same data"
    )


def test_values_of_other_runtimes_are_rejected():
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    done = helm_template(SCRIPT, values=nest_keys(FLEET_ONLY))
    assert done.returncode != 0
    for key in FLEET_ONLY:
        [fault] = [line for line in done.stderr.splitlines() if line.startswith(f"- {key} is ")]
        default = reduce(operator.getitem, key.split("."), defaults)
        shown = f'"{default}"' if isinstance(default, str) else default
        assert f"but must be {shown} with runtime collective: " in fault
        assert fault.endswith(f"Fix: Remove {key}.")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (
            {"training": {"config": "quick_start/trainer_config.py"}},
            "must be FOLDER/SCRIPT.py with runtime collective",
        ),
        ({"training": {"config": "digits"}}, "must be FOLDER/SCRIPT.py with runtime collective"),
        ({"training": {"processesPerPod": 5}, "resources": GPUS}, "must be at most 4, the GPUs of a pod"),
        ({"training": {"processesPerPod": 0}}, "/training/processesPerPod"),
        ({"data": {"enabled": True}}, "data.source"),
        ({"extraEnv": [{"name": "MASTER_ADDR", "value": "x"}]}, "neither this chart nor the image"),
        ({"port": 65533}, "must be at most 65532"),
    ],
)
def test_invalid_values_of_a_script_are_rejected(values, fault):
    done = helm_template(SCRIPT, values=values)
    assert done.returncode != 0
    assert fault in done.stderr


def test_processes_are_rejected_with_other_runtimes():
    done = helm_template(ONE_MACHINE, values={"training": {"processesPerPod": 2}})
    assert "training.processesPerPod is 2, but must be null with runtime fleet" in done.stderr


def test_options_with_names_of_old_flags_are_a_scripts_own():
    found = env(pod(training={"extraArgs": ["--config=a.yaml", "--local=1"]})["containers"][0])
    assert found["PADDLE_LAUNCHER_EXTRA_ARGS"] == '["--config=a.yaml","--local=1"]'
