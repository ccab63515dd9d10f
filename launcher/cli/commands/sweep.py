"""`sweep`: search for the best settings of a program; each trial is a release of its own, the best one is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from launcher.cli import object_states
from launcher.cli.cluster_api import Cluster, UnreachableError
from launcher.cli.errors import CliError, OtherRunError, RunFailedError, UsageError
from launcher.cli.job_sessions import ClusterSession, KeptStorage
from launcher.cli.launch_training import (
    JOB_NAME_LENGTH,
    LaunchOptions,
    TrainingPlan,
    apply_settings,
    choose_base_release,
    complete_values,
    launch,
    nest_keys,
    plan_trainings,
    write_values,
)
from launcher.cli.releases import Helm, ReleaseNotFoundError, list_releases, merge_values, read_defaults
from launcher.cli.run_display import (
    UNREACHABLE_SECONDS,
    LinePrinter,
    Report,
    explain_interrupt,
    first_line,
    open_screen,
    progress_text,
)
from launcher.cli.run_files import check_intact
from launcher.cli.run_lease import RENEW_SECONDS, hold_lease
from launcher.cli.run_view import RunView
from launcher.cli.search_space import (
    Axis,
    Pruner,
    Sampler,
    check_options,
    describe_space,
    plain_key,
    read_space,
)
from launcher.cli.shared_options import Format, with_options
from launcher.cli.storage import read_small_files, run_json_command
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
from launcher.io.files import write_atomically
from launcher.io.program_folders import find_program_folder
from launcher.io.tar_stream import write_tar
from launcher.metrics import TEST, higher_is_better
from launcher.paths import JobPaths
from launcher.reporting import text_formats
from launcher.settings import SCRIPT_RUNTIMES

if TYPE_CHECKING:
    from launcher.cli.sweep_study import StudyTrial, SweepStudy

PAUSE_SECONDS = 2.0  # pause between two polls of all trials
GONE_SECONDS = 180.0  # longest wait for the pods of a stopped trial to exit
NUMBER_LENGTH = 5
"""Largest number of characters that a trial's number adds to the sweep's name, such as -9999."""
MAX_TRIALS = 10 ** (NUMBER_LENGTH - 1) - 1
LEAST_PASSES = 2
"""Smallest number of passes with which a pruner can stop a training early."""
SHARED_KEYS = ("jobName", "runtime", "training.config", "training.programSha256", "training.packages")
"""Values of the chart that cannot be searched. The sweep sets `jobName` itself, and the others are the same in all
trials."""


@dataclass
class Trial:
    """One trial of the study, trained in its own release and job, which have the same name."""

    asked: StudyTrial
    release: str
    session: ClusterSession | None = None
    """Reads the state of the trial's run; None until the training is launched."""
    view: RunView | None = None
    stopped_at: float | None = None
    """Monotonic time at which the trial was pruned; None again once its pods have exited, or after GONE_SECONDS."""

    @property
    def state(self) -> str:
        """The trial's state: `waiting` before the launch, then the run's state, and at the end the result.

        It is `stopping` while the pods of a pruned trial have not exited.
        """
        if self.stopped_at is not None:
            return "stopping"
        running = self.view.state if self.view else "started" if self.session else "waiting"
        return self.asked.result or running

    @property
    def is_live(self) -> bool:
        """Whether the trial's run may have pods."""
        return self.session is not None and (not self.asked.result or self.stopped_at is not None)

    def as_json(self) -> dict[str, Any]:
        """Return the trial as `sweep -o json` prints it."""
        one = self.asked
        about = {"release": self.release, "jobName": self.release, "settings": list(one.settings)}
        score = dict(self.view.score) if self.view else {}
        return {**about, "state": self.state, "value": one.value, "score": score, "cause": one.cause}


