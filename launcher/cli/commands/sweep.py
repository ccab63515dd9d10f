"""`sweep`: train a program with several settings, each in its own release, and keep the best release."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from launcher.cli.cluster_api import Cluster, UnreachableError
from launcher.cli.errors import CliError, RunFailedError, UsageError
from launcher.cli.job_sessions import ClusterSession, Session
from launcher.cli.launch_training import LaunchOptions, expand_grid, launch, plan_trainings
from launcher.cli.releases import Helm, list_releases
from launcher.cli.run_display import (
    UNREACHABLE_SECONDS,
    LinePrinter,
    Report,
    explain_interrupt,
    open_screen,
    progress_text,
)
from launcher.cli.run_files import check_intact
from launcher.cli.run_view import RunView
from launcher.cli.shared_options import Format, with_options
from launcher.cli.terminal import (
    command_text,
    console,
    print_json,
    print_line,
    report,
    spark_line,
    text_table,
)
from launcher.errors import LauncherError
from launcher.metrics import higher_is_better
from launcher.reporting import text_formats

PAUSE_SECONDS = 2.0  # between two polls of all trials


@dataclass
class Trial:
    """One combination of the grid, trained in its own release and job, which have the same name."""

    release: str
    settings: tuple[str, ...]
    """The combination of values, each as `key=value`."""
    session: Session | None = None
    """Reads the state of the trial's run; None until the training is launched."""
    view: RunView | None = None

    @property
    def state(self) -> str:
        """The state of the trial's run; `waiting` before the launch, `started` until the run is polled."""
        return self.view.state if self.view else "started" if self.session else "waiting"

    @property
    def is_over(self) -> bool:
        """Whether the trial's run is complete or failed, or its Job is missing."""
        return self.view is not None and _is_over(self.view)

    @property
    def score(self) -> dict[str, Any]:
        """The scores of the trial's run by metric; empty before the run is complete."""
        return dict(self.view.score) if self.view and self.view.state == "complete" else {}

    def as_json(self) -> dict[str, Any]:
        """Return the trial as `sweep -o json` prints it."""
        cause = self.view.cause if self.view else ""
        about = {"release": self.release, "jobName": self.release, "settings": list(self.settings)}
        return {**about, "state": self.state, "score": self.score, "cause": cause}


def _is_over(view: RunView) -> bool:
    return view.is_over or view.state == "missing"


@with_options(options=LaunchOptions)
def sweep(
    options: LaunchOptions,
    *,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=A,B,…",
            help="Values to try for a KEY of --set; give the option again to combine it with another KEY.",
        ),
    ],
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings at the same time.")] = 1,
    by: Annotated[
        str | None, typer.Option(metavar="SCORE", help="The score that decides; default: the first one.")
    ] = None,
    output: Format = "text",
) -> None:
    """Train with each combination of a grid, each in its own release and job; keep the best release."""
    options = dataclasses.replace(options, by=by)
    combinations = expand_grid(grid)
    plans = plan_trainings(options, combinations)
    folder = Path(f"{plans[0].job}.sweep")
    folder.mkdir(parents=True, exist_ok=True)
    cluster = options.connect()
    helm = Helm(cluster)
    numbered = {plan.job: plan for plan in (one.numbered(number) for number, one in enumerate(plans, 1))}
    check_releases_are_free(cluster, list(numbered))
    trials = [Trial(job, chosen) for job, chosen in zip(numbered, combinations, strict=True)]

    def launch_trial(trial: Trial) -> Session:
        file = folder / f"{trial.release}.values.yaml"
        options_of_trial = dataclasses.replace(options, release=trial.release, keep=file)
        return launch(numbered[trial.release], options_of_trial, helm, cluster).session

    out = console()
    terminal = out if output == "text" and out.is_terminal else None
    print_to = report if output == "json" else print_line
    with explain_interrupt(lambda: describe_trials(trials)), open_screen(terminal, transient=True) as draw:
        print_between: Report = (lambda _: None) if terminal else print_to
        try:
            train_all(trials, parallel, launch_trial, lambda: draw(trial_table(trials)), print_between, by=by)
        except LauncherError:
            report(describe_trials(trials))
            raise
    try:
        best, why = choose_best(trials, by)
    except CliError:
        if output == "text":
            out.print(trial_table(trials))
        raise
    others = [trial for trial in trials if trial is not best]
    for trial in others:
        helm.uninstall(trial.release)
    selected = ClusterSession(cluster, best.release).options()
    if output == "json":
        print_json({"best": best.release, "by": why, "trials": [trial.as_json() for trial in trials]})
        return
    out.print(trial_table(trials, best))
    print_line(
        f"kept: release {best.release} with {' '.join(best.settings)} ({why}); its values are in {folder}"
    )
    print_line(f"  copy its results: {command_text('results', *selected, '--to', f'results/{best.release}')}")
    if others:
        print_line(
            "uninstalled: the other releases. Their results stay on the storage, in their jobs' folders:"
        )
        copy = command_text("results", *selected, "--job", others[0].release, "--to", "DIR")
        print_line(f"  copy one of them: {copy}")


