"""The namespace and the Helm release of the training, the same for both targets.

The program compares the release's values in the cluster with the values of the stack, because pulumi-kubernetes does
not find all manual changes. Its refresh merges the values in the cluster into the values of the state, so a key that
was removed manually remains. Its diff covers only keys that the program sets.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pulumi
import pulumi_kubernetes as k8s
import yaml

from infra import naming
from infra.chart_values import CHART, StackInputs, with_defaults

# How long helm waits without release.wait, for objects that are ready at once; helm's own default.
READY_SECONDS = 300
# In addition to the deadlines of the Jobs: time to pull the image and to start pods.
START_SECONDS = 900

DATA_LOSS_NOTE = (
    "Destroying or replacing this release stops a running training: progress since its newest checkpoint is "
    "lost; data, checkpoints and models on the shared storage are kept."
)


class Namespace(pulumi.CustomResource):
    """A resource of type kubernetes:core/v1:Namespace.

    This class replaces the class of pulumi_kubernetes, whose import loads all of core/v1 and takes nearly a second.
    """

    def __init__(self, name: str, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        inputs = {"apiVersion": "v1", "kind": "Namespace", "metadata": dict(metadata)}
        super().__init__("kubernetes:core/v1:Namespace", name, inputs, opts)


def wait_seconds(values: Mapping[str, Any]) -> int:
    """Return how many seconds `up` waits with release.wait: deadlines of data and training Job, plus start-up time.

    If `data.deadlineSeconds` is not set, `data.waitSeconds` is used instead. If `training.deadlineSeconds` is not set,
    nothing is added for the training. `values` are the chart values with all defaults.
    """
    data, training = values.get("data") or {}, values.get("training") or {}
    prepare = (
        int(data.get("deadlineSeconds") or data.get("waitSeconds") or 0) if data.get("enabled", True) else 0
    )
    return prepare + int(training.get("deadlineSeconds") or 0) + START_SECONDS


# One attempt; 5 s to connect and 5 s for the response, so that a preview fails quickly.
TIMEOUT = (5, 5)
OWNER_LABEL = "paddle-training/stack"
ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
MAX_SHOWN = 60  # characters of a value in a message


class UnreadableError(Exception):
    """The cluster cannot be read. The text is the reason.

    `status` is the HTTP status of the API server's response, or 0 without a response.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


Read = TypeVar("Read")


def read_cluster(kubeconfig: str, context: str, read: Callable[[Any], Read]) -> Read:
    """Call `read` with the `CoreV1Api` of a cluster, and return what `read` returns.

    `kubeconfig` is a path, or the content as JSON. `context` is the context of the kubeconfig that selects the cluster.

    Raises:
        UnreadableError: the kubeconfig is invalid, or the API server does not answer within seconds or rejects the
            request.
    """
    # Importing the client takes over a second.
    from kubernetes import client, config  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        text = kubeconfig if kubeconfig.startswith("{") else Path(kubeconfig).read_text(encoding="utf-8")
        holder = client.Configuration()
        config.load_kube_config_from_dict(yaml.safe_load(text), context=context, client_configuration=holder)
        holder.retries = False
        with client.ApiClient(holder) as api:
            return read(client.CoreV1Api(api))
    except client.ApiException as error:
        raise UnreadableError(f"{error.status} {error.reason}", error.status or 0) from error
    except (
        config.ConfigException,
        HTTPError,
        OSError,
        TypeError,
        ValueError,
        KeyError,
        yaml.YAMLError,
    ) as error:
        raise UnreadableError(" ".join(str(getattr(error, "reason", error)).split())) from error


@dataclass(frozen=True)
class Revision:
    """A revision of a Helm release: its number, description and user-supplied values."""

    number: int
    description: str
    values: Mapping[str, Any]


def read_revisions(kubeconfig: str, context: str, namespace: str, release: str) -> list[Revision]:
    """Return the revisions of a release, the newest first. Helm keeps them in Secrets, by default the last ten.

    Raises:
        UnreadableError: `read_cluster` cannot read the Secrets.
    """

    def read(api: Any) -> list[Revision]:
        selector = f"owner=helm,name={release}"
        found = api.list_namespaced_secret(namespace, label_selector=selector, _request_timeout=TIMEOUT)
        stored = [base64.b64decode(base64.b64decode(item.data["release"])) for item in found.items]
        records = [json.loads(gzip.decompress(each)) for each in stored]
        return [
            Revision(record["version"], record["info"].get("description", ""), record.get("config") or {})
            for record in records
        ]

    found = read_cluster(kubeconfig, context, read)
    return sorted(found, key=lambda revision: revision.number, reverse=True)