def lacks_pods(view: RunView) -> bool:
    """Return whether a run waits for pods, for example because of a quota or full nodes.

    The pods of another trial would then have to wait, too.
    """
    jobs = [job.state for job in (view.data, view.training) if job]
    phases = [rank.phase for rank in view.ranks]
    return not view.is_over and ("waiting" in jobs or "missing" in phases or "Pending" in phases)


def can_launch(trials: Sequence[Trial], parallel: int) -> bool:
    """Return whether another trial can be launched now.

    This is the case if no trial is live, or if all of these are true:

    - Fewer than `parallel` trials are live.
    - A trial has prepared its data, so that the data Jobs of the other trials only have to link this data.
    - No live trial waits for pods. Otherwise two trials that each have only some of their pods could wait for each
      other forever.
    """
    live = [trial for trial in trials if trial.is_live]
    has_data = any(
        trial.asked.result in ("complete", "pruned") or (trial.view and trial.view.state != "preparing")
        for trial in trials
    )
    waits = any(trial.view is None or lacks_pods(trial.view) for trial in live if trial.stopped_at is None)
    return not live or (len(live) < parallel and has_data and not waits)


@dataclass
class SweepLoop:
    """Launches, polls and stops trials in one thread, until `wanted` trials have a result."""

    study: SweepStudy
    releases: ClusterReleases
    wanted: int
    parallel: int
    by: str | None
    report: Report

    def __post_init__(self) -> None:
        """Read the trials of the journal. A trial without a result continues, in its release if the release exists.

        The releases of trials with a result are uninstalled, except the best one.
        """
        self.trials = [self._describe(asked) for asked in self.study.trials()]
        self._printers: dict[str, LinePrinter] = {}
        self._reached = time.monotonic()
        self._saved = b""
        for trial in self.trials:
            if not trial.asked.result:
                trial.session = self.releases.attach(trial.release)
        self._uninstall_others()

    def run(self, show: Callable[[], None]) -> None:
        """Run the sweep to its end, and call `show` after each poll of a trial.

        Raises:
            UsageError: a complete trial has scores, but no score with the name of `--by`.
            UnreachableError: the cluster could not be reached for UNREACHABLE_SECONDS.
            LauncherError: the cluster, the storage or helm failed.
        """
        while True:
            for trial in self.trials:
                if trial.session and trial.is_live:
                    self._poll(trial, trial.session)
                    show()
            while new := self._next():
                self._save()
                try:
                    new.session = self.releases.launch(new.release, new.asked.settings)
                except UnreachableError as error:
                    self._retry(new, error)
                    break
                self._poll(new, new.session)
                show()
            self._save()
            if len(self.trials) >= self.wanted and all(
                one.asked.result and not one.is_live for one in self.trials
            ):
                return
            time.sleep(PAUSE_SECONDS)

    def _next(self) -> Trial | None:
        """Return the trial to launch now; None if no trial can be launched now.

        Trials of the journal that were never launched come first: a `sweep` command that was killed has chosen their
        settings. After these, a new trial is chosen.
        """
        if not can_launch(self.trials, self.parallel):
            return None
        for trial in self.trials:
            if trial.session is None and not trial.asked.result:
                return trial
        if len(self.trials) >= self.wanted:
            return None
        self.trials.append(self._describe(self.study.ask()))
        return self.trials[-1]

    def _describe(self, asked: StudyTrial) -> Trial:
        return Trial(asked, f"{self.study.name}-{asked.number + 1}")

    def _poll(self, trial: Trial, session: ClusterSession) -> None:
        """Read the state of a trial and report its new passes to the study.

        If the trial is over, store its result. If the pruner wants to stop it, stop it.
        """
        try:
            if trial.stopped_at is not None:
                self._await_stop(trial, trial.stopped_at)
                return
            view = session.read_view()
            check_intact(view.damage, view.where)
            self._reached = time.monotonic()
        except UnreachableError as error:
            self._retry(trial, error)
            return
        except (ReleaseNotFoundError, OtherRunError) as error:
            self._tell(trial, "failed", cause=error.problem)
            return
        trial.view = view
        is_pruned = self._report_passes(trial, view)
        printer = self._printers.setdefault(
            trial.release, LinePrinter(lambda text: self.report(f"{trial.release}: {text}"))
        )
        printer.print_view(view)
        if view.state == "complete":
            self._tell_score(trial, view)
        elif view.is_over or view.state == "missing":
            self._tell(trial, "failed", cause=view.cause or f"its run is {view.state}")
        elif is_pruned:
            self._tell(trial, "pruned")

    def _retry(self, trial: Trial, error: UnreachableError) -> None:
        """Report that the cluster is unreachable. Raise `error` after UNREACHABLE_SECONDS."""
        if time.monotonic() - self._reached > UNREACHABLE_SECONDS:
            raise error
        self.report(f"{trial.release}: {error}. Retrying.")

    def _report_passes(self, trial: Trial, view: RunView) -> bool:
        """Report the scores of new passes to the study; return whether the pruner wants to stop the trial.

        After the last pass, return False.
        """
        if self.study.metric is None:
            columns = (key.removeprefix(TEST) for row in view.passes for key in row if key.startswith(TEST))
            known = self.by or next(iter(view.score), None) or next(columns, None)
            if known is None:
                return False
            self.study.set_metric(known)
        is_pruned, step = False, trial.asked.step
        for row in view.passes:
            value, number = row.get(f"{TEST}{self.study.metric}"), int(row["pass"]) + 1
            if number > step and isinstance(value, int | float) and math.isfinite(value):
                is_pruned |= self.study.report(trial.asked.number, number, float(value))
                trial.asked = dataclasses.replace(trial.asked, step=number)
        is_last = view.progress is not None and trial.asked.step >= view.progress.passes
        return is_pruned and not is_last  # after the last pass nothing is saved, and the model would be lost

    def _tell_score(self, trial: Trial, view: RunView) -> None:
        metric = self.study.metric
        value = view.score.get(metric) if metric else None
        if self.by and view.score and not isinstance(value, int | float):
            raise UsageError(
                f"--by {self.by}: {trial.release} has no such score. No release was uninstalled",
                f"choose one of: {', '.join(view.score)}",
            )
        if isinstance(value, int | float) and math.isfinite(value):
            self._tell(trial, "complete", float(value))
        else:
            self._tell(trial, "failed", cause=f"the run is complete, but its score {metric or ''} is {value}")

    def _tell(self, trial: Trial, result: str, value: float | None = None, cause: str = "") -> None:
        number = trial.asked.number
        self.study.tell(number, result, value, first_line(cause) if cause else "")
        trial.asked = next(one for one in self.study.trials() if one.number == number)
        self._save()
        if result == "pruned":
            self.report(f"{trial.release}: pruned after pass {trial.asked.step}, stopping")
            self.releases.stop(trial.release)
            trial.stopped_at = time.monotonic()
        self._uninstall_others()

    def _await_stop(self, trial: Trial, since: float) -> None:
        has_pods, waited = self.releases.has_pods(trial.release), time.monotonic() - since
        if has_pods and waited < GONE_SECONDS:
            return
        trial.stopped_at = None
        self.report(
            f"{trial.release}: "
            + (f"its pods still run {waited:.0f} s after" if has_pods else f"stopped, {waited:.0f} s after")
            + " it was pruned"
        )
        self._uninstall_others()

    def _uninstall_others(self) -> None:
        """Uninstall the releases of all trials with a result, except the best one. The results stay on the storage.

        The release of a pruned trial is uninstalled later, after its pods have exited.
        """
        best = self.study.best()
        over = [
            one for one in self.trials if one.asked.result and not one.is_live and one.asked.number != best
        ]
        if over:
            self.releases.uninstall([trial.release for trial in over])

    def _save(self) -> None:
        """Copy the journal to the shared storage if it has changed."""
        content = self.study.journal.read_bytes()
        if content == self._saved:
            return
        try:
            self.releases.save_journal()
            self._saved = content
        except CliError as error:
            self.report(f"the journal could not be copied to the shared storage: {error}. Retrying.")

    def best(self) -> tuple[Trial, str]:
        """Return (the best trial, a description such as `lowest error`). Raises RunFailedError if none has a score."""
        best = self.study.best()
        if best is None:
            causes = "; ".join(f"{one.release}: {one.asked.cause or one.state}" for one in self.trials)
            raise RunFailedError(
                f"none of the trainings has a score. {causes}",
                "correct the causes, then start another sweep with --set jobName=NAME",
            )
        metric = self.study.metric or ""
        chosen = next(trial for trial in self.trials if trial.asked.number == best)
        return chosen, f"{'highest' if higher_is_better(metric) else 'lowest'} {metric}"


