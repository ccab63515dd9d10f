"""Settings: which are rejected (with key, value, limit, reason and fix) or accepted, and their descriptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aws.stack_access import read_stack
from infra import chart_values, settings, training
from infra.settings import SettingsError, load_settings, read_stack_config

from .recording_mocks import AWS, LOCAL, ROOT, aws_settings, aws_stack, config


def _refused(given: dict[str, str]) -> list[Any]:
    with pytest.raises(SettingsError) as caught:
        load_settings(given)
    for problem in caught.value.problems:
        assert all((problem.key, problem.reason, problem.fix)), problem
    return list(caught.value.problems)


INVALID = yaml.safe_load(Path(__file__).with_name("invalid_settings.yaml").read_text(encoding="utf-8"))
TOO_MANY = ({"tags": {f"k{n}": "v" for n in range(41)}}, "tags", "at most 40")


@pytest.mark.parametrize(("keys", "key", "limit"), [*INVALID["aws"], TOO_MANY])
def test_settings_invalid_value_raises(keys: dict[str, Any], key: str, limit: str) -> None:
    """It is reported once."""
    problems = _refused(config(**{**AWS, **keys}))
    assert [problem.key for problem in problems] == [f"paddle-training:{key}"]
    assert limit in "\n".join(map(str, problems))


@pytest.mark.parametrize(("keys", "key"), INVALID["kubeconfig"])
def test_settings_kubeconfig_target_missing_value_raises(keys: dict[str, Any], key: str) -> None:
    problems = _refused(config(region=None, **{**LOCAL, **keys}))
    assert f"paddle-training:{key}" in [problem.key for problem in problems]


def test_settings_reports_all_mistakes() -> None:
    given = {"nodes": {"min": 4}, "dns": {"zone": "x"}, "wrong": {}}
    assert len(_refused(config(region=None, **{**AWS, **given}))) == 4


@pytest.mark.parametrize(
    ("keys", "read", "expected"),
    [
        ({"nodes": {"min": 0, "desired": 0}}, lambda found: found.nodes.min, 0),
        ({"storage": {"archiveAfterDays": 0}}, lambda found: found.storage.archive_after_days, 0),
        ({"storage": {"protect": False}}, lambda found: found.storage.protect, False),
        ({"compute": "false"}, lambda found: found.compute, "off"),
        # A Kubernetes version that is newer than this program.
        ({"cluster": {"admins": ["role/A"], "version": "1.39"}}, lambda found: found.cluster.version, "1.39"),
    ],
)
def test_settings_value_is_kept(keys: dict[str, Any], read: Any, expected: Any) -> None:
    assert read(aws_settings(**keys)) == expected


def test_settings_other_namespaces_are_ignored() -> None:
    assert load_settings({**config(**AWS), "kubernetes:x": "1", "pulumi:tags": "{}"}).target == "aws"


def test_settings_spot_defaults_to_several_types() -> None:
    spot = aws_settings(nodes={"capacity": "SPOT"}).nodes.instance_types
    assert len(spot) > 3
    assert {kind.partition(".")[2] for kind in spot} == {"large"}
    listed = {"capacity": "SPOT", "instanceTypes": ["m5.large"]}
    assert aws_settings(nodes=listed).nodes.instance_types == ("m5.large",)


BUCKET = "s3://{bucket}"
ARM, NO_NAT = {"nodes": {"instanceTypes": ["m7g.large"]}}, {"network": {"nat": "none"}}


@pytest.mark.parametrize(
    ("values", "keys", "key"),
    [
        ({"data": {"source": "https://example.com/x"}}, NO_NAT, "data.source"),
        ({"data": {"source": "s3://b/k"}}, NO_NAT, ""),
        ({"data": {"source": "file://x"}}, NO_NAT, ""),
        # Keys of the stack's bucket that pods cannot use.
        ({"data": {"source": f"{BUCKET}/data/x.csv"}}, {}, "data.source"),
        ({"data": {"source": f"{BUCKET}/sources"}}, {}, "data.source"),
        ({"data": {"testSource": f"{BUCKET}/test/x.csv"}}, {}, "data.testSource"),
        ({"training": {"exportTo": f"{BUCKET}/exports"}}, {}, "training.exportTo"),
        ({"training": {"initModelPath": f"{BUCKET}/sources/m/run"}}, {}, "training.initModelPath"),
        ({"data": {"source": f"{BUCKET}/sources/x"}, "training": {"exportTo": f"{BUCKET}/models"}}, {}, ""),
        ({"data": {"source": "s3://other/data"}, "training": {"exportTo": "s3://other/x"}}, {}, ""),
        ({"runtime": "fleet"}, ARM, ""),
    ],
)
def test_chart_values_that_do_not_fit_the_stack_raise(
    values: dict[str, Any], keys: dict[str, Any], key: str
) -> None:
    problems = [str(problem) for problem in chart_values.value_problems(aws_settings(**keys), values)]
    named = [problem.partition(" is ")[0].removeprefix("paddle-training:") for problem in problems]
    assert named == ([key] if key else [])


def test_settings_are_described_and_pulumi_yaml_matches() -> None:
    rows = list(settings.describe_settings())
    assert len(rows) > 15
    assert all(description for _, description, *_ in rows)
    assert (ROOT / "Pulumi.yaml").read_text(encoding="utf-8") == settings.pulumi_yaml()


@pytest.mark.parametrize("stack", ["dev", "local"])
def test_settings_of_included_stacks_load(stack: str) -> None:
    file = ROOT / {"dev": "Pulumi.dev.yaml", "local": "local/Pulumi.local.yaml"}[stack]
    written = yaml.safe_load(file.read_text())["config"]
    keys = {
        key.removeprefix("paddle-training:"): value for key, value in written.items() if key != "aws:region"
    }
    assert load_settings(config(region=written.get("aws:region"), **keys)).target in ("aws", "kubeconfig")
    assert "encryptionsalt" not in file.read_text()


def test_modules_without_pulumi_import_no_pulumi() -> None:
    modules = (*("aws_facts", "chart_values", "cluster_access", "naming", "iam_policies", "settings"),)
    program = "; ".join(f"import infra.{name}" for name in modules)
    loaded = f"{program}; import sys; print([name for name in sys.modules if name.startswith('pulumi')])"
    ran = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"


HIDDEN = {
    "values": {"training": {"args": [{"secure": "v1:x"}]}},
    "values.extraEnv": {"extraEnv": [{"name": "A", "value": {"secure": "v1:x"}}]},
    "image": {"secure": "v1:x"},
}


@pytest.mark.parametrize("key", ["values", "image", "valuesFiles"])
def test_pulumi_secret_in_a_setting_is_rejected_without_showing_it(key: str) -> None:
    given = config(**AWS, values={"extraEnv": [{"name": "A", "value": "s3cret"}], "nonsense": 1})
    with pytest.raises(SettingsError) as error:
        load_settings(given, secrets=[f"paddle-training:{key}", "aws:secretKey"])
    (problem,) = error.value.problems
    assert problem.key == f"paddle-training:{key}"
    assert "s3cret" not in str(error.value)
    assert "kubectl create secret" in problem.fix
    assert "valueFrom.secretKeyRef" in problem.fix


def test_secret_of_the_provider_is_no_setting_of_the_program() -> None:
    load_settings(config(**AWS), secrets=["aws:secretKey"])


@pytest.mark.parametrize("value", HIDDEN.values(), ids=HIDDEN)
def test_encrypted_value_in_a_stack_file_is_rejected(tmp_path: Path, value: Any) -> None:
    key = "image" if "secure" in value else "values"
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps({"config": {f"paddle-training:{key}": value}}))
    with pytest.raises(SettingsError, match=rf"paddle-training:{key}"):
        load_settings(read_stack_config(tmp_path, "dev"))
    other = {"config": {"aws:secretKey": {"secure": "v1:x"}, "aws:region": "us-west-2"}}
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps(other))
    with pytest.raises(SettingsError, match="aws:secretKey is"):
        load_settings(read_stack_config(tmp_path, "dev"))


@pytest.mark.parametrize("name", ["assumeRoles", "accessKey", "sharedCredentialsFiles", "profile"])
def test_credentials_in_settings_are_rejected_by_commands_and_program(name: str) -> None:
    fix = rf"aws:{name} .*not `pulumi login`, kubectl.*\n.*config rm aws:{name}.*AWS_PROFILE="
    with pytest.raises(SettingsError, match=fix):
        read_stack("dev", [f"aws:{name}=[x]"])
    with pytest.raises(SettingsError, match=f"aws:{name} "):
        load_settings({**config(**AWS), f"aws:{name}": "work"})


def test_read_stack_leaves_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI gets keys for each run, and has no profile."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-run")
    before = dict(os.environ)
    read_stack("dev")
    assert dict(os.environ) == before


def test_kubeconfig_names_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "read_revisions", lambda *where: [])
    monkeypatch.setenv("AWS_PROFILE", "work")
    providers = [r for r in aws_stack().resources if r.typ == "pulumi:providers:kubernetes"]
    assert providers
    for provider in providers:
        [user] = json.loads(provider.inputs["kubeconfig"])["users"]
        assert "profile" not in str(user)
        assert not user["user"]["exec"].get("env"), "the command inherits the environment of its user"
