"""The namespace and the Helm release of the training, the same for both targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra import chart_values, naming, release_drift
from infra.chart_values import CHART
from infra.cluster_preflight import ENFORCE_LABEL, OWNER_LABEL
from infra.stack_inputs import StackInputs

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

    Replaces the class of pulumi_kubernetes, which imports all of core/v1 and takes most of a second.
    """

    def __init__(self, name: str, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        inputs = {"apiVersion": "v1", "kind": "Namespace", "metadata": dict(metadata)}
        super().__init__("kubernetes:core/v1:Namespace", name, inputs, opts)


def wait_seconds(values: Mapping[str, Any]) -> int:
    """Return how many seconds `up` waits with release.wait: deadlines of data and training Job, plus start-up time."""
    data, training = values.get("data") or {}, values.get("training") or {}
    prepare = (
        int(data.get("deadlineSeconds") or data.get("waitSeconds") or 0) if data.get("enabled", True) else 0
    )
    return prepare + int(training.get("deadlineSeconds") or 0) + START_SECONDS


def _description(inputs: StackInputs, context: str, kubeconfig: str, values: Mapping[str, Any]) -> str:
    """Return the release's description: that of the last `up`, or a different text if `up` has to upgrade the release.

    The provider's diff contains neither changes of the chart nor all manual changes of values (see
    release_drift.py). So the description contains the chart's digest and the keys that were changed manually:
    a new description makes `up` upgrade the release, and an unchanged one does not. The description of the last `up`
    is that of the newest revision with DATA_LOSS_NOTE, because other tools do not write this text.
    """
    chart = f"chart {naming.folder_digest(inputs.folder / CHART)}. {DATA_LOSS_NOTE}"
    release, namespace = inputs.settings.release, inputs.settings.namespace.name
    where = f"release {release.name} in namespace {namespace}"
    try:
        revisions = release_drift.read_revisions(kubeconfig, context, namespace, release.name)
    except release_drift.UnreadableError as error:
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
    defaults = chart_values.read_yaml(inputs.folder / CHART / "values.yaml", CHART)
    wanted = chart_values.merge_values(defaults, values)
    found = list(release_drift.differences(chart_values.merge_values(defaults, live.values), wanted))
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
        values: chart values; ignored with `release.keepManualValues`, which keeps those of the cluster.
        kubeconfig: path or content of the kubeconfig.
        context: context of the kubeconfig; the provider contacts no other cluster.
        cluster_id: a text that differs for each cluster ever created. Only when it changes, the provider and all
            resources in the cluster are replaced; without it, when the kubeconfig's cluster changes.
    """

    def __init__(
        self,
        name: str,
        inputs: StackInputs,
        *,
        values: pulumi.Input[Mapping[str, Any]],
        kubeconfig: pulumi.Input[str],
        context: str,
        cluster_id: pulumi.Input[str] | None = None,
        after: Sequence[pulumi.Resource] = (),
    ) -> None:
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