@dataclass
class ClusterReleases:
    """Starts and stops the releases of the trials."""

    cluster: Cluster
    helm: Helm
    options: LaunchOptions
    plan: TrainingPlan
    kept: KeptStorage
    study: SweepStudy

    def _session(self, release: str) -> ClusterSession:
        session = ClusterSession(self.cluster, release)
        session.kept = self.kept
        return session

    def attach(self, release: str) -> ClusterSession | None:
        """Return a session of the release; None if the release is not installed.

        If a killed command has left the release without its Job, uninstall the release and return None.
        """
        session = self._session(release)
        if session.run_if_installed() and session.read_view().state != "missing":
            return session
        self.helm.uninstall(release)
        return None

    def _values_file(self, release: str) -> Path:
        return self.study.journal.parent / f"{release}.values.yaml"

    def _values(self, release: str, settings: Sequence[str]) -> dict[str, Any]:
        return {**apply_settings(self.plan.values, settings), "jobName": release}

    def write_values(self, trial: Trial) -> Path:
        """Return the file with the values of a trial. If this machine has no such file, write it.

        It has none if another machine has launched the trial.
        """
        file = self._values_file(trial.release)
        if not file.exists():
            values = self._values(trial.release, trial.asked.settings)
            write_values(file, merge_values(values, self._packages(trial.release)))
        return file

    def _packages(self, release: str) -> dict[str, Any]:
        """Return the value `training.packages` of an installed release, as values; empty without packages."""
        packages = (self.helm.read_values(release).get("training") or {}).get("packages")
        return nest_keys({"training.packages": packages}) if packages else {}

    def launch(self, release: str, settings: Sequence[str]) -> ClusterSession:
        """Upload the files that the storage does not have yet, install the release, and return its session."""
        plan = dataclasses.replace(self.plan, values=self._values(release, settings))
        session = self._session(release)
        launch(plan, self.options, self.helm, session, self._values_file(release))
        # The other trials use the same data file and packages; only the program belongs to the job's own folder.
        packages = self._packages(release) if self.plan.requirements else {}
        self.plan = dataclasses.replace(
            self.plan,
            uploads=self.plan.uploads[:1],
            values=merge_values(self.plan.values, packages),
            requirements=None,
        )
        return session

    def stop(self, release: str) -> None:
        """Suspend the running Jobs of the release, so that its launchers get SIGTERM and stop their processes.

        If a Kueue queue controls a Job, uninstall the release instead, because the queue would resume the Job.
        """
        run = self._session(release).run()
        for name in filter(None, (run.k8s_job, run.k8s_data_job)):
            job = self.cluster.find("job", name)
            if object_states.queue_of(job):  # Kueue would resume it
                self.helm.uninstall(release)
            elif object_states.job_state(job)[0] == "running":
                self.cluster.suspend_job(name, True)

    def has_pods(self, release: str) -> bool:
        """Return whether at least one pod of the release has not exited."""
        pods = self._session(release).pods()
        return any(object_states.phase_of(pod) not in object_states.ENDED for pod in pods)

    def uninstall(self, releases: Sequence[str]) -> None:
        """Uninstall those of the releases that are installed, except the base release of the sweep."""
        for one in list_releases(self.cluster, all_namespaces=False):
            if one.name in releases and one.name != self.options.base_release:
                self.helm.uninstall(one.name)

    def save_journal(self) -> None:
        """Copy the journal to the storage (`JobPaths.all_sweeps`); the copy appears complete, or not at all."""
        archive, name, journal = io.BytesIO(), self.study.name, self.study.journal
        write_tar(archive, [(f"{name}.journal", journal)])
        archive.seek(0)
        options = ["--bytes", str(journal.stat().st_size), "--replace"]
        try:
            root = self.kept.job(".")
            run_json_command(root, "untar", *options, shared_name(name), stdin=archive)
        except CliError:
            self.kept.close()
            raise


