"""Tests of the chart with runtime ps: ports, servers, and the arguments of the script."""

from __future__ import annotations

import pytest
from chart_tools import CHART, env, one, render, settings

SCRIPT = CHART / "ci" / "ps.yaml"


def template(**values):
    """Return the template of the training pod of a script."""
    return one(render(SCRIPT, values=values), "Job", "training")["spec"]["template"]


@pytest.mark.parametrize(
    ("training", "servers", "processes"),
    [({}, 3, 4), ({"servers": None}, 2, 3), ({"servers": 1, "processesPerPod": None}, 1, 2)],
)
def test_ports_are_those_of_the_pod_with_the_most_servers(training, servers, processes):
    made = template(training=training)
    [train] = made["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in train["ports"]}
    own = {f"process-{number}": 7164 + number for number in range(processes)}
    assert ports == {**own, "master-0": 7164 + processes, "peers": 7165 + processes}
    found = settings(made)
    assert (found["training"]["servers"], found["peerPort"]) == (servers, 7165 + processes)
    assert env(train)["CONF_PADDLE_PORTS_NUM"] == str(processes)


def test_other_runtimes_have_no_servers_in_their_settings():
    assert "servers" not in settings(template(runtime="collective", training={"servers": None}))["training"]


def test_arguments_reach_the_script_as_they_are():
    arguments = [
        "-c",
        "configs/a.yml",
        "-o",
        "Global.epochs=2",
        "{output_dir}/x",
        "$(JOB_NAME)",
        "{'a': \"b\"}",
        "",
    ]
    for config in ("rec/tools/train.py", "rec/tools.train"):
        found = settings(template(training={"config": config, "args": arguments}))["training"]
        assert (found["config"], found["args"]) == (config, arguments)
