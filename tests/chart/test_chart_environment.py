"""The environment of the pods is the documented one: docs/reference/environment.md."""

from __future__ import annotations

import re

import pytest
import yaml
from chart_tools import CHART, EXAMPLES, ONE_MACHINE, ROOT, env, helm_template, one, render

from launcher.metrics import DEFAULT_PASSES
from local import try_example

PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")


def containers(values=None, *files):
    """Return the containers (init containers first) of the training pod and of the data pod."""
    manifests = render(*(files or (ONE_MACHINE,)), values=values)
    pods = {c: one(manifests, "Job", c)["spec"]["template"]["spec"] for c in ("training", "data")}
    return pods["training"]["initContainers"] + pods["training"]["containers"], pods["data"]["containers"]


def section(title: str) -> str:
    """Return the text below the heading `title` of docs/reference/environment.md."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def documented_for_all() -> set[str]:
    return set(re.findall(r"^\| `([A-Z0-9_]+)` \|", section("All pods"), re.MULTILINE))


def documented_for_training() -> dict[str, str]:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \|[^|]*\|([^|]*)\|$", section("Training pods"), re.MULTILINE)
    return {name: default.strip().strip("`") for name, default in rows}


def documented_for_data() -> set[str]:
    return set(re.findall(r"^\| `([A-Z0-9_]+)` \|", section("Data pods"), re.MULTILINE))


def test_training_containers_have_exactly_the_documented_variables():
    """`JOB_COMPLETION_INDEX` comes from Kubernetes, HOME is for libraries."""
    wanted = (documented_for_all() | set(documented_for_training()) | {"HOME"}) - {"JOB_COMPLETION_INDEX"}
    for container in containers(
        {"training": {"incrementalCheckpoints": 1, "keepBest": "auc", "patience": 1, "rankWaitHours": 0}}
    )[0]:
        assert set(env(container)) == wanted, container["name"]


def test_training_defaults_are_the_documented_defaults():
    found = env(containers()[0][1])
    others = (
        "SERVICE",
        "K8S_JOB_UID",
        "INCREMENTAL_CHECKPOINTS",
        "KEEP_BEST",
        "PATIENCE",
        "RANK_WAIT_HOURS",
        "WORK_LIMIT_BYTES",
    )
    special = {"JOB_COMPLETION_INDEX", *(f"PADDLE_LAUNCHER_{name}" for name in others)}
    for name, default in documented_for_training().items():
        if name not in special:
            assert found[name] == ("" if default == "empty" else default), name
    assert found["PADDLE_LAUNCHER_SERVICE"] == one(render(ONE_MACHINE), "Service")["metadata"]["name"]


def test_the_default_number_of_passes_is_that_of_the_launcher():
    assert yaml.safe_load((CHART / "values.yaml").read_text())["training"]["passes"] == DEFAULT_PASSES


def test_data_container_has_exactly_the_documented_variables():
    wanted = documented_for_all() | documented_for_data() | {"HOME"}
    hidden = {"source": "", "sourceSecret": {"name": "a"}, "sha256": "0" * 64}
    found = env(containers({"data": {"quoting": "none", **hidden}})[1][0])
    assert "PADDLE_LAUNCHER_DATA_SOURCE_SECRET" not in env(containers()[1][0]), (
        "it would rename existing Jobs"
    )
    assert found["PADDLE_LAUNCHER_DATA_QUOTING"] == "none"
    assert "PADDLE_LAUNCHER_DATA_QUOTING" not in env(containers()[1][0]), "it would rename existing Jobs"
    assert set(found) == wanted - {"PADDLE_LAUNCHER_DATA_PREPARED_BY"}


def test_training_pods_that_prepare_data_have_the_variables_of_the_data_container():
    data_values = {"deadlineSeconds": 9, "member": "rows.txt", "tables": ["a"]}
    values = {"trainers": 5, "data": data_values | {"preparedBy": "trainingPods"}}
    training = one(render(ONE_MACHINE, values=values), "Job")["spec"]["template"]["spec"]
    [found] = [env(container) for container in training["initContainers"]]
    data = env(containers({"trainers": 5, "data": data_values})[1][0])
    changed = {"PADDLE_LAUNCHER_DATA_PREPARED_BY": "trainingPods", "PADDLE_LAUNCHER_DATA_WORKERS": "5"}
    assert found == data | changed
    assert env(training["containers"][0]).keys() == env(containers()[0][1]).keys()


def test_every_variable_is_text():
    """The API server rejects an env value that YAML reads as a number or a boolean."""
    for container in [item for group in containers() for item in group]:
        assert all(isinstance(item.get("value", ""), str) for item in container["env"])


def test_settings_reach_their_variables():
    values = {
        "nic": "ens5",
        "port": 8000,
        "portsNum": 3,
        "portsNumSparse": 4,
        "trainerCount": 5,
        "training": {
            "config": "mine/net.py",
            "extraArgs": ["--a=b c", '--q="x"'],
            "batchSize": 1000000,
            "checkpointEvery": {"batches": 2000000},
            "keepCheckpoints": 7,
            "incrementalCheckpoints": 4,
            "keepBest": "auc",
            "patience": 3,
            "initModelPath": "other-job/output",
            "progressDeadlineSeconds": 60,
        },
        "notify": {"events": True},
        "logFormat": "json",
    }
    found = env(containers(values)[0][1])
    expected = {
        "CONF_PADDLE_NIC": "ens5",
        "CONF_PADDLE_PORT": "8000",
        "CONF_PADDLE_PORTS_NUM": "3",
        "CONF_PADDLE_PORTS_NUM_SPARSE": "4",
        "PADDLE_LAUNCHER_PEER_PORT": "8007",
        "TRAINER_COUNT": "5",
        "TRAIN_CONFIG_DIR": "mine",
        "PADDLE_LAUNCHER_CONFIG_FILE": "net.py",
        "PADDLE_LAUNCHER_EXTRA_ARGS": '["--a=b c","--q=\\"x\\""]',
        "PADDLE_LAUNCHER_BATCH_SIZE": "1000000",
        "PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES": "2000000",
        "PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES": "0",
        "PADDLE_LAUNCHER_KEEP_CHECKPOINTS": "7",
        "PADDLE_LAUNCHER_INCREMENTAL_CHECKPOINTS": "4",
        "PADDLE_LAUNCHER_KEEP_BEST": "auc",
        "PADDLE_LAUNCHER_PATIENCE": "3",
        "PADDLE_LAUNCHER_INIT_MODEL_PATH": "other-job/output",
        "PADDLE_LAUNCHER_PROGRESS_DEADLINE_SECONDS": "60",
        "PADDLE_LAUNCHER_EVENTS": "true",
        "PADDLE_LAUNCHER_LOG_FORMAT": "json",
    }
    assert {name: found[name] for name in expected} == expected


def test_unset_optional_values_add_no_variables():
    """An additional variable would rename the Job, so an upgrade would start a new run."""
    names = ("INCREMENTAL_CHECKPOINTS", "KEEP_BEST", "PATIENCE", "RANK_WAIT_HOURS")
    assert not {f"PADDLE_LAUNCHER_{name}" for name in names} & env(containers()[0][1]).keys()


@pytest.mark.parametrize(
    ("every", "runtime", "batches", "minutes"),
    [
        ({}, "fleet", "0", "10"),
        ({"batches": None, "minutes": 0.5}, "fleet", "0", "0.5"),
        ({"minutes": 0}, "fleet", "0", "0"),
        ({"minutes": None}, "fleet", "0", "0"),
        ({"batches": 7}, "fleet", "7", "0"),
        ({}, "v1", "0", "0"),
    ],
)
def test_batches_between_checkpoints_replace_the_default_minutes(every, runtime, batches, minutes):
    """Helm merges a user's `{batches: 7}` with the default `{minutes: 10}`."""
    found = env(containers({"training": {"checkpointEvery": every}, "runtime": runtime})[0][1])
    assert found["PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES"] == batches
    assert found["PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES"] == minutes