def shared_name(name: str) -> str:
    """Return the path of the copy of a sweep's journal, below the folder that contains all jobs."""
    return f"{JobPaths(Path(), '').all_sweeps}/{name}.journal"


@with_options(options=LaunchOptions)
def sweep(
    options: LaunchOptions,
    *,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A KEY of --set, and its values: a list (8,16,32), or a range (1..4, 0.1..0.5, log:1e-4..1e-1).",
        ),
    ] = None,
    search_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML file with KEY: VALUES, as of --search.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="How many settings to try; default: 10, with grid all of them."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings at the same time.")] = 1,
    sampler: Annotated[Sampler, typer.Option(help="How settings are chosen (Optuna).")] = "tpe",
    pruner: Annotated[
        Pruner,
        typer.Option(help="Which trainings are stopped early, by their score after each pass (Optuna)."),
    ] = "none",
    by: Annotated[
        str | None, typer.Option(metavar="SCORE", help="The score that decides; default: the first one.")
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The sweep's journal, for optuna-dashboard too; default: JOB.sweep/study.journal.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted sweep; its trainings are not repeated.")
    ] = False,
    output: Format = "text",
) -> None:
    """Search for the best settings of a program; keep the release with the best score.

    Each trial trains in its own release and job. The command needs `pip install '.[sweep]'`.
    """
    axes = read_space(search or (), search_file)
    wanted = count_trials(axes, sampler, trials)
    check_keys(axes, options)
    from launcher.cli.sweep_study import SweepStudy, make_pruner

    plans = plan_ends(options, axes, by)
    plan = plans[0]
    if len(plan.job) > JOB_NAME_LENGTH:
        raise UsageError(
            f"jobName {plan.job} has {len(plan.job)} characters, and the limit is {JOB_NAME_LENGTH}: it is part of "
            "names in Kubernetes",
            f"shorten it; the trials' names contain its first {JOB_NAME_LENGTH - NUMBER_LENGTH} characters",
        )
    name = plan.job[: JOB_NAME_LENGTH - NUMBER_LENGTH].rstrip("-")
    journal = storage or Path(f"{name}.sweep") / "study.journal"
    passes = max(int(complete_values(one.values)["training"]["passes"]) for one in plans)
    if pruner != "none" and passes < LEAST_PASSES:
        raise UsageError(
            f"--pruner {pruner}: a training of {passes} pass cannot be stopped early",
            "omit it, or raise --passes",
        )
    study = SweepStudy(journal, name, axes, sampler, make_pruner(pruner, passes))
    about = {"--search": describe_space(axes), "--sampler": sampler, **_flatten(plan.values)}
    cluster = options.connect()
    helm = Helm(cluster)
    with contextlib.ExitStack() as stack:
        base = choose_base_release(ClusterSession(cluster, f"{name}-1"), options.base_release)
        options = dataclasses.replace(options, base_release=base.release)
        check_lease = stack.enter_context(hold_lease(cluster, name))
        base_values = base.read_base_values(helm)
        for one in plans:
            helm.check(f"{name}-1", merge_values(base_values, {**one.values, "jobName": f"{name}-1"}))
        kept = stack.enter_context(contextlib.closing(KeptStorage(base, name)))
        open_study(study, kept, by, about, resume=resume)
        numbers = range(1, max(wanted, len(study.trials())) + 1)
        check_releases_are_free(cluster, [f"{name}-{number}" for number in numbers])
        out = console()
        terminal = out if output == "text" and out.is_terminal else None
        print_to: Report = (lambda _: None) if terminal else report if output == "json" else print_line
        releases = ClusterReleases(cluster, helm, options, plan, kept, study)
        loop = SweepLoop(study, releases, wanted, parallel, by, print_to)
        draw = stack.enter_context(open_screen(terminal, transient=True))
        stack.enter_context(explain_interrupt(lambda: describe_trials(loop)))

        def show() -> None:
            draw(trial_table(loop.trials))
            try:
                check_lease()
            except OtherRunError:  # this machine may have slept; then the lease is renewed now
                time.sleep(2 * RENEW_SECONDS)
                check_lease()

        try:
            loop.run(show)
        except LauncherError:
            report(describe_trials(loop))
            raise
    _print_result(loop, releases, output)


