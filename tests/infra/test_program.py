"""What target kubeconfig registers, the chart's values, the look at the cluster, kubeconfigs and policies."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import chart_values, kubeconfigs, policies, preflight, settings, stack
from infra.bastion import user_data
from infra.problems import SettingsError
from infra.state import READ_STATE
from infra.training import wait_seconds

from .support import AWS, LOCAL, ROOT, clone, config, local_stack


def _local(**keys: Any) -> settings.Settings:
    return settings.load(config(region=None, **{**LOCAL, **keys}))


# --- what is registered -------------------------------------------------------------------------------------


def test_an_existing_cluster_gets_namespace_and_release_and_nothing_else() -> None:
    made = local_stack()
    kinds = [args.typ for args in made.resources]
    assert kinds == [
        "paddle:infra:Training",
        "pulumi:providers:kubernetes",
        "kubernetes:core/v1:Namespace",
        "kubernetes:helm.sh/v3:Release",
    ]
    assert made.calls == [READ_STATE], "no cloud is asked anything"


WITHOUT_AWS = """
import sys
from pathlib import Path
from pulumi.runtime.mocks import Mocks, set_mocks
from infra import settings, stack

class Any(Mocks):
    def new_resource(self, args):
        return args.name, args.inputs
    def call(self, args):
        return {}