def test_the_launcher_knows_the_grace_period():
    found = containers({"training": {"terminationGracePeriodSeconds": 45}})[0][1]
    assert env(found)["PADDLE_LAUNCHER_GRACE_SECONDS"] == "45"


def test_webhook_address_comes_from_a_required_secret():
    """A pod without the address would train without sending messages."""
    training, data = containers({"notify": {"webhook": {"secretName": "chat"}}})
    wanted = {"secretKeyRef": {"name": "chat", "key": "url", "optional": False}}
    for container in training:
        assert [
            item["valueFrom"] for item in container["env"] if item["name"] == "PADDLE_LAUNCHER_WEBHOOK"
        ] == [wanted]
    assert "PADDLE_LAUNCHER_WEBHOOK" not in env(data[0])


def test_extra_env_reaches_every_container_unchanged():
    """The API server rejects a value that is not text, so "1" and "true" stay quoted."""
    secret = {"secretKeyRef": {"name": "store", "key": "secret"}}
    own = [
        {"name": "HTTPS_PROXY", "value": "http://proxy.example.org:3128"},
        {"name": "A_NUMBER", "value": "1"},
        {"name": "A_SWITCH", "value": "true"},
        {"name": "EMPTY", "value": ""},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": secret},
    ]
    training, data = containers({"extraEnv": own})
    assert len(training) == 2
    for container in [*training, *data]:
        assert [item for item in container["env"] if item in own] == own, container["name"]
        assert all(isinstance(item.get("value", ""), str) for item in container["env"])


