"""The namespace and the Helm release, on whichever cluster. The same for every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra import chart_values, drift, naming, state
from infra.chart_values import CHART
from infra.preflight import ENFORCE_LABEL

# What helm waits for without release.wait: objects that are ready at once. Its own default, said aloud.
READY_SECONDS = 300
# Beyond the Jobs' own deadlines: pulling the image and starting pods.
START_SECONDS = 900

LOST = (
    "Destroying or replacing this release stops a running training: what came after its newest saved pass is "
    "lost; data, passes and models on the shared storage stay."
)


@dataclass(frozen=True)
class TrainingArgs:
    """What the release needs.

    Attributes:
        kubeconfig: path or content; with `context`, the only cluster that is ever talked to.
        context: its context.
        namespace: name of the namespace; made here when `create_namespace`.
        labels: labels of the namespace when it is made here.
        privileged: whether pods need host ports, which Pod Security `restricted` refuses.
        release: the release's name.
        values: the chart's values.
        wait_seconds: None, or how long `up` waits for the Jobs to complete.
        keep_manual_values: leave the values of the release as they are in the cluster.
        cluster_name: what makes a cluster another one, when its kubeconfig's text may change.
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
    """kubernetes:core/v1:Namespace.

    The SDK's own class brings all of core/v1 along, which takes the better part of a second to load.
    """

    def __init__(self, name: str, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        inputs = {"apiVersion": "v1", "kind": "Namespace", "metadata": dict(metadata)}
        super().__init__("kubernetes:core/v1:Namespace", name, inputs, opts)


def wait_seconds(values: Mapping[str, Any]) -> int:
    """Both deadlines and the start: how long `up` waits with release.wait. Seconds."""
    data, training = values.get("data") or {}, values.get("training") or {}
    prepare = (
        int(data.get("deadlineSeconds") or data.get("waitSeconds") or 0) if data.get("enabled", True) else 0
    )
    return prepare + int(training.get("deadlineSeconds") or 0) + START_SECONDS


def _description(args: TrainingArgs, before: str, kubeconfig: str, values: Mapping[str, Any]) -> str:
    """Return the release's description: `before`, the state's, or another where there is work for `up`.

    It carries the chart's digest, because the provider's own checksum never reaches the diff, and names what
    was changed by hand, because the provider sees only a part of that (see infra/drift.py). It then stays as
    it is, so that the next `up` has nothing to do. The chart's path is relative, so that every clone sees the
    same input.
    """
    chart = f"chart {naming.folder_digest(args.project_folder / CHART)}. {LOST}"
    same = before if before.startswith(chart) else chart
    if args.keep_manual_values or before == "":
        return same
    where = f"release {args.release} in namespace {args.namespace}"
    try:
        live = drift.newest_revision(kubeconfig, args.context, args.namespace, args.release)
    except drift.UnreadableError as error:
        pulumi.log.warn(f"{where} was not compared with the cluster: {error}")
        return same
    if live is None or live.description == before:
        return same
    defaults = chart_values.read_file(args.project_folder / CHART / "values.yaml", CHART)
    wanted = chart_values.merge(defaults, values)
    found = list(drift.differences(chart_values.merge(defaults, live.values), wanted))
    if not found:
        return same
    listed = "".join(f"\n  {line}" for line in found)
    pulumi.log.warn(
        f"{where}: revision {live.number} is not of this stack's last update, but made by hand (helm: "
        f"{live.description}). `pulumi up` puts back:{listed}"
    )
    keys = ", ".join(line.partition(": ")[0] for line in found)
    return f"{chart} Puts back what revision {live.number} changed by hand: {keys}."


class Training(pulumi.ComponentResource):
    """paddle:infra:Training: provider, namespace, release."""

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
        known = state.outputs(pulumi.get_project(), pulumi.get_stack())
        before = known.get(f"kubernetes:helm.sh/v3:Release::{name}-release", {}).get("description", "")
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
            # Helm would forget what a failed upgrade has made. And that would be the last revision, whose
            # values a refresh reads, so that the next up had nothing to do: a rollback has the old ones, even
            # where it fails.
            # But with wait it is mostly the training that failed, and its Jobs tell why.
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
