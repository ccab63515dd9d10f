"""Read and patch Kubernetes objects over HTTPS in the test's own process.

Tests ask for objects again and again until a state is reached. A `kubectl get` for each question would take 0.1 s of
CPU time, this takes a few milliseconds.
"""

from __future__ import annotations

import http
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from local.cluster.api_requests import send_request

SECONDS = 60.0
"""Timeout of one request."""

GROUPS = {
    "cronjobs": "apis/batch/v1",
    "jobs": "apis/batch/v1",
    "networkpolicies": "apis/networking.k8s.io/v1",
}
"""Plural name of a kind → the API group and version that has it. All other kinds are in `api/v1`."""
WITHOUT_NAMESPACE = ("namespaces", "nodes", "persistentvolumes")


class ObjectApi:
    """Reads and patches objects of the local cluster's API server, as its administrator."""

    def get(self, path: str) -> str:
        """Return the answer to GET `path`. Raises AssertionError if the API server rejects the request."""
        status, text = send_request(path, seconds=SECONDS)
        assert status == http.HTTPStatus.OK, f"GET {path}: {status} {text}"
        return text

    def list(self, kind: str, namespace: str = "", labels: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind, all or those with these labels.

        Args:
            kind: plural name of the kind, such as `pods`.
            namespace: the namespace; empty for a kind without one.
            labels: a label selector, such as `a=b,c=d`.

        Raises:
            AssertionError: the API server rejected the request.
        """
        query = urllib.parse.urlencode({"labelSelector": labels})
        return list(json.loads(self.get(f"{object_path(kind, namespace)}?{query}"))["items"])

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object with this name, or None if it does not exist; arguments and errors as in `list`."""
        path = f"{object_path(kind, namespace)}/{name}"
        status, text = send_request(path, seconds=SECONDS)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        assert status == http.HTTPStatus.OK, f"GET {path}: {status} {text}"
        return dict(json.loads(text))

    def read(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return the object with this name. Raises AssertionError if it does not exist."""
        found = self.find(kind, namespace, name)
        assert found is not None, f"{kind}/{name} in namespace {namespace} does not exist"
        return found

    def patch(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any], part: str = "") -> None:
        """Apply a merge patch to an object, or to a part of it such as `status`.

        Raises:
            AssertionError: the API server rejected the patch.
        """
        path = "/".join(filter(None, (object_path(kind, namespace), name, part)))
        status, text = send_request(path, "PATCH", patch, seconds=SECONDS)
        assert status == http.HTTPStatus.OK, f"PATCH {path}: {status} {text}"


def object_path(kind: str, namespace: str) -> str:
    """Return the path of the objects of a kind on the API server, which starts with `/`."""
    place = "" if kind in WITHOUT_NAMESPACE else f"/namespaces/{namespace}"
    return f"/{GROUPS.get(kind, 'api/v1')}{place}/{kind}"
