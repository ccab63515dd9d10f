"""The options of `run` and `sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.cluster.cluster_api import CHART, NAMESPACE, Cluster, connect
from launcher.cli.cluster.helm import Helm, find_chart
from launcher.cli.shared_options import Context, Kubeconfig, Namespace


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `run`, or of `sweep` for one of its trainings; fields of type `Annotated` are options of both."""

    program: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM", help="A program's folder, or the name of an example: quick_start, ctr, …"
        ),
    ]
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="The training data: a file of this machine (it is uploaded), s3://…, https://…, or "
            "file://NAME for a file on the storage; default: data.source of the values.",
        ),
    ] = None
    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values", "-f", metavar="VALUES.yaml", help="A file with chart values; later ones override."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A value of the chart (training.batchSize=128), or an option of the program (width=4).",
        ),
    ] = None
    trainers: Annotated[int | None, typer.Option(min=1, help="Number of training pods.")] = None
    passes: Annotated[int | None, typer.Option(min=1, help="Passes over the data.")] = None
    base_release: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The release whose image and storage a new release uses."),
    ] = None
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", "-y", help="Replace a data file with the same name on the storage without asking."
        ),
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check", help="First parse the first rows and train on some of them on this machine."
        ),
    ] = True
    chart: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|oci://…", help="A chart to use instead of the one that comes with the launcher."
        ),
    ] = None
    namespace: Namespace = NAMESPACE
    kubeconfig: Kubeconfig = None
    context: Context = None
    release: str = CHART
    keep: Path | None = None
    """The file for the training's values; None: `JOB.values.yaml`."""
    by: str | None = None
    """A score that the program must have."""
    replace: bool = False
    """Stop the training that the release runs now."""

    def helm(self) -> Helm:
        """Return helm for the chart, namespace and cluster of the options. Raises UsageError without a chart."""
        return Helm(find_chart(self.chart), self.namespace, self.kubeconfig, self.context)

    def connect(self) -> Cluster:
        """Return a client for the cluster of the options. Raises UsageError for an unusable kubeconfig."""
        return connect(self.kubeconfig, self.context, self.namespace)
