"""`sweep`: a program with several settings, each as a release of its own; the best one is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from launcher.best import higher_is_better
from launcher.cli import render, waiting
from launcher.cli.cluster import UnreachableError
from launcher.cli.problems import RunFailed, UsageError
from launcher.cli.view import View
from launcher.reporting import figures

PAUSE = 2.0  # seconds between two looks at all of them


class Looked(Protocol):
    """What is asked of a session."""

    def glance(self) -> View: ...
    def look(self) -> View: ...


@dataclass
class Trial:
    """One combination of the grid."""

    release: str
    settings: tuple[str, ...]
    """`key=value` of the grid."""
    job: str
    session: Looked | None = None
    """None until it was launched."""
    view: View | None = None

    @property
    def state(self) -> str:
        """As of its run; waiting before that."""
        return self.view.state if self.view else "started" if self.session else "waiting"

    @property
    def over(self) -> bool:
        return self.view is not None and (self.view.over or self.view.state == "missing")

    @property
    def score(self) -> dict[str, Any]:
        return dict(self.view.score) if self.view and self.view.state == "complete" else {}

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        cause = self.view.cause if self.view else ""
        told = {"release": self.release, "jobName": self.job, "settings": list(self.settings)}
        return {**told, "state": self.state, "score": self.score, "cause": cause}


def train(
    trials: Sequence[Trial],
    parallel: int,
    launch: Callable[[Trial], Looked],
    show: Callable[[], None],
    say: Callable[[str], None],
    *,
    by: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Launches the trials, at most `parallel` at a time, and looks at them until all are over.

    The others wait until the first one has its data: their data Jobs then link it, and do not make it again.
    One that fails leaves the others alone. Raises what `launch` and the sessions raise, and UsageError when
    the first trial with scores has none named `by`.
    """
    tellers = {id(trial): _teller(trial, say) for trial in trials}
    while not all(trial.over for trial in trials):
        for trial in trials:
            if trial.over:
                continue
            if trial.session is None:
                first = trials[0].view
                preparing = trial is not trials[0] and (first is None or first.state == "preparing")
                if preparing or sum(t.session is not None and not t.over for t in trials) >= parallel:
                    continue
                trial.session = launch(trial)
            with contextlib.suppress(UnreachableError):
                trial.view = trial.session.glance()
                if trial.over:
                    trial.view = trial.session.look()  # with the score
                    _check_score(trial, by)
                tellers[id(trial)].tell(trial.view)
            show()
        if not all(trial.over for trial in trials):
            sleep(PAUSE)


def _teller(trial: Trial, say: Callable[[str], None]) -> waiting.Teller:
    return waiting.Teller(lambda text: say(f"{trial.release}: {text}"))


def best(trials: Sequence[Trial], by: str | None, highest: bool | None) -> tuple[Trial, str]:
    """(the best trial, why). `by`: a score, default: the first one; `highest` None: as its name tells.

    Raises RunFailed when none is complete, UsageError for a score that there is not.
    """
    done = [trial for trial in trials if trial.score]
    if not done:
        causes = [f"{trial.release}: {trial.view.cause or trial.state}" for trial in trials if trial.view]
        raise RunFailed("none of the trainings has a score. " + "; ".join(causes))
    name = by if by is not None else next(iter(done[0].score))
    for trial in done:
        _check_score(trial, name)
    more = highest if highest is not None else higher_is_better(name)
    chosen = (max if more else min)(done, key=lambda trial: trial.score[name])
    return chosen, f"{'highest' if more else 'lowest'} {name}"


def _check_score(trial: Trial, by: str | None) -> None:
    if by is not None and trial.score and not isinstance(trial.score.get(by), int | float):
        has = ", ".join(trial.score)
        raise UsageError(f"--by {by}: {trial.release} has no such score, but {has}. All releases stay.")


def table(trials: Sequence[Trial], chosen: Trial | None = None) -> RenderableType:
    """One line a trial."""
    keys = [setting.partition("=")[0] for setting in trials[0].settings]
    rows: list[list[RenderableType]] = []
    for trial in trials:
        view = trial.view
        if view and view.over:
            said = figures.scores(trial.score) or view.cause.partition("\n")[0]
        else:
            said = render.progress_text(view.progress) if view and view.progress else "-"
        values = [setting.partition("=")[2] for setting in trial.settings]
        curve = render.spark([float(row["train_loss"]) for row in view.passes]) if view else ""
        mark = "→" if trial is chosen else " "
        rows.append([f"{mark} {trial.release}", *values, trial.state, curve, Text(said)])
    return render.table(["  release", *keys, "state", "loss", "score"], rows)


@contextlib.contextmanager
def shower(
    trials: Sequence[Trial], terminal: Console | None, say: Callable[[str], None]
) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """(what shows the table anew, what says a line): a table on a terminal, else lines."""
    if terminal is None:
        yield (lambda: None), say
        return
    with Live(console=terminal, auto_refresh=False, transient=True) as screen:
        yield lambda: screen.update(table(trials), refresh=True), lambda _: None


@contextlib.contextmanager
def interrupted(trials: Sequence[Trial], say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C ends the looking, not the trainings that were launched; says which those are."""
    try:
        yield
    except SystemExit:
        begun = [trial.release for trial in trials if trial.session is not None]
        left = [" ".join(trial.settings) for trial in trials if trial.session is None]
        say(f"\nthe releases go on: {', '.join(begun) or 'none'}. Not begun: {', '.join(left) or 'none'}.")
        say("The same command again goes on from there; `stop --release NAME` stops one.")
        raise
