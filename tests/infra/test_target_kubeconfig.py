"""Target kubeconfig: checks of the cluster, the namespace and the release, and manual changes of the release."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from infra import stack_builder, training
from infra.chart_values import CHART, read_stack_inputs
from infra.naming import folder_digest
from infra.settings import SettingsError
from infra.training import DATA_LOSS_NOTE, ENFORCE_LABEL, OWNER_LABEL, wait_seconds
from testkit.http_servers import serving

from .recording_mocks import LOCAL, ROOT, config, local_settings, local_stack


def _kubeconfig(server: str) -> dict[str, Any]:
    context = {"name": "local", "context": {"cluster": "c", "user": "u"}}
    clusters, users = [{"name": "c", "cluster": {"server": server}}], [{"name": "u", "user": {"token": "t"}}]
    return {"clusters": clusters, "users": users, "contexts": [context]}


class _Api(BaseHTTPRequestHandler):
    """A fake API server with one namespace and the Secrets of helm releases."""

    namespace: dict[str, Any] | None = None
    status = 200
    secrets_status = 200
    releases = 0

    def do_GET(self) -> None:
        if "/secrets" in self.path and self.secrets_status != 200:
            self.status = self.secrets_status
        found = self.namespace is not None and self.status == 200
        body: dict[str, Any] = {"kind": "Namespace", "metadata": self.namespace}
        if "/secrets" in self.path:
            revision = gzip.compress(json.dumps({"version": 1, "info": {}}).encode())
            stored = base64.b64encode(base64.b64encode(revision)).decode()
            secret = {"metadata": {"name": "x"}, "data": {"release": stored}}
            body = {"kind": "SecretList", "items": [secret] * self.releases}
        status = 200 if found else (404 if self.status == 200 else self.status)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body if found else {"kind": "Status", "code": status}).encode())


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[type[_Api], str]]:
    """Yield the handler class of a running API server, and the path of its kubeconfig."""
    handler = type("Handler", (_Api,), {})
    with serving(handler) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
        yield handler, str(path)


READ = training.read_revisions
OURS_LABEL = {OWNER_LABEL: "paddle-training-local"}
KEPT = {"release": {"keepManualValues": True}}


def _preflight(path: str, error: str, context: str = "local", **keys: Any) -> None:
    """Check the cluster of a kubeconfig; `error` is a part of the expected message, empty if the checks pass."""
    chosen = local_settings(kubeconfig={"path": path, "context": context}, **keys)
    inputs = read_stack_inputs(chosen, "paddle-training", "local", ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "read_revisions", READ)  # from the fake API server
        with pytest.raises(SettingsError, match=error) if error else contextlib.nullcontext():
            stack_builder.check_cluster(inputs)


@pytest.mark.parametrize(
    ("namespace", "server", "keys", "error"),
    [
        (None, {}, {}, ""),
        ({"labels": OURS_LABEL}, {}, {}, ""),
        ({"labels": None}, {}, {}, "not created by"),
        ({"labels": {OWNER_LABEL: "x"}}, {}, {}, "stack x"),
        (
            {"labels": {ENFORCE_LABEL: "restricted"}},
            {},
            {"values": {"hostPorts": True}, "namespace": {"create": False}},
            "admits host ports",
        ),
        (None, {"status": 401}, {}, "401"),
        # A user who may not read namespaces.
        (None, {"status": 403}, {}, ""),
        ({"labels": OURS_LABEL}, {"releases": 0}, KEPT, "keepManualValues"),
        ({"labels": OURS_LABEL}, {"releases": 1}, KEPT, ""),
        # A user who may read namespaces, but no Secrets.
        ({"labels": OURS_LABEL}, {"secrets_status": 403}, KEPT, ""),
        ({"labels": {OWNER_LABEL: "x"}}, {"secrets_status": 403}, KEPT, "stack x"),
        (None, {}, {"context": "prod"}, "prod"),
    ],
)
def test_preflight_compares_the_cluster_with_the_settings(
    api: tuple[type[_Api], str], namespace: Any, server: Any, keys: Any, error: str
) -> None:
    handler, path = api
    handler.namespace = namespace and {"name": "paddle", **namespace}
    for name, value in server.items():
        setattr(handler, name, value)
    _preflight(path, error, **keys)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "No such file"),
        ("a: [", "flow node"),
        ("a: 1", "contexts"),
        (json.dumps(_kubeconfig("https://127.0.0.1:9")), "refused"),
    ],
)
def test_preflight_with_an_unusable_kubeconfig_or_an_unreachable_cluster_raises(
    tmp_path: Path, content: str | None, error: str
) -> None:
    if content is not None:
        (tmp_path / "kubeconfig").write_text(content)
    _preflight(str(tmp_path / "kubeconfig"), error)


WITHOUT_AWS = """
import sys
from pathlib import Path
from pulumi.runtime.mocks import Mocks, set_mocks
from infra.stack_builder import create_kubeconfig_stack
from infra.settings import load_settings
from infra.chart_values import read_stack_inputs

class Any(Mocks):
    def new_resource(self, args):
        return args.name, args.inputs
    def call(self, args):
        return {}

