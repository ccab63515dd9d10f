"""HTTPS requests of `local` to the API server (with the admin's certificate) and to etcd."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import datetime
from pathlib import Path
from typing import Any

from local.cluster.certificates import PKI
from local.cluster.node_addresses import API_PORT, BRIDGE_ADDRESS, ETCD_PORT


def _send_request(
    pki: Path, name: str, at: tuple[str, int], path: str, method: str = "GET"
) -> tuple[int, bytes]:
    """Send one request and return status and body of the response.

    Args:
        pki: Folder with the certificates.
        name: Name of the client certificate.
        at: Host and port.
        path: Path of the URL.
        method: HTTP method.

    Raises:
        OSError, http.client.HTTPException: No response within 5 s.
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


def is_etcd_ready(pki: Path = PKI) -> bool:
    """Return whether etcd has read its log and answers /health with status 200."""
    try:
        return _send_request(pki, "apiserver", ("127.0.0.1", ETCD_PORT), "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


class ApiClient:
    """Client of the API server. Each request uses a new connection, so restarts of the server do no harm."""

    def __init__(self, pki: Path = PKI) -> None:
        self._pki = pki

    def _request(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        return _send_request(self._pki, "admin", (BRIDGE_ADDRESS, API_PORT), path, method)

    def is_ready(self) -> bool:
        """Return whether the server answers /readyz with status 200."""
        try:
            return self._request("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def list_nodes(self) -> dict[str, dict[str, Any]]:
        """Return all Node objects by name; empty if the server does not answer."""
        try:
            status, body = self._request("/api/v1/nodes")
        except (OSError, http.client.HTTPException):
            return {}
        return {item["metadata"]["name"]: item for item in json.loads(body)["items"]} if status == 200 else {}

    def delete_node(self, name: str) -> None:
        """Delete a Node object whose node no longer exists; Kubernetes then deletes its pods."""
        self._request(f"/api/v1/nodes/{name}", "DELETE")

    def unready_nodes(self, names: list[str], since: float) -> dict[str, str]:
        """Return the reason for each of the nodes that is not Ready.

        Args:
            names: Names of the nodes.
            since: Unix seconds; a node that has not reported after this time counts as not Ready.
        """
        known = self.list_nodes()
        reasons = {name: unready_reason(known.get(name), since) for name in names}
        return {name: reason for name, reason in reasons.items() if reason}


def unready_reason(node: dict[str, Any] | None, since: float) -> str:
    """Return why a node is not Ready; an empty string if it is.

    Args:
        node: its Node object; None if it has not registered.
        since: Unix seconds; a node that has not reported after this time counts as not Ready.
    """
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
