"""The namespace and the Helm release of the training, the same for both targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra import chart_values, naming, release_drift, stack_state
from infra.chart_values import CHART
from infra.cluster_preflight import ENFORCE_LABEL

# How long helm waits without release.wait, for objects that are ready at once; helm's own default.
READY_SECONDS = 300
# In addition to the deadlines of the Jobs: time to pull the image and to start pods.
START_SECONDS = 900

DATA_LOSS_NOTE = (
    "Destroying or replacing this release stops a running training: progress since its newest checkpoint is "
    "lost; data, checkpoints and models on the shared storage are kept."
)


@dataclass(frozen=True)
class TrainingArgs:
    """Arguments of `Training`.

    Attributes:
        kubeconfig: path or content of the kubeconfig.
        context: context of the kubeconfig; the provider contacts no other cluster.
        namespace: name of the namespace.
        create_namespace: whether to create the namespace.
        labels: labels of a namespace that is created.
        privileged: whether pods use host ports, which Pod Security `restricted` does not admit.
        release: name of the release.
        values: chart values.
        project_folder: the project folder with the chart.
        wait_seconds: how long `up` waits for the Jobs to complete; None does not wait.
        keep_manual_values: keep the values that the release has in the cluster, and ignore `values`.
        cluster_name: name by which the provider recognizes the cluster when the text of the kubeconfig changes.
        after: resources that must exist before the release.
    """

    kubeconfig: pulumi.Input[str]
    context: str
    namespace: str
    create_namespace: bool
    labels: Mapping[str, str]
    privileged: bool
    release: str
    values: pulumi.Input[Mapping[str, Any]]
    project_folder: Path
    wait_seconds: int | None = None
    keep_manual_values: bool = False
    cluster_name: str | None = None
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)


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


def _description(args: TrainingArgs, before: str, kubeconfig: str, values: Mapping[str, Any]) -> str:
    """Return the release's description: `before`, or a different text if `up` has to upgrade the release.

    The provider's diff contains neither changes of the chart nor all manual changes of values (see
    release_drift.py). So the description contains the chart's digest and the keys that were changed manually:
    a new description makes `up` upgrade the release, and an unchanged one does not.

    Args:
        args: arguments of the release; `args.values` is passed resolved, as `values`.
        before: the description in the stack's state, or an empty text.
        kubeconfig: resolved kubeconfig.
        values: resolved chart values of the stack.
    """
    chart = f"chart {naming.folder_digest(args.project_folder / CHART)}. {DATA_LOSS_NOTE}"
    same = before if before.startswith(chart) else chart
    if args.keep_manual_values or before == "":
        return same
    where = f"release {args.release} in namespace {args.namespace}"
    try:
        live = release_drift.newest_revision(kubeconfig, args.context, args.namespace, args.release)
    except release_drift.UnreadableError as error:
        pulumi.log.warn(f"{where} could not be compared with the cluster: {error}")
        return same
    if live is None or live.description == before:
        return same
    defaults = chart_values.read_yaml(args.project_folder / CHART / "values.yaml", CHART)
    wanted = chart_values.merge_values(defaults, values)
    found = list(release_drift.differences(chart_values.merge_values(defaults, live.values), wanted))
    if not found:
        return same
    listed = "".join(f"\n  {line}" for line in found)
    pulumi.log.warn(
        f"{where}: revision {live.number} was not installed by this stack (its description is: "
        f"{live.description}). `pulumi up` reverts these values:{listed}"
    )
    keys = ", ".join(line.partition(": ")[0] for line in found)
    return f"{chart} Reverts manual changes of revision {live.number}: {keys}."


class Training(pulumi.ComponentResource):
    """paddle:infra:Training: the Kubernetes provider, the namespace and the release."""

    def __init__(self, name: str, args: TrainingArgs) -> None:
        super().__init__("paddle:infra:Training", name)
        self.provider = k8s.Provider(
            name,
            kubeconfig=args.kubeconfig,
            context=args.context,
            cluster_identifier=args.cluster_name,
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.after)),
        )
        inside = pulumi.ResourceOptions(parent=self, provider=self.provider)
        self.namespace: Namespace | None = None
        if args.create_namespace:
            level = "privileged" if args.privileged else "restricted"
            self.namespace = Namespace(
                f"{name}-namespace",
                {"name": args.namespace, "labels": {**args.labels, ENFORCE_LABEL: level}},
                inside,
            )
        manual = args.keep_manual_values
        state = stack_state.read_outputs(pulumi.get_project(), pulumi.get_stack())
        before = state.get(f"kubernetes:helm.sh/v3:Release::{name}-release", {}).get("description", "")
        self.release = k8s.helm.v3.Release(
            f"{name}-release",
            name=args.release,
            chart=f"./{CHART}",
            namespace=args.namespace,
            description=pulumi.Output.all(args.kubeconfig, args.values).apply(
                lambda both: _description(args, before, *both)
            ),
            values={} if manual else args.values,
            reuse_values=True if manual else None,
            # Without these, a failed upgrade would leave its objects behind and become the last revision.
            # A refresh reads its values, so the next `up` would do nothing. A rollback restores the old values.
            # With wait, mostly the training itself failed; its Jobs are kept for inspection.
            cleanup_on_fail=args.wait_seconds is None,
            atomic=args.wait_seconds is None,
            skip_await=False,
            wait_for_jobs=args.wait_seconds is not None,
            timeout=READY_SECONDS if args.wait_seconds is None else args.wait_seconds,
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=self.provider,
                depends_on=[*args.after, *([self.namespace] if self.namespace is not None else [])],
            ),
        )
        self.register_outputs({"release": self.release.name})
