"""The study of a sweep: Optuna chooses the settings of trials, stops bad ones early, and remembers all in a journal.

Only the command `sweep` imports this module, because it imports Optuna. The journal is a file that Optuna appends to.
"""

from __future__ import annotations

import html
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from launcher.cli.errors import CliError, UsageError
from launcher.cli.search_space import Axis, Pruner, Sampler, grid_points
from launcher.errors import DataError
from launcher.io.files import write_atomically
from launcher.metrics import higher_is_better
from launcher.reporting.html_report import table

_ABOUT, _METRIC, _CAUSE = "about", "metric", "cause"
_RESULTS = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


@dataclass(frozen=True)
class StudyTrial:
    """A trial as the journal stores it."""

    number: int
    settings: tuple[str, ...]
    """The chosen values, each as `key=value`."""
    result: str = ""
    """`complete`, `pruned` or `failed`; empty while the trial trains."""
    value: float | None = None
    """The score; for a pruned trial the score after its last pass."""
    cause: str = ""
    """Why the trial failed; empty if it did not fail."""
    step: int = 0
    """The newest pass whose score was reported, counted from 1; 0 before the first one."""


def intact_records(content: bytes, where: object) -> bytes:
    """Return the content of a journal, without the last record if a crash has cut that record.

    Optuna would append the next record to the cut one, lose both, and later reject the file. Raises DataError if
    another line is not a record of Optuna. `where` is the path of the file, for the message.
    """
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines or content.splitlines(), 1):
        try:
            is_record = "op_code" in dict(json.loads(line.decode("utf-8")))
        except (ValueError, TypeError):
            is_record = False
        if not is_record:
            raise DataError(
                f"{where}: line {number} is no record of a sweep: this is another file, or it is damaged. It was not "
                "changed. Fix: give another file with --storage; or move the damaged journal aside, and continue with "
                "its other copy (on this machine or the shared storage) with --resume"
            )
    return content.removesuffix(rest)


def choose_journal(local: bytes, shared: bytes) -> bytes:
    """Return the longer one of two copies of a journal. A copy that does not exist is given as empty bytes.

    Raises CliError if the longer copy does not begin with the content of the shorter one, because then two commands
    have continued the same sweep.
    """
    longer, shorter = sorted((local, shared), key=len, reverse=True)
    if not longer.startswith(shorter):
        raise CliError(
            "the journal on this machine and its copy on the shared storage have different trials: the sweep was "
            "continued on two machines, or the command was killed when it began",
            "move the journal of this machine aside to continue with the copy, and run the same command again",
        )
    return longer


def make_pruner(name: Pruner, passes: int) -> BasePruner:
    """Return Optuna's pruner; `passes` is the number of passes of a trial that is not stopped early."""
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=max(1, passes))
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return optuna.pruners.MedianPruner() if name == "median" else optuna.pruners.NopPruner()


