"""`sweep`: the order of its trainings, the effect of a failure, and the choice of the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import launch_training
from launcher.cli.cluster_api import UnreachableError
from launcher.cli.commands import sweep
from launcher.cli.commands.sweep import Trial
from launcher.cli.errors import CliError, RunFailedError, UsageError
from launcher.cli.launch_training import TrainingPlan
from launcher.cli.run_view import RunView

from .fake_cluster import FakeCluster


class Session:
    """A run that is over at the third poll; only `read_view` returns its score."""

    def __init__(self, name: str, end: str, score: dict[str, float], events: list[str]) -> None:
        self.name, self.end, self.score, self.events, self.polls = name, end, score, events, 0

    def poll_view(self, log: bool = False) -> RunView:
        self.polls += 1
        state = "training" if self.polls < 3 else self.end
        if state != "training":
            self.events.append(f"{self.name} ends")
        return RunView(self.name, self.name, state, cause="no shoes" if state == "failed" else "")

    def read_view(self, log: bool = False) -> RunView:
        return RunView(self.name, self.name, self.end, cause="no shoes", score=self.score)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAUSE_SECONDS", 0.0)


def train(
    ends: Sequence[tuple[str, dict[str, float]]], parallel: int
) -> tuple[list[Trial], list[str], list[str]]:
    """Train a grid; return (the trials, what happened in order, the printed lines)."""
    trials = [Trial(f"t-{n}", (f"rate={n}",)) for n in range(len(ends))]
    happened: list[str] = []
    printed: list[str] = []

    def launch(trial: Trial) -> Session:
        happened.append(f"{trial.release} starts")
        return Session(trial.release, *ends[trials.index(trial)], happened)

    sweep.train_all(trials, parallel, launch, lambda: None, printed.append)
    return trials, happened, printed


ENDS = [("complete", {"error": 0.3, "auc": 0.6}), ("failed", {}), ("complete", {"error": 0.2, "auc": 0.5})]


def test_at_most_parallel_trials_run_and_a_failure_does_not_affect_others() -> None:
    _, happened, printed = train(ENDS, 1)
    assert happened == [f"t-{n} {what}" for n in range(3) for what in ("starts", "ends")]
    assert "t-1: failed" in printed
    trials, happened, _ = train(ENDS, 2)
    assert happened[:2] == ["t-0 starts", "t-1 starts"]
    assert happened.index("t-2 starts") > happened.index("t-0 ends")
    assert [trial.state for trial in trials] == ["complete", "failed", "complete"]


@pytest.mark.parametrize(
    ("by", "release", "why"),
    [
        (None, "t-2", "lowest error"),
        ("auc", "t-0", "highest auc"),
    ],
)
def test_the_best_trial_is_chosen_by_the_first_or_the_given_score(
    by: str | None, release: str, why: str
) -> None:
    trials, _, _ = train(ENDS, 3)
    best, reason = sweep.choose_best(trials, by)
    assert (best.release, reason) == (release, why)


def test_trials_without_the_score_are_an_error() -> None:
    with pytest.raises(RunFailedError, match=r"none of the trainings has a score. t-0: no shoes"):
        sweep.choose_best(train([("failed", {})], 1)[0], None)
    with pytest.raises(
        UsageError, match=r"--by loss: t-0 has no such score.* Fix: choose one of: error, auc"
    ):
        sweep.choose_best(train(ENDS[:1], 1)[0], "loss")


def test_a_grid_expands_to_all_combinations_the_last_key_fastest() -> None:
    assert launch_training.expand_grid(["a=1,2", "b=x,y"]) == [
        ("a=1", "b=x"),
        ("a=1", "b=y"),
        ("a=2", "b=x"),
        ("a=2", "b=y"),
    ]
    with pytest.raises(UsageError, match="this is not KEY=A,B"):
        launch_training.expand_grid(["a="])


def test_an_unknown_score_stops_the_sweep_after_the_first_scored_trial() -> None:
    trials = [Trial(f"t-{n}", ()) for n in range(3)]
    happened: list[str] = []

    def launch(trial: Trial) -> Session:
        return Session(trial.release, "complete", {"error": 0.3}, happened)

    with pytest.raises(UsageError, match=r"--by mae: t-0 has no such score.* Fix: choose one of: error"):
        sweep.train_all(trials, 1, launch, lambda: None, lambda _: None, by="mae")
    assert happened == ["t-0 ends"]


def test_other_trials_wait_until_the_first_has_its_data() -> None:
    trials = [Trial(f"t-{n}", ()) for n in range(3)]
    launched: list[str] = []
    states = iter(["preparing", "preparing", "rendezvous"])

    class Preparing(Session):
        def poll_view(self, log: bool = False) -> RunView:
            if self.name != "t-0" or (state := next(states, None)) is None:
                return super().poll_view()
            assert launched == ["t-0"], "its data Job would make the same data at the same time"
            return RunView(self.name, self.name, state)

    def launch(trial: Trial) -> Session:
        launched.append(trial.release)
        return Preparing(trial.release, "complete", {"error": 0.3}, [])

    sweep.train_all(trials, 3, launch, lambda: None, lambda _: None)
    assert launched == ["t-0", "t-1", "t-2"]


class Unreachable(Session):
    """A cluster that stays unreachable after the run is over, for `failures` reads."""

    failures = 1

    def read_view(self, log: bool = False) -> RunView:
        if self.name == "t-1" and self.failures > 0:
            self.failures -= 1
            raise UnreachableError("cannot be reached")
        return super().read_view()


def test_a_score_is_read_again_if_the_cluster_was_unreachable_when_its_run_ended() -> None:
    trials, printed = [Trial(f"t-{n}", ()) for n in range(2)], []
    scores = {"t-0": {"error": 0.3}, "t-1": {"error": 0.2}}

    def launch(trial: Trial) -> Session:
        return Unreachable(trial.release, "complete", scores[trial.release], [])

    sweep.train_all(trials, 2, launch, lambda: None, printed.append)
    assert sweep.choose_best(trials, None)[0].release == "t-1"
    assert "t-1: cannot be reached. Retrying." in printed


def test_a_cluster_that_stays_unreachable_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 30.0
        assert now[0] < 1000, "it waits for ever"

    monkeypatch.setattr(Unreachable, "failures", 10**9)
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    trials = [Trial(f"t-{n}", ()) for n in range(2)]
    with pytest.raises(UnreachableError):
        sweep.train_all(
            trials[1:], 1, lambda one: Unreachable(one.release, "complete", {}, []), lambda: None, print
        )


@pytest.fixture
def run_sweep(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `sweep -o json` with two settings; `end` is how the first run ends."""

    monkeypatch.chdir(tmp_path)  # it gets the folder of the values files

    def run(end: str, second: str) -> tuple[int, str, str]:
        def launch(plan: TrainingPlan, *_: object) -> SimpleNamespace:
            if plan.job == "t-2" and second:
                raise CliError(second)
            return SimpleNamespace(session=Session(plan.job, end, {}, []))

        monkeypatch.setattr(sweep, "plan_trainings", lambda *_: [TrainingPlan([], {"jobName": "t"})] * 2)
        monkeypatch.setattr(sweep, "launch", launch)
        monkeypatch.setattr(sweep.LaunchOptions, "connect", lambda _: FakeCluster())
        given = ("--grid", "rate=1,2", "--parallel", "2", "-o", "json")
        return cli("sweep", "x", *given)

    return run


def test_a_sweep_that_fails_says_which_trainings_continue(run_sweep: Any) -> None:
    code, out, err = run_sweep("complete", "the storage is full")
    assert (code, out) == (3, "")
    assert "these releases continue on the cluster: t-1. Not started: rate=2." in err
    assert err.endswith("error: the storage is full\n")


def test_a_sweep_without_a_score_prints_no_table_as_json(run_sweep: Any) -> None:
    code, out, err = run_sweep("failed", "")
    assert (code, out) == (1, "")
    assert "none of the trainings has a score. t-1: no shoes; t-2: no shoes" in err
