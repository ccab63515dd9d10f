"""The few requests that `local` itself makes of the API server, with the admin's certificate."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import datetime
from pathlib import Path
from typing import Any

from local.cluster.certs import PKI
from local.cluster.plan import API_PORT, BRIDGE_ADDRESS


class Api:
    """One short connection a request: a server that restarts in between does no harm."""

    def __init__(self, pki: Path = PKI) -> None:
        self._pki = pki

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        connection = http.client.HTTPSConnection(BRIDGE_ADDRESS, API_PORT, timeout=5, context=context)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ready(self) -> bool:
        """Whether the server answers /readyz with 200."""
        try:
            return self._request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def nodes(self) -> dict[str, dict[str, Any]]:
        """All node objects by name; empty when the server does not answer."""
        try:
            status, body = self._request("GET", "/api/v1/nodes")
        except (OSError, http.client.HTTPException):
            return {}
        return {item["metadata"]["name"]: item for item in json.loads(body)["items"]} if status == 200 else {}

    def delete_node(self, name: str) -> None:
        """Remove a node object that has no node any more; its pods follow."""
        self._request("DELETE", f"/api/v1/nodes/{name}")

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
