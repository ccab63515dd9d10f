"""Find manual changes of a Helm release: compare its values in the cluster with those of the stack.

The refresh of pulumi-kubernetes does not find all of them: it merges the cluster's values into those of the state,
so a key that was removed manually remains, and its diff covers only keys that the program sets. This module changes
nothing.
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

from infra import cluster_preflight

MAX_SHOWN = 60  # characters of a value in a message


class UnreadableError(Exception):
    """The release in the cluster cannot be read; the text is the reason."""


@dataclass(frozen=True)
class Revision:
    """A revision of a Helm release: its number, description and user-supplied values."""

    number: int
    description: str
    values: Mapping[str, Any]


def read_revisions(kubeconfig: str, context: str, namespace: str, release: str) -> list[Revision]:
    """Return the revisions of a release that helm has kept in its Secrets (by default 10), the newest one first.

    `kubeconfig` is a path, or the content as JSON.

    Raises:
        UnreadableError: the API server does not answer within seconds, or rejects the request.
    """
    from kubernetes import client, config  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        text = kubeconfig if kubeconfig.startswith("{") else Path(kubeconfig).read_text(encoding="utf-8")
        with client.ApiClient(cluster_preflight.configuration(yaml.safe_load(text), context)) as api:
            found = client.CoreV1Api(api).list_namespaced_secret(
                namespace,
                label_selector=f"owner=helm,name={release}",
                _request_timeout=cluster_preflight.TIMEOUT,
            )
        stored = [base64.b64decode(base64.b64decode(item.data["release"])) for item in found.items]
        records = [json.loads(gzip.decompress(each)) for each in stored]
        revisions = [
            Revision(record["version"], record["info"].get("description", ""), record.get("config") or {})
            for record in records
        ]
        return sorted(revisions, key=lambda revision: revision.number, reverse=True)
    except client.ApiException as error:
        raise UnreadableError(f"{error.status} {error.reason}") from error
    except (config.ConfigException, HTTPError, OSError, ValueError, KeyError, yaml.YAMLError) as error:
        raise UnreadableError(" ".join(str(getattr(error, "reason", error)).split())) from error


def differences(live: Mapping[str, Any], wanted: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield a line for each key whose value differs: its path, the cluster's value and the stack's value.

    Null, empty lists and empty mappings count as "not set". Both mappings have the chart's defaults filled in.
    `parent` is their path, ending in a dot, or an empty text.
    """
    for key in sorted({*live, *wanted}):
        one, other = live.get(key), wanted.get(key)
        if all(value is None or isinstance(value, Mapping) for value in (one, other)):
            yield from differences(one or {}, other or {}, f"{parent}{key}.")
        elif one != other and not (one in (None, []) and other in (None, [])):
            yield f"{parent}{key}: {_shown(one)} in the cluster, {_shown(other)} in the stack"


def _shown(value: Any) -> str:
    text = "not set" if value in (None, []) else json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