def count_trials(axes: Sequence[Axis], sampler: Sampler, trials: int | None) -> int:
    """Return how many settings the sweep tries.

    `trials` is the value of `--trials`; None: 10, or all combinations with the sampler `grid`. Raises UsageError if
    `trials` is not the number of combinations of a grid, if more settings would be tried than the search space has, or
    if their number is above MAX_TRIALS.
    """
    wanted = trials or 10
    if sampler == "grid":
        wanted = math.prod(len(axis.grid_values()) for axis in axes)
        if trials not in (None, wanted):
            raise UsageError(
                f"--trials is {trials}, but the grid has {wanted} combinations",
                "omit --trials, or change the lists",
            )
    elif wanted > (count := math.prod(axis.size for axis in axes)):
        raise UsageError(
            f"{wanted} trials are more than the {count:.0f} settings of the search space, so some would be trained "
            "twice",
            "try each once with --sampler grid, or give fewer --trials",
        )
    if wanted > MAX_TRIALS:
        raise UsageError(
            f"{wanted:,} trials are more than the limit of {MAX_TRIALS:,}: their numbers are part of the releases' "
            "names",
            "give fewer --trials, or in a grid shorter lists",
        )
    return wanted


def check_keys(axes: Sequence[Axis], options: LaunchOptions) -> None:
    """Raise UsageError for a key that all trials must share, or to which another option gives a value."""
    given = {plain_key(text.partition("=")[0].strip()): f"--set {text}" for text in options.settings or ()}
    given |= {"trainers": f"--trainers {options.trainers}"} if options.trainers else {}
    given |= {"training.passes": f"--passes {options.passes}"} if options.passes else {}
    for axis in axes:
        if axis.key in SHARED_KEYS:
            raise UsageError(
                f"--search {axis.key}: all trials have the same {axis.key}; jobName is the name of the sweep",
                "give it with --set or in a values file",
            )
        if setter := given.get(plain_key(axis.key)):
            raise UsageError(f"--search {axis.key}: {setter} sets it, too", "omit one of them")


