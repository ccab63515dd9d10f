"""`run`: train a program on the cluster. `base`: print the values that describe the cluster, not one training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from launcher.cli.cluster_api import CHART
from launcher.cli.job_sessions import ClusterSession
from launcher.cli.launch_training import (
    LaunchOptions,
    complete_values,
    describe_next_steps,
    launch,
    plan_trainings,
)
from launcher.cli.releases import Helm
from launcher.cli.run_display import describe_following, explain_interrupt, follow_run
from launcher.cli.shared_options import (
    FollowTimeout,
    Format,
    Release,
    with_options,
    with_release,
)
from launcher.cli.terminal import console, curve_table, print_blocks, print_json, print_line, report


@with_options(options=LaunchOptions)
def run(
    options: LaunchOptions,
    *,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for this training's values; default: JOB.values.yaml."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop the training that the release runs now.")
    ] = False,
    timeout: FollowTimeout = 24 * 3600.0,
    output: Format = "text",
    release: Release = CHART,
) -> None:
    """Upload a program and data, train with them, follow the training until it is over, and print its score.

    After a change to the program, or to continue a stopped or failed training, run the same command again.
    """
    (plan,) = plan_trainings(options)
    session = ClusterSession(options.connect(), release)
    keep = keep or Path(f"{plan.job}.values.yaml")
    changed = launch(plan, options, Helm(session.cluster), session, keep, replace=replace)
    if not changed:
        report("program, data and values have not changed: nothing new to train")
    with explain_interrupt(lambda: describe_following(session.options())):
        view = follow_run(session, timeout, to_stderr=output == "json")
    if output == "json":
        print_json({**view.as_json(), "values": str(keep), "changed": changed})
        return
    out = console()
    if not out.is_terminal and view.passes:  # the screen on a terminal shows them
        out.print(curve_table({"": view.passes}))
    print_line(describe_next_steps(session, keep, complete_values(plan.values)["runtime"] == "fleet"))


@with_release
def base(session: ClusterSession) -> None:
    """Print the values that describe the cluster, not one training: image, storage, scheduling, network.

    Redirect them to base.yaml: `helm upgrade --reset-values -f base.yaml -f TRAINING.yaml` then applies one
    training, without values of the previous one.
    """
    values = yaml.safe_dump(
        session.read_base_values(Helm(session.cluster)), sort_keys=False, allow_unicode=True
    )
    print_blocks([values.encode()])