def _leaves(values: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path (`training.passes`) and the value of each value in nested mappings. Skip nulls and empty lists.

    `parent` is the path of `values` with a dot at the end, or empty.
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{parent}{key}.")
        elif value not in (None, []):
            yield f"{parent}{key}", value


def differences(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key whose value differs: its path, the cluster's value and the stack's value.

    Null, empty lists and empty mappings count as "not set". Both arguments must have the chart's defaults filled in.
    """
    one, other = dict(_leaves(live)), dict(_leaves(wanted))
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            texts = [json.dumps(values[key]) if key in values else "not set" for values in (one, other)]
            shown = [text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…" for text in texts]
            yield f"{key}: {shown[0]} in the cluster, {shown[1]} in the stack"


def _description(inputs: StackInputs, context: str, kubeconfig: str, values: Mapping[str, Any]) -> str:
    """Return the description of the release. `up` upgrades a release whose description has changed.

    The provider's own diff is not enough, because it contains neither changes of the chart nor all manual changes of
    values (see `differences`). So the description contains the chart's digest. If values in the cluster were changed
    manually, the description also lists their keys, so that `up` reverts the changes. With `release.keepManualValues`,
    it does not list keys.

    If there is nothing to upgrade, the function returns the description that the last `up` wrote. It finds this
    description in the newest revision that contains DATA_LOSS_NOTE, because other tools do not write this text.
    """
    chart = f"chart {naming.folder_digest(inputs.folder / CHART)}. {DATA_LOSS_NOTE}"
    release, namespace = inputs.settings.release, inputs.settings.namespace.name
    where = f"release {release.name} in namespace {namespace}"
    try:
        revisions = read_revisions(kubeconfig, context, namespace, release.name)
    except UnreadableError as error:
        pulumi.log.warn(
            f"{where} could not be compared with the cluster: {error}. This run does not show manual changes of its "
            "values. Fix: check that the API server can be reached and lets you list the Secrets of the "
            "namespace, then run pulumi again"
        )
        return chart
    live = next(iter(revisions), None)
    before = next((each.description for each in revisions if DATA_LOSS_NOTE in each.description), "")
    same = before if before.startswith(chart) else chart
    if release.keep_manual_values or live is None or live.description == before:
        return same
    found = list(differences(*(with_defaults(each, inputs.folder) for each in (live.values, values))))
    if not found:
        return same
    listed = "".join(f"\n  {line}" for line in found)
    pulumi.log.warn(
        f"{where}: revision {live.number} was not installed by this stack (its description is: "
        f"{live.description}). `pulumi up` reverts the values below. Fix: to keep one of them, write "
        f"it to the setting `values` of the stack:{listed}"
    )
    keys = ", ".join(line.partition(": ")[0] for line in found)
    return f"{chart} Reverts manual changes of revision {live.number}: {keys}."


class Training(pulumi.ComponentResource):
    """paddle:infra:Training: the Kubernetes provider, the namespace and the release.

    Args:
        values: chart values. With `release.keepManualValues` they are ignored, and the release keeps the values that it
            has in the cluster.
        kubeconfig: path or content of the kubeconfig.
        context: context of the kubeconfig; the provider contacts no other cluster.
        cluster_id: a text that is different for each cluster that was ever created. When it changes, Pulumi replaces
            the provider and all resources in the cluster. If it is None, Pulumi does so when the cluster in the
            kubeconfig changes.
        after: resources that must exist before the provider.
    """

    def __init__(
        self,
        inputs: StackInputs,
        *,
        values: pulumi.Input[Mapping[str, Any]],
        kubeconfig: pulumi.Input[str],
        context: str,
        cluster_id: pulumi.Input[str] | None = None,
        after: Sequence[pulumi.Resource] = (),
    ) -> None:
        name = inputs.prefix
        super().__init__("paddle:infra:Training", name)
        release, namespace = inputs.settings.release, inputs.settings.namespace
        self.provider = k8s.Provider(
            name,
            kubeconfig=kubeconfig,
            context=context,
            cluster_identifier=cluster_id,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(after)),
        )
        before = list(after)
        if namespace.create:
            level = "privileged" if inputs.uses_host_ports else "restricted"
            labels = {
                "app.kubernetes.io/managed-by": "pulumi",
                OWNER_LABEL: inputs.owner,
                ENFORCE_LABEL: level,
            }
            inside = pulumi.ResourceOptions(parent=self, provider=self.provider)
            metadata = {"name": namespace.name, "labels": labels}
            before.append(Namespace(f"{name}-namespace", metadata, inside))
        manual, waits = release.keep_manual_values, release.wait
        self.release = k8s.helm.v3.Release(
            f"{name}-release",
            name=release.name,
            chart=f"./{CHART}",
            namespace=namespace.name,
            description=pulumi.Output.all(kubeconfig, values).apply(
                lambda both: _description(inputs, context, *both)
            ),
            values={} if manual else values,
            reuse_values=True if manual else None,
            # Without these, a failed upgrade would leave its objects behind and become the last revision.
            # A refresh reads its values, so the next `up` would do nothing. A rollback restores the old values.
            # With wait, mostly the training itself failed; its Jobs are kept for inspection.
            cleanup_on_fail=not waits,
            atomic=not waits,
            skip_await=False,
            wait_for_jobs=waits,
            timeout=wait_seconds(inputs.effective_values) if waits else READY_SECONDS,
            opts=pulumi.ResourceOptions(parent=self, provider=self.provider, depends_on=before),
        )
        self.register_outputs({"release": self.release.name})
