"""What the pods get: the settings document, which the launcher reads, and the documented environment variables."""

from __future__ import annotations

import re

import pytest
from chart_tools import (
    CHART,
    EXAMPLES,
    ONE_MACHINE,
    ROOT,
    SCENARIOS,
    default_values,
    env,
    helm_template,
    leaves,
    render,
    settings,
)

from launcher.metrics import DEFAULT_PASSES
from launcher.settings import DataSettings, TrainSettings, seed_variables, settings_document, settings_of
from local.try_example import example_values

PAGE = (ROOT / "docs" / "reference" / "pods.md").read_text(encoding="utf-8")
ONLY_CHART = {
    *("training.deadlineSeconds", "training.sharedMemory"),
    *("data.enabled", "data.podSpecPatch", "data.resources", "data.splitCount"),
}
"""Values below `training` and `data` that only the chart reads; `data.splitCount` is the variable SPLIT_COUNT."""
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "0",
    "PADDLE_LAUNCHER_K8S_JOB": "a-1",
    "PADDLE_LAUNCHER_K8S_JOB_UID": "0a1b",
    "PADDLE_LAUNCHER_POD_IP": "10.0.0.1",
    "PADDLE_LAUNCHER_WORK_LIMIT_BYTES": "1000",
    "PADDLE_LAUNCHER_WEBHOOK": "https://example.org/hook",
    "PADDLE_LAUNCHER_DATA_SOURCE": "https://example.org/rows?signature=a",
}
"""What Kubernetes sets in a pod."""


def templates(*files, values=None):
    """Return the pod templates by component; a release of training.schedule has the one of the training only."""
    found = {}
    for item in render(*files, values=values):
        spec = item["spec"]["jobTemplate"]["spec"] if item["kind"] == "CronJob" else item.get("spec", {})
        if item["kind"] in ("Job", "CronJob"):
            found[item["metadata"]["labels"]["app.kubernetes.io/component"]] = spec["template"]
    return found


def containers(template):
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def read(kind, template, container, folder):
    """Return the settings that the launcher reads in a container."""
    file = folder / "settings.json"
    file.write_text(template["metadata"]["annotations"]["paddle-training/settings"])
    environ = {name: KUBERNETES.get(name, text) for name, text in env(container).items()}
    own = {"PADDLE_LAUNCHER_SETTINGS": str(file), "JOB_COMPLETION_INDEX": "0"}
    return kind.from_environ(environ | own)


def documented(title: str) -> set[str]:
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    return set(re.findall(r"^\| `([A-Z0-9_]+)` \|", section, re.MULTILINE))


@pytest.mark.parametrize("scenario", [*SCENARIOS, *EXAMPLES], ids=lambda path: path.stem)
def test_the_launcher_reads_the_settings_of_each_scenario(scenario, tmp_path):
    made = templates(*((ONE_MACHINE,) if scenario in EXAMPLES else ()), scenario)
    for component, template in made.items():
        for container in containers(template):
            kind = DataSettings if container["command"][-1] == "prepare" else TrainSettings
            found = read(kind, template, container, tmp_path)
            assert found.data_digest == settings(template)["release"]["dataDigest"] + (
                "-a-1" if found.schedule else ""
            ), component


def test_every_value_of_the_training_and_the_data_has_a_field_and_the_other_way_round():
    fields = {one.key for kind in (TrainSettings, DataSettings) for one in settings_of(kind).values()}
    of_chart = {
        key
        for key in map(".".join, leaves({name: default_values()[name] for name in ("training", "data")}))
        if key not in ONLY_CHART and not key.startswith(("data.resources", "data.sourceSecret."))
    } | {"training.checkpointEvery.batches", "data.sourceSecret"}
    assert {key for key in fields if key.startswith(("training.", "data."))} == of_chart
    made = templates(ONE_MACHINE)
    below = {
        f"{part}.{key}"
        for document in map(settings, (made["training"], made["data"]))
        for part in ("training", "data")
        for key in document[part]
    }
    assert not below & ONLY_CHART