set_mocks(Any(), project="paddle-training", stack="local")
chosen = load_settings(%r)
outputs = create_kubeconfig_stack(read_stack_inputs(chosen, "paddle-training", "local", Path.cwd()))
assert outputs["release"] is not None
print([name for name in sys.modules if name in ("pulumi_aws", "pulumi_kubernetes.core.v1._inputs", "boto3")])
"""


def test_kubeconfig_target_does_not_import_aws_sdk() -> None:
    script = WITHOUT_AWS % config(region=None, **LOCAL)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "each of these modules takes as long to load as everything else"


def test_wait_seconds_of_disabled_data_do_not_count() -> None:
    without = {"data": {"enabled": False, "deadlineSeconds": 9}, "training": {}}
    assert wait_seconds(without) == wait_seconds({})


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/a/config", "/a/config"),
        ("~/.kube/config", "/home/me/.kube/config"),
        ("config", str(ROOT / "config")),
    ],
)
def test_kubeconfig_is_found_from_the_project_and_home(
    monkeypatch: pytest.MonkeyPatch, written: str, path: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    made = local_stack(kubeconfig={"path": written, "context": "local"})
    assert made.one("pulumi:providers:kubernetes").inputs["kubeconfig"] == path


def test_owner_label_identifies_stack() -> None:
    owner = read_stack_inputs(local_settings(), "paddle-training", "x" * 80, ROOT).owner
    assert owner.startswith("paddle-training-x")
    assert len(owner) <= 63


OURS = f"chart {folder_digest(ROOT / CHART)}. {DATA_LOSS_NOTE}"
BY_HAND = f"{OURS} Reverts manual changes of revision 7: trainers."


def _registered(**keys: Any) -> str:
    """Return the description that the program gives the release."""
    return str(local_stack(**keys).one("Release").inputs["description"])


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that collects the program's warnings."""
    said: list[str] = []
    monkeypatch.setattr(training.pulumi.log, "warn", said.append)
    return said


def _in_the_cluster(monkeypatch: pytest.MonkeyPatch, *descriptions: str, **changes: Any) -> None:
    """Make the release have revisions 7, 6, … with these descriptions; 7 has the stack's values with `changes`."""
    values = local_stack().one("Release").inputs["values"]
    revisions = [
        training.Revision(7 - index, description, {**values, **({} if index else changes)})
        for index, description in enumerate(descriptions)
    ]
    monkeypatch.setattr(training, "read_revisions", lambda *where: revisions)


@pytest.mark.parametrize("earlier", [[OURS], ["Upgrade complete", OURS], []])
def test_manual_revision_is_reported_and_reverted(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], earlier: list[str]
) -> None:
    """Also when helm no longer keeps the revision of the last `up`."""
    _in_the_cluster(monkeypatch, "Upgrade complete", *earlier, trainers=2)
    assert _registered() == BY_HAND
    [said] = warned
    assert "revision 7" in said
    assert "\n  trainers: 2 in the cluster, 3 in the stack" in said


@pytest.mark.parametrize("before", [OURS, BY_HAND])
@pytest.mark.parametrize("case", ["last update's", "same values", "kept"])
def test_description_without_manual_changes_stays(
    monkeypatch: pytest.MonkeyPatch, warned: list[str], before: str, case: str
) -> None:
    # The revision of the last update differs from settings that were changed since then.
    trainers = 3 if case == "same values" else 2
    newest = [] if case == "last update's" else ["by hand"]
    _in_the_cluster(monkeypatch, *newest, before, "by hand", OURS, trainers=trainers)
    assert _registered(**({"release": {"keepManualValues": True}} if case == "kept" else {})) == before
    assert warned == []


def test_description_changes_with_chart_after_manual_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    _in_the_cluster(monkeypatch, BY_HAND.replace("chart ", "chart 0"))
    assert _registered() == OURS


def test_unreadable_release_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    monkeypatch.setattr(training, "read_revisions", READ)
    assert _registered() == OURS
    [said] = warned
    assert "could not be compared with the cluster: " in said
    assert "No such file" in said
    content, kubeconfig = json.dumps(_kubeconfig("http://127.0.0.1:9")), tmp_path / "kubeconfig"
    kubeconfig.write_text(content)
    for given in (str(kubeconfig), content):
        with pytest.raises(training.UnreadableError, match="refused"):
            READ(given, "local", "paddle", "paddle-training")
        with pytest.raises(training.UnreadableError, match="context"):
            READ(given, "other", "paddle", "paddle-training")


@pytest.mark.parametrize(
    ("live", "stack", "lines"),
    [
        ({"a": {"b": 1, "c": []}}, {"a": {"b": 1, "c": None}}, []),
        ({"a": {"b": False}}, {"a": {"b": True}}, ["a.b: false in the cluster, true in the stack"]),
        ({}, {"a": ["x"]}, ['a: not set in the cluster, ["x"] in the stack']),
        ({"a": {"b": "y"}}, {"a": {}}, ['a.b: "y" in the cluster, not set in the stack']),
        (
            {"a": "b"},
            {"a": {"b": 1}},
            ['a: "b" in the cluster, not set in the stack', "a.b: not set in the cluster, 1 in the stack"],
        ),
    ],
)
def test_differences_lists_changed_added_and_removed_keys(live: Any, stack: Any, lines: list[str]) -> None:
    assert list(training.differences(live, stack)) == lines