def test_extra_env_with_a_name_of_the_chart_is_rejected():
    """Of two variables with one name the second would silently override the first."""
    names = documented_for_all() | set(documented_for_training()) | documented_for_data() | {"HOME"}
    own = [{"name": name, "value": "x"} for name in sorted(names)]
    done = helm_template(ONE_MACHINE, values={"extraEnv": own})
    rejected = set(re.findall(r'extraEnv is "([A-Z0-9_]+)", but must be a name that neither', done.stderr))
    assert rejected == names


def test_launcher_reads_exactly_the_variables_that_the_chart_sets():
    """The launcher's parsers accept the environment of each example."""
    from launcher.settings import DataSettings, TrainSettings

    for example in EXAMPLES:
        training, data = containers(None, ONE_MACHINE, example)
        environment = env(training[1]) | {"JOB_COMPLETION_INDEX": "0", "PADDLE_LAUNCHER_POD_IP": "10.0.0.1"}
        written = {"PADDLE_LAUNCHER_K8S_JOB": "a-1", "PADDLE_LAUNCHER_K8S_JOB_UID": "0a1b"}  # by Kubernetes
        written["PADDLE_LAUNCHER_WORK_LIMIT_BYTES"] = "1000"
        environment |= written
        settings = TrainSettings.from_environ(environment)
        cut = DataSettings.from_environ(env(data[0]) | written)
        assert settings.trainers == cut.split_count == 3
        assert settings.data_digest == cut.data_digest
        if example.stem == "recommendation":
            assert cut.delimiter == "\t"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_make_try_sets_the_same_environment_as_the_chart(example, tmp_path):
    """Except values that depend on the cluster: names, digest, network, folders."""
    own = {
        "JOB_PATH", "OUT_DIR", "JOB_NAMESPACE", "CONF_PADDLE_NIC",
        *(f"PADDLE_LAUNCHER_{name}" for name in ("RELEASE", "K8S_JOB", "DATA_DIGEST", "SERVICE", "GRACE_SECONDS")),
    }  # fmt: skip
    training, data = containers(None, ONE_MACHINE, example)
    pods = {**env(data[0]), **env(training[1])}
    environment = try_example.example_environment(try_example.example_values(example.stem), tmp_path)
    assert {key: environment[key] for key in environment if key not in own} == {
        key: pods[key] for key in environment if key not in own
    }