class SweepStudy:
    """Optuna's study of one sweep: chooses the settings of trials and stores their results.

    Every change is in the journal file when a method returns.
    """

    def __init__(
        self, journal: Path, name: str, axes: Sequence[Axis], sampler: Sampler, pruner: BasePruner
    ) -> None:
        """Store what the study needs; nothing is read or written."""
        self.journal, self.name, self.axes = journal.resolve(), name, axes  # the lock needs an absolute path
        self._sampler_name, self._pruner = sampler, pruner
        self._sampler = optuna.samplers.TPESampler() if sampler == "tpe" else optuna.samplers.RandomSampler()
        self._space = {axis.key: _distribution(axis) for axis in axes}
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def create(self, metric: str | None, about: Mapping[str, Any]) -> None:
        """Create the study and its journal, and open the study.

        Args:
            metric: the score that decides which trial is best; None: the first score that a trial reports decides.
            about: the program, data and options of the sweep, which must not change when the sweep is resumed.
        """
        points = grid_points(self.axes) if self._sampler_name == "grid" else []
        waiting = [
            create_trial(state=TrialState.WAITING, system_attrs={"fixed_params": point}) for point in points
        ]  # as Study.enqueue_trial creates them
        self._write_new(metric, about, waiting)

    def _write_new(self, metric: str | None, about: Mapping[str, Any], trials: Sequence[FrozenTrial]) -> None:
        """Write a new journal with these trials to a temporary file, rename it to the journal, and open the study."""
        draft = self.journal.with_name(f".{self.journal.name}.tmp")
        draft.unlink(missing_ok=True)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(draft))),
            study_name=self.name,
            direction="maximize" if metric and higher_is_better(metric) else "minimize",
        )
        study.set_user_attr(_ABOUT, json.loads(json.dumps(about)))
        if metric:
            study.set_user_attr(_METRIC, metric)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna marks it as experimental
                study.set_metric_names([metric])
        for trial in trials:
            study.add_trial(trial)
        draft.replace(self.journal)
        self.open(about)

    def open(self, about: Mapping[str, Any]) -> None:
        """Open the study that is stored in the journal.

        `about` is the program, data and options of the sweep, as in `create`. If a killed command has not chosen all
        settings of a trial, the trial gets the result `failed`.

        Raises UsageError if `about` differs from what the journal has, or if the journal has no sweep of this name.
        """
        storage = JournalStorage(JournalFileBackend(str(self.journal)))
        try:
            self._study = optuna.load_study(
                study_name=self.name, storage=storage, sampler=self._sampler, pruner=self._pruner
            )
        except KeyError as error:
            raise UsageError(
                f"{self.journal} has no sweep {self.name}", "give its file with --storage"
            ) from error
        before, now = self._study.user_attrs.get(_ABOUT, {}), json.loads(json.dumps(about))
        if changed := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
            shown = "; ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed)
            raise UsageError(
                f"the sweep {self.name} cannot be resumed, because its trials could not be compared: {shown}",
                "give the same program, data and options again, or start another sweep with --set jobName=NAME",
            )
        for trial in self._study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            if trial.params.keys() != self._space.keys():
                self.tell(trial.number, "failed", cause="the command was killed while it chose the settings")

    @property
    def metric(self) -> str | None:
        """The score that decides which trial is best; None until it is known."""
        metric: str | None = self._study.user_attrs.get(_METRIC)
        return metric

    def set_metric(self, metric: str) -> None:
        """Set the score that decides which trial is best. Call this before any score is reported.

        The journal is written again, because the score decides whether the study maximizes or minimizes.
        """
        self._write_new(metric, self._study.user_attrs[_ABOUT], self._study.get_trials())

    def ask(self) -> StudyTrial:
        """Return a new trial, with the settings that the sampler chooses."""
        return self._describe(self._trial(self._study.ask(self._space).number))

    def trials(self) -> list[StudyTrial]:
        """Return all trials that `ask` has returned or `open` has marked as failed, sorted by number."""
        states = [*_RESULTS.values(), TrialState.RUNNING]
        return [self._describe(trial) for trial in self._study.get_trials(deepcopy=False, states=states)]

    def _trial(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _describe(self, trial: FrozenTrial) -> StudyTrial:
        return StudyTrial(
            trial.number,
            tuple(axis.setting(trial.params[axis.key]) for axis in self.axes if axis.key in trial.params),
            next((name for name, state in _RESULTS.items() if state == trial.state), ""),
            trial.value,
            str(trial.user_attrs.get(_CAUSE, "")),
            max(trial.intermediate_values, default=0),
        )

    def report(self, number: int, step: int, value: float) -> bool:
        """Report the score of a trial after `step` passes; return whether the pruner wants to stop the trial."""
        # A new object each time: an older one does not know the reports of the other trials.
        trial = Trial(self._study, self._trial(number)._trial_id)
        trial.report(value, step)
        return trial.should_prune()

    def tell(self, number: int, result: str, value: float | None = None, cause: str = "") -> None:
        """Store the result of a trial. Do nothing if the trial has a result already.

        Args:
            number: the trial's number.
            result: `complete`, `pruned` or `failed`.
            value: the score of a complete trial. None for a failed trial, and for a pruned trial: its score is the one
                that was reported last.
            cause: why the trial failed; else empty.
        """
        trial = self._trial(number)
        if trial.state.is_finished():
            return
        if cause:
            Trial(self._study, trial._trial_id).set_user_attr(_CAUSE, cause)
        self._study.tell(number, value, _RESULTS[result], skip_if_finished=True)

    def best(self) -> int | None:
        """Return the number of the complete trial with the best score; None if there is none."""
        complete = any(trial.result == "complete" for trial in self.trials())
        return self._study.best_trial.number if complete else None

    def write_report(self, file: Path, rows: Sequence[Sequence[str]]) -> None:
        """Write an HTML page that needs no other file: the table `rows`, whose first row has the titles, and plots.

        The plots are Optuna's own. A plot that needs more trials than the study has is left out. If Optuna cannot draw
        a plot for another reason, the page has the reason instead.
        """
        from optuna import importance, visualization

        study = self._study
        complete = [trial for trial in self.trials() if trial.result == "complete"]
        evaluator = importance.PedAnovaImportanceEvaluator()
        plots: list[tuple[str, Callable[[], Any]]] = [
            ("History", lambda: visualization.plot_optimization_history(study))
        ]
        plots += [("Intermediate scores", lambda: visualization.plot_intermediate_values(study))]
        if len(complete) > 1:
            plots += [
                ("Importance", lambda: visualization.plot_param_importances(study, evaluator=evaluator)),
                ("Parallel coordinates", lambda: visualization.plot_parallel_coordinate(study)),
            ]
        figures: list[str] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna marks some plots as experimental
            for title, make in plots:
                try:
                    figure = make().to_html(full_html=False, include_plotlyjs=not figures)
                except (ValueError, RuntimeError) as error:  # for example: all values of a key are equal
                    figures.append(f"<h2>{title}</h2><p>{html.escape(str(error))}</p>") if figures else None
                else:
                    figures.append(f"<h2>{title}</h2>{figure}")
        title = html.escape(f"Sweep {self.name}: {self.metric or 'no score'}")
        style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em 1em .2em 0;text-align:left}"
        write_atomically(
            file,
            f"<!doctype html><html><head><meta charset=utf-8><title>{title}</title><style>{style}</style></head>"
            f"<body><h1>{title}</h1>{table(rows[0], rows[1:])}{''.join(figures)}</body></html>\n",
        )


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.choices:
        return CategoricalDistribution(axis.choices)
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.is_log)
    return FloatDistribution(axis.low, axis.high, log=axis.is_log)
