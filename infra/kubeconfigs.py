"""The kubeconfig of an EKS cluster. Pure. It holds no secret: `aws eks get-token` makes one for each use."""

from __future__ import annotations

import json

CONTEXT = "paddle-training"


def host(endpoint: str) -> str:
    """`https://NAME` → `NAME`."""
    return endpoint.removeprefix("https://").rstrip("/")


def kubeconfig(
    endpoint: str, authority: str, cluster: str, region: str, *, external_name: str = "", profile: str = ""
) -> str:
    """A kubeconfig as JSON (which is YAML), the same for every clone and person.

    Args:
        endpoint: the API server's address, https://….
        authority: its certificate authority, base64 as EKS gives it.
        cluster: the cluster's name.
        region: its region.
        external_name: another name of the API server. Its certificate does not carry that name, so the
            kubeconfig asks for the one that it does carry.
        profile: the stack's `aws:profile`, so that tokens are asked for as the provider asks; empty: whatever
            the environment says.
    """
    server: dict[str, str] = {"server": endpoint, "certificate-authority-data": authority}
    if external_name != "":
        server = {**server, "server": f"https://{external_name}", "tls-server-name": host(endpoint)}
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", cluster, "--region", region, "--output", "json"]
        + (["--profile", profile] if profile != "" else []),
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
