"""HTTPS requests to the local cluster's API server and etcd, with the cluster's own certificates."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import ssl
from datetime import datetime
from typing import Any

from local.cluster.daemon_configs import API_PORT, BRIDGE_ADDRESS, ETCD_PORT, PKI


def send_request(
    path: str,
    method: str = "GET",
    body: object = None,
    *,
    at: tuple[str, int] = (BRIDGE_ADDRESS, API_PORT),
    client: str = "admin",
    seconds: float = 5,
) -> tuple[int, str]:
    """Send one request on a new connection, so that a restart of the server does not break later requests.

    Args:
        path: Path and query on the server.
        method: HTTP method.
        body: JSON of the request; with the method PATCH a merge patch.
        at: Host and port; the default is the API server.
        client: Name of the client certificate.
        seconds: Timeout.

    Returns:
        HTTP status and body of the response.

    Raises:
        OSError, http.client.HTTPException: There was no response.
    """
    context = _tls_context(client, (PKI / f"{client}.crt").stat().st_mtime_ns)
    connection = http.client.HTTPSConnection(*at, timeout=seconds, context=context)
    headers = {"Connection": "close", "Content-Type": "application/merge-patch+json"}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode()


@functools.cache
def _tls_context(client: str, _: int) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    context.load_cert_chain(PKI / f"{client}.crt", PKI / f"{client}.key")
    return context


def _is_ok(path: str, **options: Any) -> bool:
    try:
        return send_request(path, **options)[0] == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False


def is_etcd_ready() -> bool:
    """Return whether etcd answers /health. It answers only after it has read its log.

    Only processes inside the cluster's network namespace can reach etcd.
    """
    return _is_ok("/health", at=("127.0.0.1", ETCD_PORT), client="apiserver", seconds=1)


def is_api_server_ready() -> bool:
    """Return whether the API server answers /readyz with status 200."""
    return _is_ok("/readyz", seconds=1)


def list_nodes() -> dict[str, dict[str, Any]]:
    """Return name → Node object of all nodes; empty if the API server does not answer with status 200."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        status, text = send_request("/api/v1/nodes")
        if status == http.HTTPStatus.OK:
            return {item["metadata"]["name"]: item for item in json.loads(text)["items"]}
    return {}


def unready_nodes(names: list[str], since: float) -> dict[str, str]:
    """Return name → reason for each of these nodes that is not Ready. `since` is explained in `unready_reason`."""
    known = list_nodes()
    reasons = {name: unready_reason(known.get(name), since) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def unready_reason(node: dict[str, Any] | None, since: float) -> str:
    """Return why a node is not Ready; an empty string if the node is Ready.

    Args:
        node: the Node object; None if the node has not registered.
        since: Unix seconds. A node whose last report is older counts as not Ready.
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
