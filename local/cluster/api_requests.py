"""HTTPS requests of `local` to the API server (with the admin's certificate) and to etcd."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import datetime
from typing import Any

from local.cluster.certificates import PKI
from local.cluster.node_addresses import API_PORT, BRIDGE_ADDRESS, ETCD_PORT


def _send_request(client: str, at: tuple[str, int], path: str, method: str = "GET") -> tuple[int, bytes]:
    """Send one request on a new connection, so that restarts of a server do no harm.

    `client` is the name of the client certificate, `at` host and port. Returns status and body; status 0 if there is
    no response within 5 s.
    """
    context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    context.load_cert_chain(PKI / f"{client}.crt", PKI / f"{client}.key")
    connection = http.client.HTTPSConnection(*at, timeout=5, context=context)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _ask_api_server(path: str, method: str = "GET") -> tuple[int, bytes]:
    return _send_request("admin", (BRIDGE_ADDRESS, API_PORT), path, method)


def is_etcd_ready() -> bool:
    """Return whether etcd has read its log and answers /health with status 200."""
    return _send_request("apiserver", ("127.0.0.1", ETCD_PORT), "/health")[0] == 200


def is_api_server_ready() -> bool:
    """Return whether the API server answers /readyz with status 200."""
    return _ask_api_server("/readyz")[0] == 200


def list_nodes() -> dict[str, dict[str, Any]]:
    """Return all Node objects by name; empty if the API server does not answer."""
    status, body = _ask_api_server("/api/v1/nodes")
    return {item["metadata"]["name"]: item for item in json.loads(body)["items"]} if status == 200 else {}


def delete_node(name: str) -> None:
    """Delete a Node object whose node no longer exists; Kubernetes then deletes its pods."""
    _ask_api_server(f"/api/v1/nodes/{name}", "DELETE")


def unready_nodes(names: list[str], since: float) -> dict[str, str]:
    """Return the reason for each of these nodes that is not Ready; see `unready_reason` for `since`."""
    known = list_nodes()
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
