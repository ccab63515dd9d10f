"""What the pods are told is what docs/contracts.md says."""

from __future__ import annotations

import re

import pytest
from chart_tools import EXAMPLES, ONE_MACHINE, ROOT, env, helm_template, one, render

from local import tryout

CONTRACT = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")


def containers(values=None, *files):
    """Containers (init ones first) of the training and the data pod."""
    manifests = render(*(files or (ONE_MACHINE,)), values=values)
    pods = {c: one(manifests, "Job", c)["spec"]["template"]["spec"] for c in ("training", "data")}
    return pods["training"]["initContainers"] + pods["training"]["containers"], pods["data"]["containers"]


def contract_of_all() -> set[str]:
    line = re.search(r"^All pods: (.*)$", CONTRACT, re.MULTILINE).group(1)
    return set(re.findall(r"`([A-Z][A-Z0-9_]+)`", line))


def contract_of_training() -> dict[str, str]:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \|[^|]*\|([^|]*)\|$", CONTRACT, re.MULTILINE)
    return {name: default.strip().strip("`") for name, default in rows}


def contract_of_data() -> set[str]:
    line = re.search(r"^Data pod: (.*)$", CONTRACT, re.MULTILINE).group(1)
    suffixes = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", line.split("+", 1)[1]))
    return {"OUT_DIR", "SPLIT_COUNT"} | {f"PADDLE_LAUNCHER_DATA_{suffix}" for suffix in suffixes}


def test_training_containers_get_exactly_the_contracts_variables():
    """`JOB_COMPLETION_INDEX` comes from Kubernetes, HOME is for libraries."""
    wanted = (contract_of_all() | set(contract_of_training()) | {"HOME"}) - {"JOB_COMPLETION_INDEX"}
    for container in containers({"training": {"deltaSaves": 1, "keepBest": "auc", "patience": 1}})[0]:
        assert set(env(container)) == wanted, container["name"]


def test_training_defaults_are_the_contracts_defaults():
    found = env(containers()[0][1])
    others = ("SERVICE", "K8S_JOB_UID", "DELTA_SAVES", "KEEP_BEST", "PATIENCE")
    special = {"JOB_COMPLETION_INDEX", *(f"PADDLE_LAUNCHER_{name}" for name in others)}
    for name, default in contract_of_training().items():
        if name not in special:
            assert found[name] == ("" if default == "empty" else default), name
    assert found["PADDLE_LAUNCHER_SERVICE"] == one(render(ONE_MACHINE), "Service")["metadata"]["name"]


def test_the_data_container_gets_exactly_the_contracts_variables():
    assert set(env(containers()[1][0])) == contract_of_all() | contract_of_data() | {"HOME"}


def test_every_variable_is_text():
    """An env value that YAML reads as a number or a boolean is refused by the API server."""
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
            "saveEvery": {"batches": 2000000},
            "keepSaves": 7,
            "deltaSaves": 4,
            "keepBest": "auc",
            "patience": 3,
            "initFrom": "other-job/output",
            "stallSeconds": 60,
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
        "PADDLE_LAUNCHER_SAVE_EVERY_BATCHES": "2000000",
        "PADDLE_LAUNCHER_SAVE_EVERY_MINUTES": "0",
        "PADDLE_LAUNCHER_KEEP_SAVES": "7",
        "PADDLE_LAUNCHER_DELTA_SAVES": "4",
        "PADDLE_LAUNCHER_KEEP_BEST": "auc",
        "PADDLE_LAUNCHER_PATIENCE": "3",
        "PADDLE_LAUNCHER_INIT_FROM": "other-job/output",
        "PADDLE_LAUNCHER_STALL_SECONDS": "60",
        "PADDLE_LAUNCHER_EVENTS": "true",
        "PADDLE_LAUNCHER_LOG_FORMAT": "json",
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["DELTA_SAVES", "KEEP_BEST", "PATIENCE"])
def test_a_newer_value_that_is_not_set_adds_no_variable(name):
    """A variable more would make an upgrade another run."""
    assert f"PADDLE_LAUNCHER_{name}" not in env(containers()[0][1])


def test_minutes_between_saves_may_be_parts_of_one():
    found = env(containers({"training": {"saveEvery": {"batches": None, "minutes": 0.5}}})[0][1])
    assert found["PADDLE_LAUNCHER_SAVE_EVERY_MINUTES"] == "0.5"
    assert found["PADDLE_LAUNCHER_SAVE_EVERY_BATCHES"] == "0"


def test_the_address_for_messages_comes_from_a_secret_that_must_be_there():
    """A pod without its address would train and tell nobody."""
    training, data = containers({"notify": {"webhook": {"secretName": "chat"}}})
    wanted = {"secretKeyRef": {"name": "chat", "key": "url", "optional": False}}
    for container in training:
        assert [
            item["valueFrom"] for item in container["env"] if item["name"] == "PADDLE_LAUNCHER_WEBHOOK"
        ] == [wanted]
    assert "PADDLE_LAUNCHER_WEBHOOK" not in env(data[0])


def test_a_persons_own_variables_reach_every_container_as_they_are():
    """The API server refuses a value that is no text, so "1" and "true" stay quoted."""
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


def test_every_name_that_the_chart_sets_is_refused_as_ones_own():
    """Else the second of two variables of one name would win, unseen."""
    names = contract_of_all() | set(contract_of_training()) | contract_of_data() | {"HOME"}
    own = [{"name": name, "value": "x"} for name in sorted(names)]
    done = helm_template(ONE_MACHINE, values={"extraEnv": own})
    refused = set(re.findall(r'extraEnv is "([A-Z0-9_]+)", but must be a name that neither', done.stderr))
    assert refused == names


def test_the_launcher_reads_what_the_chart_sets_and_asks_for_nothing_else():
    """Its own parsers accept the environment of each example."""
    from launcher.settings import DataSettings, TrainSettings

    for example in EXAMPLES:
        training, data = containers(None, ONE_MACHINE, example)
        told = env(training[1]) | {"JOB_COMPLETION_INDEX": "0", "PADDLE_LAUNCHER_POD_IP": "10.0.0.1"}
        written = {"PADDLE_LAUNCHER_K8S_JOB": "a-1", "PADDLE_LAUNCHER_K8S_JOB_UID": "0a1b"}  # by Kubernetes
        told |= written
        settings = TrainSettings.from_environ(told)
        cut = DataSettings.from_environ(env(data[0]) | written)
        assert settings.trainers == cut.split_count == 3
        assert settings.data_digest == cut.data_digest
        if example.stem == "recommendation":
            assert cut.delimiter == "\t"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_make_try_tells_its_launchers_what_the_chart_tells_the_pods(example, tmp_path):
    """But what is the cluster's: names, the digest, the network, folders."""
    own = {
        "JOB_PATH", "OUT_DIR", "JOB_NAMESPACE", "CONF_PADDLE_NIC",
        *(f"PADDLE_LAUNCHER_{name}" for name in ("RELEASE", "K8S_JOB", "DATA_DIGEST", "SERVICE")),
    }  # fmt: skip
    training, data = containers(None, ONE_MACHINE, example)
    pods = {**env(data[0]), **env(training[1])}
    told = tryout.environment(tryout.values(example.stem), tmp_path)
    assert {key: told[key] for key in told if key not in own} == {
        key: pods[key] for key in told if key not in own
    }