def test_values_reach_the_fields_of_the_settings(tmp_path):
    values = {
        "nic": "ens5", "port": 8000, "portsNum": 3, "portsNumSparse": 4, "trainerCount": 5, "trainers": 5,
        "logFormat": "json", "notify": {"events": True, "webhook": {"secretName": "chat"}},
        "training": {
            "config": "mine/net.py",
            "args": ["--a=b $(HOME) c", '--q="<x>&"'],
            "batchSize": 1000000,
            "checkpointEvery": {"batches": 2000000},
            "terminationGracePeriodSeconds": 45,
            "rankWaitHours": 0,
        },
        "data": {"format": "csv", "delimiter": "\t", "sha256": "AB" * 32, "columns": ["a", 1], "testFraction": 0,
                 "testSource": "file://test.csv"},
    }  # fmt: skip
    made = templates(ONE_MACHINE, values=values)
    found = read(TrainSettings, made["training"], made["training"]["spec"]["containers"][0], tmp_path)
    assert (found.nic, found.port, found.ports_num, found.ports_num_sparse) == ("ens5", 8000, 3, 4)
    assert (found.peer_port, found.trainer_count, found.trainers, found.gradient_num) == (8007, 5, 5, 5)
    assert (found.config_dir, found.config_file) == ("mine", "net.py")
    assert found.args == ("--a=b $(HOME) c", '--q="<x>&"')
    assert (found.batch_size, found.checkpoint_every_batches, found.checkpoint_every_minutes) == (
        10**6,
        2 * 10**6,
        0,
    )
    assert (found.grace_seconds, found.rank_wait_hours, found.log_format) == (45, 0, "json")
    assert (found.events, found.webhook) == (True, KUBERNETES["PADDLE_LAUNCHER_WEBHOOK"])
    cut = read(DataSettings, made["data"], made["data"]["spec"]["containers"][0], tmp_path)
    assert (cut.format, cut.delimiter, cut.columns, cut.sha256) == ("csv", "\t", ("a", 1), "ab" * 32)
    assert (cut.split_count, cut.workers, cut.test_fraction, cut.in_training_pod) == (5, 1, 0, False)


def test_training_pods_that_prepare_data_have_the_values_and_variables_of_the_data_job(tmp_path):
    values = {"trainers": 5, "data": {"deadlineSeconds": 9, "member": "rows.txt", "tables": ["a"]}}
    by_job = templates(ONE_MACHINE, values=values)["data"]
    values["data"]["preparedBy"] = "trainingPods"
    by_pods = templates(ONE_MACHINE, values=values)["training"]
    (prepare,), (job,) = by_pods["spec"]["initContainers"], by_job["spec"]["containers"]
    assert env(prepare) == env(job)
    ours, theirs = (read(DataSettings, *each, tmp_path) for each in ((by_pods, prepare), (by_job, job)))
    assert (ours.in_training_pod, ours.workers) == (True, 5)
    same = [name for name in settings_of(DataSettings) if name not in ("prepared_by", "workers")]
    assert {name: getattr(ours, name) for name in same} == {name: getattr(theirs, name) for name in same}


@pytest.mark.parametrize("component", ["training", "data"])
def test_containers_have_exactly_the_documented_variables(component):
    """Kubernetes sets `JOB_COMPLETION_INDEX`; HOME is for libraries. The API server rejects a value that is no text."""
    data = {"source": "", "sourceSecret": {"name": "a"}, "sha256": "0" * 64}
    values = {"data": data, "notify": {"webhook": {"secretName": "chat"}}}
    title = {"training": "Training pods", "data": "Data pods"}[component]
    wanted = (documented("All pods") | documented(title) | {"HOME"}) - {"JOB_COMPLETION_INDEX"}
    template = templates(ONE_MACHINE, values=values)[component]
    for container in containers(template):
        assert set(env(container)) == wanted - {"PADDLE_LAUNCHER_PYTHONPATH"}, container["name"]
        assert all(isinstance(item.get("value", ""), str) for item in container["env"])
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounted["settings"] == "/etc/paddle-training"


def test_extra_env_with_a_name_of_the_chart_is_rejected():
    """Of two variables with one name the second would silently override the first."""
    names = documented("All pods") | documented("Training pods") | documented("Data pods") | {"HOME"}
    own = [{"name": name, "value": "x"} for name in sorted(names)]
    done = helm_template(ONE_MACHINE, values={"extraEnv": own})
    rejected = set(re.findall(r'extraEnv is "([A-Z0-9_]+)", but must be a name that neither', done.stderr))
    assert rejected == names


@pytest.mark.parametrize(
    "scenario", [*EXAMPLES, CHART / "ci" / "collective.yaml"], ids=lambda path: path.stem
)
def test_make_try_has_the_same_settings_as_the_chart(scenario):
    """`settings_document` and `seed_variables` stand for the templates outside a cluster."""
    made = templates(ONE_MACHINE, scenario)
    values = example_values(scenario.stem, scenario.parent)
    ours = settings_document(values, "demo", settings(made["training"])["release"]["dataDigest"])
    for component, kind in (("training", TrainSettings), ("data", DataSettings)):
        if component not in made:
            continue
        theirs = settings(made[component])
        for name, one_setting in settings_of(kind).items():
            if name != "source_digest":
                assert one_setting.find(ours) == one_setting.find(theirs), name
        variables = env(made[component]["spec"]["containers"][0])
        seeds = {name: text for name, text in seed_variables(values).items() if name in variables}
        assert seeds == {name: variables[name] for name in seeds}


def test_the_default_number_of_passes_is_that_of_the_launcher():
    assert default_values()["training"]["passes"] == DEFAULT_PASSES
