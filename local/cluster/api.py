"""The few requests that `local` itself makes of the API server, with the admin's certificate, and of etcd."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import datetime
from pathlib import Path
from typing import Any

from local.cluster.certs import PKI
from local.cluster.plan import API_PORT, BRIDGE_ADDRESS, ETCD_PORT


def _request(pki: Path, name: str, at: tuple[str, int], path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one answer; `name` is whose certificate is shown.

    Raises:
        OSError, http.client.HTTPException: nobody answered within 5 s.
    """
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")
    connection = http.client.HTTPSConnection(*at, timeout=5, context=context)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def etcd_ready(pki: Path = PKI) -> bool:
    """Whether etcd has read its log and answers /health with 200."""
    try:
        return _request(pki, "apiserver", ("127.0.0.1", ETCD_PORT), "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class Api:
    """One short connection a request: a server that restarts in between does no harm."""

    def __init__(self, pki: Path = PKI) -> None:
        self._pki = pki

    def _request(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        return _request(self._pki, "admin", (BRIDGE_ADDRESS, API_PORT), path, method)

    def ready(self) -> bool:
        """Whether the server answers /readyz with 200."""
        try:
            return self._request("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def nodes(self) -> dict[str, dict[str, Any]]:
        """All node objects by name; empty when the server does not answer."""
        try:
            status, body = self._request("/api/v1/nodes")
        except (OSError, http.client.HTTPException):
            return {}
        return {item["metadata"]["name"]: item for item in json.loads(body)["items"]} if status == 200 else {}

    def delete_node(self, name: str) -> None:
        """Remove a node object that has no node any more; its pods follow."""
        self._request(f"/api/v1/nodes/{name}", "DELETE")

    def unready(self, names: list[str], since: float) -> dict[str, str]:
        """Nodes that are not Ready, or have not said so after `since` (unix seconds), each with the
        reason."""
        there = self.nodes()
        reasons = {name: why_unready(there.get(name), since) for name in names}
        return {name: reason for name, reason in reasons.items() if reason}


def why_unready(node: dict[str, Any] | None, since: float) -> str:
    """Why this node object is not Ready; empty when it is."""
    if node is None:
        return "has not registered"
    condition = next((c for c in node["status"].get("conditions", []) if c["type"] == "Ready"), None)
    if condition is None:
        return "has not reported its state"
    if condition["status"] != "True":
        return str(condition.get("message", "not ready"))
    if datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp() < since:
        return "has not reported since this start"
    if any(t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", [])):
        return "still has the taint of a node that is not ready"
    return ""