set_mocks(Any(), project="paddle-training", stack="local")
chosen = settings.load(%r)
outputs = stack.on_existing_cluster(stack.plan(chosen, "paddle-training", "local", Path.cwd()))
assert outputs["release"] is not None
print([name for name in sys.modules if name in ("pulumi_aws", "pulumi_kubernetes.core.v1._inputs", "boto3")])
"""


def test_without_aws_its_sdk_is_not_even_loaded() -> None:
    script = WITHOUT_AWS % config(region=None, **LOCAL)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "each of these takes as long to load as all else together"


def test_only_the_named_kubeconfig_and_context_are_used() -> None:
    provider = local_stack().one("pulumi:providers:kubernetes").inputs
    assert provider["kubeconfig"] == "/nowhere/kubeconfig"
    assert provider["context"] == "local"


def test_the_release_has_a_fixed_name_and_a_path_that_every_clone_shares() -> None:
    release = local_stack().one("Release").inputs
    assert release["name"] == "paddle-training"
    assert release["chart"] == "./charts/paddle-training"
    assert release["skipAwait"] is False
    assert release["cleanupOnFail"] is release["atomic"] is True
    assert release["waitForJobs"] is False
    assert release["values"]["image"].startswith("localhost/paddle-training:")
    assert "{" not in release["values"]["image"]


def test_two_clones_of_one_commit_register_the_same(tmp_path: Path) -> None:
    with clone(tmp_path / "a") as one, clone(tmp_path / "b") as other:
        seen = [[(r.name, r.inputs) for r in local_stack(folder).resources] for folder in (one, other)]
    assert seen[0] == seen[1]


def test_an_edit_of_the_chart_shows_in_the_release(tmp_path: Path) -> None:
    with clone(tmp_path) as folder:
        before = local_stack(folder).one("Release").inputs
        template = folder / chart_values.CHART / "templates" / "service.yaml"
        template.write_text(template.read_text() + "# edited\n")
        after = local_stack(folder).one("Release").inputs
    assert {key for key in after if before[key] != after[key]} == {"description"}


def test_an_edit_of_the_launcher_shows_as_another_image(tmp_path: Path) -> None:
    with clone(tmp_path) as folder:
        before = local_stack(folder).one("Release").inputs["values"]["image"]
        (folder / "launcher" / "more.py").write_text("x = 1\n")
        assert local_stack(folder).one("Release").inputs["values"]["image"] != before


def test_the_release_says_what_its_end_loses() -> None:
    assert "newest saved pass" in local_stack().one("Release").inputs["description"]


def test_waiting_covers_both_deadlines() -> None:
    release = local_stack(release={"wait": True}).one("Release").inputs
    assert release["waitForJobs"] is True
    assert release["cleanupOnFail"] is release["atomic"] is False, "Jobs of a training that failed tell why"
    assert release["timeout"] >= 3600 + 86400
    assert wait_seconds({"data": {"enabled": False, "deadlineSeconds": 9}, "training": {}}) == wait_seconds(
        {}
    )


def test_values_set_by_hand_are_kept_when_asked_for() -> None:
    release = local_stack(release={"keepManualValues": True}).one("Release").inputs
    assert release["values"] == {}
    assert release["reuseValues"] is True


@pytest.mark.parametrize(("host_ports", "level"), [(False, "restricted"), (True, "privileged")])
def test_the_namespaces_pod_security_fits_the_pods(host_ports: bool, level: str) -> None:
    namespace = local_stack(values={"hostPorts": host_ports}).one("Namespace").inputs["metadata"]
    assert namespace["labels"][preflight.ENFORCE_LABEL] == level
    assert namespace["labels"][preflight.OWNER_LABEL] == "paddle-training-dev"


def test_a_namespace_of_others_is_used_without_being_owned() -> None:
    made = local_stack(namespace={"name": "theirs", "create": False})
    assert not made.of("Namespace")
    assert made.one("Release").inputs["namespace"] == "theirs"


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage", "wanted"),
    [
        ({"type": "hostPath", "path": "/s"}, {"type": "hostPath", "hostPath": {"path": "/s"}}),
        ({"type": "nfs", "server": "n"}, {"type": "nfs", "nfs": {"server": "n", "path": "/"}}),
        ({"type": "existingClaim", "claim": "c"}, {"type": "existingClaim", "existingClaim": {"name": "c"}}),
    ],
)
def test_storage_settings_become_the_charts_values(storage: Any, wanted: Any) -> None:
    built = chart_values.build(_local(storage=storage), chart_values.Facts("i"), {})
    assert built == {"image": "i", "storage": wanted}


def test_the_stacks_own_file_system_fills_in_nfs() -> None:
    chosen = settings.load(config(**{**AWS, "storage": {"type": "nfs"}}))
    built = chart_values.build(chosen, chart_values.Facts("i", file_system_host="fs.host"), {})
    assert built["storage"]["nfs"]["server"] == "fs.host"


def test_later_files_win_and_the_stacks_own_values_win_over_all(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: {passes: 1, mode: sync}\nlist: [1, 2]\n")
    (tmp_path / "b.yaml").write_text("training: {passes: 2}\nlist: [3]\n")
    chosen = _local(valuesFiles=["a.yaml", "b.yaml"], values={"trainers": 5})
    own = chart_values.own_values(chosen, tmp_path)
    assert own == {"training": {"passes": 2, "mode": "sync"}, "list": [3], "trainers": 5}


def test_a_null_goes_back_to_the_charts_default(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: {passes: 1}\n")
    (tmp_path / "b.yaml").write_text("training: {passes: null}\n")
    assert chart_values.own_values(_local(valuesFiles=["a.yaml", "b.yaml"]), tmp_path) == {"training": {}}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), ("[1]", "list"), ("a: [", "no YAML")]
)
def test_a_values_file_that_cannot_be_used_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        chart_values.own_values(_local(valuesFiles=["a.yaml"]), tmp_path)
    assert caught.value.problems[0].key == "paddle-training:valuesFiles"


def test_the_bucket_takes_the_place_of_its_placeholder_in_every_text() -> None:
    chosen = settings.load(config(**AWS))
    own = {"data": {"source": "s3://{bucket}/a"}, "training": {"extraArgs": ["--x={bucket}"]}, "trainers": 3}
    built = chart_values.build(chosen, chart_values.Facts("i", bucket="b"), own)
    assert built["data"]["source"] == "s3://b/a"
    assert built["training"]["extraArgs"] == ["--x=b"]
    assert built["trainers"] == 3


def test_every_value_that_the_program_sets_is_one_that_the_chart_has() -> None:
    chart = yaml.safe_load((ROOT / chart_values.CHART / "values.yaml").read_text())

    def unknown(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
        return [
            key
            for key, value in ours.items()
            if key not in theirs or (isinstance(value, dict) and theirs[key] and unknown(value, theirs[key]))
        ]

    facts = chart_values.Facts("i", "fs-1", "fsap-1", "host", "b")
    for storage in ({"type": "efs-csi"}, {"type": "nfs"}, {"type": "hostPath", "path": "/s"}):
        chosen = settings.load(config(**{**AWS, "storage": storage}))
        assert unknown(chart_values.build(chosen, facts, {}), chart) == []


# --- the look at the cluster --------------------------------------------------------------------------------


def _kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "local", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return path


class _Api(http.server.BaseHTTPRequestHandler):
    """An API server that knows namespaces and the secrets of releases."""

    namespace: dict[str, Any] | None = None
    status = 200
    releases = 0

    def do_GET(self) -> None:
        found = self.namespace is not None and self.status == 200
        body: dict[str, Any] = {"kind": "Namespace", "metadata": self.namespace}
        if "/secrets" in self.path:
            body = {"kind": "SecretList", "items": [{"metadata": {"name": "x"}}] * self.releases}
        status = 200 if found else (404 if self.status == 200 else self.status)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body if found else {"kind": "Status", "code": status}).encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[type[_Api], str]]:
    """A running API server and the path of its kubeconfig."""
    handler = type("Handler", (_Api,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, str(_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    thread.join()
    server.server_close()


def _look(path: str, privileged: bool = False, **keys: Any) -> None:
    chosen = _local(kubeconfig={"path": path, "context": keys.pop("context", "local")}, **keys)
    preflight.check_cluster(chosen, ROOT, "paddle-training-local", privileged)


def test_a_cluster_without_the_namespace_is_fine(api: tuple[type[_Api], str]) -> None:
    _look(api[1])


def test_the_stacks_own_namespace_is_fine(api: tuple[type[_Api], str]) -> None:
    api[0].namespace = {"name": "paddle", "labels": {preflight.OWNER_LABEL: "paddle-training-local"}}
    _look(api[1])


@pytest.mark.parametrize(
    ("labels", "word"), [(None, "not made by"), ({preflight.OWNER_LABEL: "x"}, "stack x")]
)
def test_a_namespace_of_somebody_else_is_refused(api: tuple[type[_Api], str], labels: Any, word: str) -> None:
    api[0].namespace = {"name": "paddle", "labels": labels}
    with pytest.raises(SettingsError, match=word):
        _look(api[1])


def test_a_namespace_that_should_be_there_and_is_not_is_refused(api: tuple[type[_Api], str]) -> None:
    with pytest.raises(SettingsError, match="no such namespace"):
        _look(api[1], namespace={"create": False})


def test_a_namespace_whose_pod_security_refuses_host_ports_is_refused(api: tuple[type[_Api], str]) -> None:
    api[0].namespace = {"name": "paddle", "labels": {preflight.ENFORCE_LABEL: "restricted"}}
    with pytest.raises(SettingsError, match="admits host ports"):
        _look(api[1], privileged=True, namespace={"create": False})


def test_credentials_that_the_cluster_refuses_are_named(api: tuple[type[_Api], str]) -> None:
    api[0].status = 401
    with pytest.raises(SettingsError, match="refuses these credentials"):
        _look(api[1])


def test_somebody_who_may_not_read_namespaces_may_still_release(api: tuple[type[_Api], str]) -> None:
    api[0].status = 403
    _look(api[1])


@pytest.mark.parametrize("releases", [0, 1])
def test_values_can_be_kept_only_of_a_release_that_is_there(
    api: tuple[type[_Api], str], releases: int
) -> None:
    api[0].namespace = {"name": "paddle", "labels": {preflight.OWNER_LABEL: "paddle-training-local"}}
    api[0].releases = releases
    if releases:
        _look(api[1], release={"keepManualValues": True})
        return
    with pytest.raises(SettingsError, match="keepManualValues"):
        _look(api[1], release={"keepManualValues": True})


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path, "https://127.0.0.1:9")
    with pytest.raises(SettingsError, match=r"127\.0\.0\.1:9.*refused"):
        _look(str(path))


def test_a_missing_kubeconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        _look(str(tmp_path / "none"))


@pytest.mark.parametrize(("content", "word"), [("a: [", "no YAML"), ("a: 1", "no contexts")])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(SettingsError, match=word):
        _look(str(tmp_path / "kubeconfig"))


def test_another_context_than_the_files_is_refused_with_the_ones_it_has(api: tuple[type[_Api], str]) -> None:
    with pytest.raises(SettingsError, match="one of local"):
        _look(api[1], context="prod")


# --- documents ----------------------------------------------------------------------------------------------


def test_a_kubeconfig_holds_no_secret_and_asks_for_a_token_at_each_use() -> None:
    text = kubeconfigs.kubeconfig("https://ABC.eks", "Q0E=", "dev", "us-west-2")
    user = json.loads(text)["users"][0]["user"]
    assert set(user) == {"exec"}
    assert user["exec"]["command"] == "aws"
    assert "tls-server-name" not in text


def test_the_key_admits_disks_without_naming_a_role_that_may_not_exist() -> None:
    document = json.loads(policies.key_policy("aws", "123456789012", "us-west-2"))
    disks = next(s for s in document["Statement"] if s["Sid"] == "DisksOfNodes")
    assert disks["Condition"]["StringEquals"]["kms:CallerAccount"] == "123456789012"
    assert not [action for action in disks["Action"] if "*" in action]
    assert "aws-service-role" not in json.dumps(document)


def test_only_pods_get_tagged_sessions() -> None:
    assert "sts:TagSession" in policies.trust("pods.eks.amazonaws.com")
    assert "sts:TagSession" not in policies.trust("ec2.amazonaws.com")


def test_the_bastion_mounts_again_after_a_restart() -> None:
    script = user_data("fs-1.efs.us-west-2.amazonaws.com")
    assert "/etc/fstab" in script
    assert "noresvport" in script


def test_a_plan_names_the_stack_in_what_it_owns() -> None:
    assert stack.owner("paddle-training", "x" * 80).startswith("paddle-training-x")
    assert len(stack.owner("paddle-training", "x" * 80)) <= 63