def check_releases_are_free(cluster: Cluster, names: Sequence[str]) -> None:
    """Raise UsageError if one of the releases exists and its job has another name than the release.

    A sweep gives both the same name, so such a release is not of an earlier sweep and must not be replaced.
    """
    unknown = "(unknown: another version of the chart wrote its ConfigMap)"
    for release in list_releases(cluster, all_namespaces=False):
        job = release.run.job_name if release.run else unknown
        if release.name in names and job != release.name:
            raise UsageError(
                f"the sweep would replace {release}, which has job {job}",
                "choose another name for the sweep with --set jobName=NAME",
            )


def train_all(
    trials: Sequence[Trial],
    parallel: int,
    launch_trial: Callable[[Trial], Session],
    show: Callable[[], None],
    report: Report,
    *,
    by: str | None = None,
) -> None:
    """Launch the trials, at most `parallel` at the same time, and poll them until all are over.

    The other trials wait until the first one's data is prepared: their data Jobs then link this data and do
    not prepare it again. If one trial fails, the others continue.

    Raises:
        UsageError: the first trial with scores has none with the name `by`.
        UnreachableError: no trial could be read for UNREACHABLE_SECONDS.
        LauncherError: as `launch_trial` and the sessions.
    """

    def printer(release: str) -> LinePrinter:
        return LinePrinter(lambda text: report(f"{release}: {text}"))

    printers = {trial.release: printer(trial.release) for trial in trials}
    reached = time.monotonic()
    while not all(trial.is_over for trial in trials):
        for trial in trials:
            if trial.is_over:
                continue
            if trial.session is None:
                first = trials[0].view
                preparing = trial is not trials[0] and (first is None or first.state == "preparing")
                running = sum(other.session is not None and not other.is_over for other in trials)
                if preparing or running >= parallel:
                    continue
                trial.session = launch_trial(trial)
                reached = time.monotonic()
            try:
                view = trial.session.poll_view()
                trial.view = trial.session.read_view() if _is_over(view) else view  # it has the score
                check_intact(trial.view.damage, trial.view.where)
                reached = time.monotonic()
            except UnreachableError as error:
                if time.monotonic() - reached > UNREACHABLE_SECONDS:
                    raise
                report(f"{trial.release}: {error}. Retrying.")
                continue
            _check_score(trial, by)
            printers[trial.release].print_view(trial.view)
            show()
        if not all(trial.is_over for trial in trials):
            time.sleep(PAUSE_SECONDS)


def choose_best(trials: Sequence[Trial], by: str | None) -> tuple[Trial, str]:
    """Return (the trial with the best score, a description such as `lowest error`).

    `by` is the option of `sweep`.

    Raises:
        RunFailedError: no trial has a score.
        UsageError: a trial has no score with that name.
    """
    done = [trial for trial in trials if trial.score]
    if not done:
        causes = [f"{trial.release}: {trial.view.cause or trial.state}" for trial in trials if trial.view]
        raise RunFailedError(
            "none of the trainings has a score. " + "; ".join(causes),
            "correct the causes, then run the same command again",
        )
    name = by if by is not None else next(iter(done[0].score))
    for trial in done:
        _check_score(trial, name)
    more = higher_is_better(name)
    chosen = (max if more else min)(done, key=lambda trial: trial.score[name])
    return chosen, f"{'highest' if more else 'lowest'} {name}"


def _check_score(trial: Trial, by: str | None) -> None:
    if by is not None and trial.score and not isinstance(trial.score.get(by), int | float):
        raise UsageError(
            f"--by {by}: {trial.release} has no such score. No release was uninstalled",
            f"choose one of: {', '.join(trial.score)}",
        )


def trial_table(trials: Sequence[Trial], chosen: Trial | None = None) -> RenderableType:
    """Return a table with a row for each trial; an arrow marks the chosen one."""
    keys = [setting.partition("=")[0] for setting in trials[0].settings]
    rows: list[list[RenderableType]] = []
    for trial in trials:
        view = trial.view
        if view and view.is_over:
            result = text_formats.scores(trial.score) or view.cause.partition("\n")[0]
        else:
            result = progress_text(view.progress) if view and view.progress else "-"
        values = [setting.partition("=")[2] for setting in trial.settings]
        curve = spark_line([float(row["train_loss"]) for row in view.passes]) if view else ""
        mark = "→" if trial is chosen else " "
        rows.append([f"{mark} {trial.release}", *values, trial.state, curve, Text(result)])
    return text_table(["  release", *keys, "state", "loss", "score"], rows)


def describe_trials(trials: Sequence[Trial]) -> str:
    """Return which trainings continue after the command was interrupted, and how to continue the sweep."""
    launched = ", ".join(trial.release for trial in trials if trial.session is not None)
    left = ", ".join(" ".join(trial.settings) for trial in trials if trial.session is None)
    return (
        f"these releases continue on the cluster: {launched or 'none'}. Not started: {left or 'none'}.\nRun the "
        "same command again to continue the sweep; `stop --release NAME` stops one training."
    )