def plan_ends(options: LaunchOptions, axes: Sequence[Axis], by: str | None) -> list[TrainingPlan]:
    """Return some plans of trainings, to check the search space before the sweep begins.

    The first plan has the first value of each key, and the second plan has the last value of each key. This function
    makes all checks on these two plans that `run` makes on this machine. For each key that is a value of the chart and
    has a list in the search space, one more plan follows for each item between the first and the last item of the list.
    On these plans this function checks only the values of the chart.

    Args:
        options: the options of the command.
        axes: the search space.
        by: a score that the program must have; None: no score is required.

    Raises the errors of `plan_trainings` and `check_options`.
    """
    ends = list(zip(*(map(one.setting, one.ends()) for one in axes), strict=True))
    plans = plan_trainings(options, ends, by)
    if complete_values(plans[0].values)["runtime"] not in SCRIPT_RUNTIMES:
        config = str(plans[0].values["training"]["config"]).partition("/")[2]
        check_options(axes, find_program_folder(options.program) / config)
    of_chart = [axis for axis in axes if axis.key.partition(".")[0] in read_defaults()]
    for setting in (axis.setting(value) for axis in of_chart for value in axis.choices[1:-1]):
        values = apply_settings(plans[0].values, [setting])
        complete_values(values)
        plans.append(dataclasses.replace(plans[0], values=values))
    return plans


