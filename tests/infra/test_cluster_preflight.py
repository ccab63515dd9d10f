"""Checks of an existing cluster before any resource is registered."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import stack_builder, training
from infra.chart_values import read_stack_inputs
from infra.settings import SettingsError
from infra.training import ENFORCE_LABEL, OWNER_LABEL

from .recording_mocks import ROOT, local_settings


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
    """A fake API server with one namespace and the Secrets of helm releases."""

    namespace: dict[str, Any] | None = None
    status = 200
    releases = 0

    def do_GET(self) -> None:
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

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[type[_Api], str]]:
    """Yield the handler class of a running API server, and the path of its kubeconfig."""
    handler = type("Handler", (_Api,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler, str(_kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}"))
    server.shutdown()
    thread.join()
    server.server_close()


READ = training.read_revisions


@pytest.fixture(autouse=True)
def _real_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the revisions from the fake API server."""
    monkeypatch.setattr(training, "read_revisions", READ)


def _look(path: str, privileged: bool = False, **keys: Any) -> None:
    chosen = local_settings(
        kubeconfig={"path": path, "context": keys.pop("context", "local")},
        values={"hostPorts": privileged},
        **keys,
    )
    stack_builder.check_cluster(read_stack_inputs(chosen, "paddle-training", "local", ROOT), path)


def test_preflight_without_namespace_passes(api: tuple[type[_Api], str]) -> None:
    _look(api[1])


def test_preflight_own_namespace_passes(api: tuple[type[_Api], str]) -> None:
    api[0].namespace = {"name": "paddle", "labels": {OWNER_LABEL: "paddle-training-local"}}
    _look(api[1])


@pytest.mark.parametrize(("labels", "word"), [(None, "not created by"), ({OWNER_LABEL: "x"}, "stack x")])
def test_preflight_namespace_of_other_owner_raises(
    api: tuple[type[_Api], str], labels: Any, word: str
) -> None:
    api[0].namespace = {"name": "paddle", "labels": labels}
    with pytest.raises(SettingsError, match=word):
        _look(api[1])


def test_preflight_pod_security_rejects_host_ports_raises(api: tuple[type[_Api], str]) -> None:
    api[0].namespace = {"name": "paddle", "labels": {ENFORCE_LABEL: "restricted"}}
    with pytest.raises(SettingsError, match="admits host ports"):
        _look(api[1], privileged=True, namespace={"create": False})


def test_preflight_rejected_credentials_raises(api: tuple[type[_Api], str]) -> None:
    api[0].status = 401
    with pytest.raises(SettingsError, match="401"):
        _look(api[1])


def test_preflight_forbidden_namespace_read_passes(api: tuple[type[_Api], str]) -> None:
    api[0].status = 403
    _look(api[1])


@pytest.mark.parametrize("releases", [0, 1])
def test_preflight_keep_manual_values_requires_release(api: tuple[type[_Api], str], releases: int) -> None:
    api[0].namespace = {"name": "paddle", "labels": {OWNER_LABEL: "paddle-training-local"}}
    api[0].releases = releases
    if releases:
        _look(api[1], release={"keepManualValues": True})
        return
    with pytest.raises(SettingsError, match="keepManualValues"):
        _look(api[1], release={"keepManualValues": True})


def test_preflight_unreachable_cluster_raises(tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path, "https://127.0.0.1:9")
    with pytest.raises(SettingsError, match="refused"):
        _look(str(path))


def test_preflight_missing_kubeconfig_raises(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        _look(str(tmp_path / "none"))


@pytest.mark.parametrize(("content", "word"), [("a: [", "flow node"), ("a: 1", "contexts")])
def test_preflight_invalid_kubeconfig_raises(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(SettingsError, match=word):
        _look(str(tmp_path / "kubeconfig"))


def test_preflight_unknown_context_lists_contexts(api: tuple[type[_Api], str]) -> None:
    with pytest.raises(SettingsError, match="prod"):
        _look(api[1], context="prod")
