"""`base` prints the cluster's values; a values file over them inherits nothing from the earlier training."""

from __future__ import annotations

import re
from functools import reduce

import yaml
from chart_tools import EXAMPLES, ONE_MACHINE, default_values, helm_template, one, render, run_json

from launcher.cli.releases import merge_values

TRAININGS = """
    jobName runId startFromScratch runtime trainers gradientNum trainerCount port portsNum portsNumSparse peerPort
    rendezvousSeconds training data resources workDir
"""
"""Values of a training; all others belong to the cluster."""


def base_of(*files, values=None):
    """Return what `base` prints for an installed release."""
    config = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    merged = reduce(merge_values, [*config, values or {}], default_values())
    return {name: merged[name] for name in run_json(render(*files, values=values))["clusterValues"]}


def test_base_has_every_value_of_the_cluster_and_no_other():
    assert set(base_of(ONE_MACHINE)) == set(default_values()) - set(TRAININGS.split())


def test_values_over_the_base_of_another_training_inherit_none_of_its_keys(tmp_path):
    quick_start = next(path for path in EXAMPLES if path.stem == "quick_start")
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(base_of(ONE_MACHINE, quick_start, values={"nic": "eth7"})))
    mine = tmp_path / "mine.yaml"
    mine.write_text("jobName: mine\ndata: {source: file://texts.csv, format: csv}\n")
    manifests = render(base, mine)
    data = run_json(manifests)["data"]
    assert (data["encoding"], data["seed"], data["member"], data["columns"]) == ("utf-8", 0, "", [])
    assert (
        one(manifests, "Job", "training")["spec"]["template"]["spec"]["volumes"]
        == (one(render(ONE_MACHINE), "Job", "training")["spec"]["template"]["spec"]["volumes"])
    )
    assert "eth7" in helm_template(base, mine).stdout


def test_null_for_a_required_value_is_rejected_with_its_key():
    def paths(node, path=()):
        for key, value in node.items():
            yield (*path, key), value
            if isinstance(value, dict):
                yield from paths(value, (*path, key))

    def nulls(*paths):
        values = {}
        for path in paths:
            reduce(lambda node, key: node.setdefault(key, {}), path[:-1], values)[path[-1]] = None
        return helm_template(ONE_MACHINE, values=values)

    may_be_null = {"data.deadlineSeconds", "training.deadlineSeconds", "storage.efsCsi", "storage.nfs"}
    may_be_null |= {"workDir.sizeLimit", "monitoring.dashboard.labels.grafana_dashboard"}
    may_be_null |= {"training.checkpointEvery.minutes"}
    wanted = [path for path, default in paths(default_values()) if default is not None and path[0] != "image"]
    alone, passed = [], []
    for depth in {len(path) for path in wanted}:
        level = [path for path in wanted if len(path) == depth]
        named = {  # all in one message; helm removes nulls before the schema check
            (*filter(None, place.split("/")), key)
            for place, keys in re.findall(r"at '/?(.*?)': missing propert\S+ (.*)", nulls(*level).stderr)
            for key in keys.strip("'").split("', '")
        }
        alone += [path for path in level if path not in named]
    assert len(alone) < len(wanted) / 4
    for path in alone:
        done = nulls(path)
        if done.returncode == 0:
            passed.append(".".join(path))
        else:
            assert path[-1] in done.stderr, done.stderr
            assert "nil pointer" not in done.stderr, done.stderr
    assert set(passed) <= may_be_null, passed