def open_study(
    study: SweepStudy, kept: KeptStorage, by: str | None, about: Mapping[str, Any], *, resume: bool
) -> None:
    """Create the study of a new sweep; with `resume` open the study of an earlier one.

    The journal of the earlier sweep is on this machine, and a copy of the journal is on the storage. If they differ,
    the longer one is used.

    Args:
        study: the study to create or open.
        kept: the storage with the copy of the journal.
        by: the score that decides, from `--by`; None if the option is not given.
        about: the program, data and options of the sweep, which must not change when the sweep is resumed.
        resume: whether to continue an earlier sweep.

    Raises:
        UsageError: without `resume`: a sweep of this name exists already. With `resume`: no sweep of this name exists,
            or `about` or `by` differ from those of the earlier sweep.
        CliError: the journal and its copy contradict each other, because two commands have continued the same sweep.
        DataError: the journal or its copy is damaged, or is another kind of file. The file is unchanged.
    """
    from launcher.cli.sweep_study import choose_journal, intact_records

    file, shared = study.journal, shared_name(study.name)
    content = file.read_bytes() if file.exists() else b""
    local = intact_records(content, file)
    copy = read_small_files(kept.job("."), [shared]).get(shared, b"")
    copy = intact_records(copy, f"{shared} on the storage")
    if not resume:
        if local or copy:
            where = str(file) if local else f"{shared} on the storage"
            raise UsageError(
                f"there is a sweep {study.name} already ({where})",
                "continue it with --resume, start another one with --set jobName=NAME, or remove it: the file, and "
                "the folders of its trials with clean --job",
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        study.create(by, about)
        return
    journal = choose_journal(local, copy)
    if not journal:
        raise UsageError(
            f"there is no sweep {study.name} to resume: neither {file} nor a copy on the storage",
            "omit --resume to start it, or give its file with --storage",
        )
    if journal != content:
        if cut := len(content) - len(local):
            report(f"{file}: removed the last record, of {cut} bytes, which a crash has cut")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, journal)
    study.open(about)
    if by and study.metric is None:
        study.set_metric(by)
    if by and study.metric != by:
        raise UsageError(f"--by {by}: the sweep {study.name} searches by {study.metric}", "omit --by")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values as a flat dict with dotted keys: {"a": {"b": 1}} becomes {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
        )
    return flat


def check_releases_are_free(cluster: Cluster, names: Sequence[str]) -> None:
    """Raise UsageError if one of the releases exists and its job has another name than the release.

    A sweep gives a release and its job the same name. So such a release does not belong to an earlier sweep, and must
    not be replaced.
    """
    unknown = "(unknown: another version of the chart wrote its ConfigMap)"
    for release in list_releases(cluster, all_namespaces=False):
        job = release.run.job_name if release.run else unknown
        if release.name in names and job != release.name:
            raise UsageError(
                f"the sweep would replace {release}, which has job {job}",
                "choose another name for the sweep with --set jobName=NAME",
            )


