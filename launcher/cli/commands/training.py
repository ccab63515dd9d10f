"""`run`, `sweep`: train a program on the cluster, once or with several settings."""

# ruff: noqa: PLR0917 - a command's options are its parameters
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import launching, live, recipe, render, sweeping
from launcher.cli.cluster import CHART, NAMESPACE, connect
from launcher.cli.helm import Helm, find_chart
from launcher.cli.options import Context, Format, Kubeconfig, Namespace, Output, Release, say
from launcher.cli.problems import CliError
from launcher.cli.session import options_of
from launcher.cli.words import command

app = typer.Typer()

Program = Annotated[
    Path, typer.Argument(metavar="PROGRAM", help="A program's folder, or one of ours: quick_start, ctr, …")
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|URL",
        help="What to train on: a file here (it is pushed), s3://…, https://…, or file://NAME (there).",
    ),
]
ValuesFiles = Annotated[
    list[Path] | None,
    typer.Option("--values", "-f", metavar="VALUES.yaml", help="Values of the training; later ones win."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A value of the chart (training.batchSize=128), or an option of the program (width=4).",
    ),
]
Trainers = Annotated[int | None, typer.Option(min=1, help="Training pods.")]
Passes = Annotated[int | None, typer.Option(min=1, help="Passes over the data.")]
Chart = Annotated[
    str | None, typer.Option(metavar="PATH|oci://…", help="Another chart than the one that came along.")
]
BaseRelease = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose image and storage a new release takes over."),
]
Check = Annotated[
    bool, typer.Option("--check/--no-check", help="Parse and train on the first rows here, first.")
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Replace a data file of that name on the storage without asking.")
]
Timeout = Annotated[float, typer.Option(min=0, help="Stop looking after so many seconds (exit code 2).")]


@app.command()
def run(
    program: Program,
    data: Data = None,
    values: ValuesFiles = None,
    settings: Settings = None,
    trainers: Trainers = None,
    passes: Passes = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where this training's values go; default: JOB.values.yaml."),
    ] = None,
    base_release: BaseRelease = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop the training that the release runs now.")
    ] = False,
    yes: Yes = False,
    check: Check = True,
    chart: Chart = None,
    timeout: Timeout = 24 * 3600.0,
    output: Format = Output.text,
    release: Release = CHART,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Push a program and data, train with them, and follow it to its score; after an edit, the same again."""
    helm = Helm(find_chart(chart), namespace, kubeconfig, context)
    asked = launching.Request(
        program=program,
        data=data,
        values=values or [],
        settings=settings or [],
        trainers=trainers,
        passes=passes,
        check=check,
        yes=yes,
        release=release,
        base_release=base_release,
        keep=keep,
        replace=replace,
    )
    (made,) = launching.prepare(asked, helm, say)
    done = launching.launch(made, asked, helm, connect(kubeconfig, context, namespace), say)
    if not done.changed:
        say("program, data and values are as they were: nothing new to train")
    with launching.interrupted(done.session, say):
        view = live.to_the_end(
            done.session, timeout, lines_to=say if output is Output.json else live.to_stdout
        )
    if output is Output.json:
        render.print_json({**view.as_json(), "values": str(done.keep), "changed": done.changed})
    else:
        out, _ = render.consoles()
        if not out.is_terminal and view.passes:  # a screen has it
            out.print(render.curves(view.passes))
        print(launching.farewell(done.session, done.keep))


@app.command()
def sweep(
    program: Program,
    grid: Annotated[
        list[str],
        typer.Option(metavar="KEY=A,B,…", help="Values to try, of what --set takes; several: all of each."),
    ],
    data: Data = None,
    values: ValuesFiles = None,
    settings: Settings = None,
    trainers: Trainers = None,
    passes: Passes = None,
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings side by side.")] = 1,
    by: Annotated[
        str | None, typer.Option(metavar="SCORE", help="Which score decides; default: the first one.")
    ] = None,
    highest: Annotated[
        bool | None,
        typer.Option("--highest/--lowest", help="Whether more of it is better; default: as its name tells."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the values go; default: JOB.sweep.")
    ] = None,
    yes: Yes = False,
    check: Check = True,
    chart: Chart = None,
    base_release: BaseRelease = None,
    output: Format = Output.text,
    namespace: Namespace = NAMESPACE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Train with each combination of a grid, each as a release and job of its own; keep the best release."""
    helm = Helm(find_chart(chart), namespace, kubeconfig, context)
    asked = launching.Request(
        program=program,
        data=data,
        values=values or [],
        settings=settings or [],
        trainers=trainers,
        passes=passes,
        check=check,
        yes=yes,
        base_release=base_release,
        keep=None,
        by=by,
    )
    combinations = recipe.combinations(grid)
    made = launching.prepare(asked, helm, say, combinations)
    folder = keep or Path(f"{made[0].job}.sweep")
    folder.mkdir(parents=True, exist_ok=True)
    cluster = connect(kubeconfig, context, namespace)
    named = [launching.numbered(one, number) for number, one in enumerate(made, 1)]
    launching.refuse_taken(cluster, [one.job for one in named])
    trials = [
        sweeping.Trial(one.job, chosen, one.job) for one, chosen in zip(named, combinations, strict=True)
    ]

    def launch(trial: sweeping.Trial) -> sweeping.Looked:
        own = dataclasses.replace(asked, release=trial.release, keep=folder / f"{trial.release}.values.yaml")
        return launching.launch(named[trials.index(trial)], own, helm, cluster, say).session

    out, _ = render.consoles()
    terminal = out if output is Output.text and out.is_terminal else None
    lines = say if output is Output.json else live.to_stdout
    with sweeping.interrupted(trials, say), sweeping.shower(trials, terminal, lines) as (show, line):
        sweeping.train(trials, parallel, launch, show, line, by=by)
    try:
        best, why = sweeping.best(trials, by, highest)
    except CliError:
        out.print(sweeping.table(trials))
        raise
    others = [trial for trial in trials if trial is not best]
    for trial in others:
        helm.uninstall(trial.release)
    at = options_of(best.release, cluster)
    if output is Output.json:
        render.print_json({"best": best.release, "by": why, "trials": [t.as_json() for t in trials]})
        return
    out.print(sweeping.table(trials, best))
    print(f"kept: release {best.release} with {' '.join(best.settings)} ({why}); its values are in {folder}")
    print(f"  take it home:  {command('results', *at, '--to', f'results/{best.job}')}")
    if others:
        print(
            "uninstalled: the others' releases. Their results stay on the storage, each in its job's folder:"
        )
        print(f"  take one home: {command('results', *at, '--job', others[0].job, '--to', 'DIR')}")
