"""Build the kubeconfig of an EKS cluster. Imports no pulumi.

It contains no secret and no profile: for each use, `aws eks get-token` requests a token with the credentials of the
user's environment.
"""

from __future__ import annotations

import json

CONTEXT = "paddle-training"


def endpoint_host(endpoint: str) -> str:
    """Return the host name of an API server's address: `https://NAME` → `NAME`."""
    return endpoint.removeprefix("https://").rstrip("/")


def build_kubeconfig(
    endpoint: str, authority: str, cluster: str, region: str, *, external_name: str = ""
) -> str:
    """Return a kubeconfig as JSON (which is valid YAML), the same for every clone and user.

    Args:
        endpoint: the API server's address, https://….
        authority: its certificate authority, base64 as in the answer of EKS.
        external_name: another name of the API server. Its certificate does not contain this name, so the
            kubeconfig verifies the name of the endpoint instead.
    """
    server: dict[str, str] = {"server": endpoint, "certificate-authority-data": authority}
    if external_name != "":
        server = {**server, "server": f"https://{external_name}", "tls-server-name": endpoint_host(endpoint)}
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", cluster, "--region", region, "--output", "json"],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": server}],
        "users": [{"name": CONTEXT, "user": {"exec": login}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    return json.dumps(document, sort_keys=True)