def _cells(trial: Trial) -> tuple[list[str], str]:
    """Return (values of the trial's settings, text) for the trial's row in a table.

    The text is the score of a complete or pruned trial, the cause of a failure, or the progress of a trial that trains.
    """
    view, one = trial.view, trial.asked
    if one.result == "complete":
        result = (
            text_formats.scores(dict(view.score)) if view and view.score else text_formats.number(one.value)
        )
    elif one.result == "pruned":
        result = f"{text_formats.number(one.value)} after pass {one.step}"
    else:
        result = one.cause or (progress_text(view.progress) if view and view.progress else "-")
    values = [setting.partition("=")[2] for setting in one.settings]
    return [_shorten(value) for value in values], result


def _shorten(value: str) -> str:
    """Return a decimal number such as 0.123456 with four digits; another text, such as -0.5 or 1e-05, unchanged."""
    return f"{float(value):.4g}" if value.count(".") == 1 and value.replace(".", "").isdigit() else value


def trial_table(trials: Sequence[Trial], chosen: Trial | None = None) -> RenderableType:
    """Return a table with a row for each trial; an arrow marks the chosen one."""
    keys = [setting.partition("=")[0] for setting in trials[0].asked.settings] if trials else []
    rows: list[list[RenderableType]] = []
    for trial in trials:
        values, result = _cells(trial)
        curve = spark_line([float(row["train_loss"]) for row in trial.view.passes]) if trial.view else ""
        mark = "→" if trial is chosen else " "
        rows.append([f"{mark} {trial.release}", *values, trial.state, curve, Text(result)])
    return text_table(["  release", *keys, "state", "loss", "score"], rows)


def describe_trials(loop: SweepLoop) -> str:
    """Return a message: which trainings continue after the command was interrupted, and how to continue the sweep."""
    running = ", ".join(trial.release for trial in loop.trials if trial.is_live)
    over = sum(bool(trial.asked.result) for trial in loop.trials)
    return (
        f"these releases continue on the cluster: {running or 'none'}. {over} of {loop.wanted} trials are over.\n"
        "Add --resume to the same command to continue the sweep, also on another machine; `stop --release NAME` stops "
        "one training."
    )


def _print_result(loop: SweepLoop, releases: ClusterReleases, output: str) -> None:
    """Print the table and the best trial, and write the report next to the journal."""
    out, folder = console(), loop.study.journal.parent
    try:
        best, why = loop.best()
    except CliError:
        if output == "text":
            out.print(trial_table(loop.trials))
        raise
    keys = [setting.partition("=")[0] for setting in best.asked.settings]
    rows = [["release", *keys, "state", "score"]]
    for trial in loop.trials:
        values, result = _cells(trial)
        rows.append([trial.release, *values, f"best: {why}" if trial is best else trial.state, result])
    page, values_file = folder / "report.html", releases.write_values(best)
    loop.study.write_report(page, rows)
    if output == "json":
        files = {"values": str(values_file), "journal": str(loop.study.journal), "report": str(page)}
        print_json(
            {"best": best.release, "by": why, **files, "trials": [one.as_json() for one in loop.trials]}
        )
        return
    out.print(trial_table(loop.trials, best))
    selected = ClusterSession(releases.cluster, best.release).options()
    print_line(
        f"kept: release {best.release} with {' '.join(best.asked.settings)} ({why}); values: {values_file}"
    )
    print_line(f"  copy its results: {command_text('results', *selected, '--to', f'results/{best.release}')}")
    print_line(f"  table and plots:  {page}")
    print_line(f"  all trials:       optuna-dashboard {loop.study.journal}")
    if others := [trial.release for trial in loop.trials if trial is not best]:
        print_line(
            "uninstalled: the other releases. Their results stay on the storage, in their jobs' folders:"
        )
        copy = command_text("results", *selected, "--job", others[0], "--to", "DIR")
        print_line(f"  copy one of them: {copy}")
