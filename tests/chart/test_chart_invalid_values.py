"""Each invalid value gives one message: key, value, limit, reason, fix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from chart_tools import CHART, ONE_MACHINE, SERVING, default_values, helm_template
from jsonschema import Draft7Validator

from launcher.cli.launch_training import merge_values, nest_keys
from launcher.runtimes.collective import FOREIGN_VARIABLES

HERE = Path(__file__).parent
INVALID = yaml.safe_load((HERE / "invalid_values.yaml").read_text("utf-8"))
WRONG = yaml.safe_load((HERE / "invalid_by_schema.yaml").read_text("utf-8"))
TORCHRUN = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
}  # fmt: skip
FLEET_ONLY = {
    "trainerCount": 2,
    "portsNum": 3,
    "portsNumSparse": 1,
    "training.mode": "sync",
    "training.savingPeriod": 2,
    "training.logPeriod": 10,
    "training.dotPeriod": 1,
    "training.keepBest": "auc",
    "training.patience": 1,
    "training.initModelPath": "previous",
}
"""Values that only other runtimes have → a value other than the default."""


@pytest.mark.parametrize(
    ("scenario", "values", "texts"),
    [(scenario, values, texts) for scenario, rows in INVALID.items() for values, *texts in rows],
    ids=lambda item: str(item)[:60],
)
def test_invalid_value_is_rejected_with_key_value_limit_and_fix(scenario, values, texts):
    chart = SERVING if scenario == "claim" else CHART
    done = helm_template(chart / "ci" / f"{scenario}.yaml", values=nest_keys(values), chart=chart)
    assert done.returncode != 0, "helm accepted it"
    line = next((line for line in done.stderr.splitlines() if texts[0] in line), "")
    assert line, done.stderr
    for text in texts:
        assert text in line
        line = line.partition(text)[2]
    assert ",:" not in done.stderr
    assert "me:secret" not in done.stdout + done.stderr


def test_all_faults_are_reported_in_one_message():
    """Values that only other runtimes have, and variables that describe the distribution, with runtime collective."""
    names = sorted({*FOREIGN_VARIABLES, *TORCHRUN})
    values = nest_keys(FLEET_ONLY) | {"extraEnv": [{"name": name, "value": "1"} for name in names]}
    done = helm_template(CHART / "ci" / "collective.yaml", values=values)
    lines = done.stderr.splitlines()
    for key in FLEET_ONLY:
        [fault] = [line for line in lines if line.startswith(f"- {key} is ")]
        default = default_values()
        for part in key.split("."):
            default = default[part]
        assert f"but must be {json.dumps(default)} with runtime collective: " in fault
        assert fault.endswith(f"Fix: Remove {key}.")
    rejected = [
        line for line in lines if "but must be a name that neither this chart nor the image sets" in line
    ]
    assert [line.split('"')[1] for line in rejected] == names


@pytest.fixture(scope="module")
def schema() -> Draft7Validator:
    return Draft7Validator(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(("key", "wrong"), [(key, each) for key in WRONG for each in WRONG[key]])
def test_value_that_is_wrong_by_itself_is_rejected_by_the_schema(schema, key, wrong):
    values = merge_values(default_values(), nest_keys({"image": "a", key: wrong}))
    errors = list(schema.iter_errors(values))
    assert errors
    for error in errors:  # an unknown key is reported at the object that has it
        place, last = ".".join(map(str, error.absolute_path)), key.rpartition(".")[2]
        assert f"{place}.".startswith(f"{key}.") or last in error.message, (place, error.message)


def test_helm_reports_each_fault_that_the_schema_finds():
    done = helm_template(ONE_MACHINE, values={"trainers": 0, "training": {"pass": 3}})
    assert done.returncode != 0
    assert "at '/trainers': minimum: got 0, want 1" in done.stderr
    assert "at '/training': additional properties 'pass' not allowed" in done.stderr


ACCEPTED = [
    # Runtime fleet sets this variable itself; v1 passes its environment to the old binary.
    {"extraEnv": [{"name": "OMP_NUM_THREADS", "value": "4"}], "runtime": "v1"},
    *(
        {"training.initModelPath": place}
        for place in ("other/output", "paddle-job/runs/x.y", "other/output/")
    ),
    {"training.initModelPath": "s3://bucket/a/b_c/"},
    *(
        {"data.source": f"https://h/a{rest}"}
        for rest in ("?version=3&format=csv", "?tokenizer=b", "/signature/a.csv")
    ),
]


@pytest.mark.parametrize("values", ACCEPTED, ids=str)
def test_value_that_resembles_an_invalid_one_is_accepted(values):
    done = helm_template(ONE_MACHINE, values=nest_keys(values))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("version", "rejected"), [("v3.13.3", True), ("v3.14.0", False), ("v3.19", False), ("v4.0.1", False)]
)
def test_helm_older_than_3_14_is_rejected(tmp_path, version, rejected):
    """The chart gets a template that fails with the result of the check of a version."""
    copy = shutil.copytree(CHART, tmp_path / CHART.name)
    check = f'include "paddle-training.validate.helmVersion" "{version}" | printf "probe %s"'
    (copy / "templates" / "probe.yaml").write_text(f"{{{{- fail ({check}) }}}}\n", encoding="utf-8")
    text = helm_template(ONE_MACHINE, chart=copy).stderr
    assert "probe" in text
    assert ("but must be 3.14 or newer" in text) is rejected


@pytest.mark.parametrize("name", ["a.b", "1st"])
@pytest.mark.parametrize(
    "scenario", [ONE_MACHINE, SERVING / "ci" / "claim.yaml"], ids=["training", "serving"]
)
def test_release_name_that_is_no_service_name_is_rejected(scenario, name):
    done = helm_template(scenario, release=name, chart=scenario.parent.parent)
    assert f'the release\'s name is "{name}", but must be' in done.stderr
