"""Compares the release in the cluster with what the stack's last update made of it. Changes nothing.

The provider alone cannot: its refresh merges the cluster's values into those of the state, so that a key that
was removed or emptied by hand stays there, and its diff covers only keys that the program sets.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra import preflight

SHOWN = 60  # characters of a value in a message


class UnreadableError(Exception):
    """The cluster's release cannot be read; the message says why."""


@dataclass(frozen=True)
class Revision:
    """A revision of a Helm release: its description, and the values that were given to helm."""

    number: int
    description: str
    values: Mapping[str, Any]


def newest_revision(kubeconfig: str, context: str, namespace: str, release: str) -> Revision | None:
    """Return the release's newest revision as helm stores it, or None when there is no such release.

    Args:
        kubeconfig: path or content (JSON).
        context: its context.
        namespace: the release's namespace.
        release: its name.

    Raises:
        UnreadableError: the API does not answer within seconds, or rejects the request.
    """
    from kubernetes import client, config  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        text = kubeconfig if kubeconfig.startswith("{") else Path(kubeconfig).read_text(encoding="utf-8")
        with client.ApiClient(preflight.configuration(yaml.safe_load(text), context)) as api:
            found = client.CoreV1Api(api).list_namespaced_secret(
                namespace, label_selector=f"owner=helm,name={release}", _request_timeout=preflight.TIMEOUT
            )
        newest = max(found.items, key=lambda item: int(item.metadata.labels["version"]), default=None)
        if newest is None:
            return None
        stored = base64.b64decode(base64.b64decode(newest.data["release"]))
        about = json.loads(gzip.decompress(stored))
        return Revision(about["version"], about["info"].get("description", ""), about.get("config") or {})
    except client.ApiException as error:
        raise UnreadableError(f"{error.status} {error.reason}") from error
    except (config.ConfigException, HTTPError, OSError, ValueError, KeyError, yaml.YAMLError) as error:
        raise UnreadableError(" ".join(str(getattr(error, "reason", error)).split())) from error


def differences(live: Mapping[str, Any], wanted: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield a line for each key whose value differs: its path, the cluster's value and the stack's.

    Args:
        live: the release's values with the chart's defaults filled in.
        wanted: the stack's, likewise. Here as there null and empty lists and mappings mean "not set".
        above: the path of both.
    """
    for key in sorted({*live, *wanted}):
        one, other = live.get(key), wanted.get(key)
        if all(value is None or isinstance(value, Mapping) for value in (one, other)):
            yield from differences(one or {}, other or {}, f"{above}{key}.")
        elif one != other and not (one in (None, []) and other in (None, [])):
            yield f"{above}{key}: {_shown(one)} in the cluster, {_shown(other)} in the stack"


def _shown(value: Any) -> str:
    text = "not set" if value in (None, []) else json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
