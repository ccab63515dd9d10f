"""`sweep`: the order of its trainings, the effect of a failure, and the choice of the best."""

from types import SimpleNamespace

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
    """A run that has the states `states` and then `end`; only `read_view` returns its score.

    `read_view` raises UnreachableError the first `failures` times.
    """

    def __init__(self, name, end, score=(), *, happened=None, states=("training", "training"), failures=0):
        self.name, self.end, self.score, self.failures = name, end, dict(score), failures
        self.happened, self.states = [] if happened is None else happened, list(states)

    def poll_view(self, log=False):
        state = self.states.pop(0) if self.states else self.end
        if state in (self.end, "preparing"):
            self.happened.append(f"{self.name} {'ends' if state == self.end else 'prepares'}")
        return RunView(self.name, self.name, state, cause="no shoes" if state == "failed" else "")

    def read_view(self, log=False):
        if self.failures > 0:
            self.failures -= 1
            raise UnreachableError("cannot be reached")
        return RunView(self.name, self.name, self.end, cause="no shoes", score=self.score)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(sweep, "PAUSE_SECONDS", 0.0)


ENDS = [("complete", {"error": 0.3, "auc": 0.6}), ("failed", {}), ("complete", {"error": 0.2, "auc": 0.5})]


def train(ends, parallel=1, happened=None, by=None, first=None):
    """Train a grid whose trainings end so; return (the trials, what happened in order, the printed lines).

    `first` are more arguments of the first session.
    """
    trials = [Trial(f"t-{n}", (f"rate={n}",)) for n in range(len(ends))]
    happened, printed = [] if happened is None else happened, []

    def launch(trial):
        happened.append(f"{trial.release} starts")
        more = first or {} if trial is trials[0] else {}
        return Session(trial.release, *ends[trials.index(trial)], happened=happened, **more)

    sweep.train_all(trials, parallel, launch, lambda: None, printed.append, by=by)
    return trials, happened, printed


def test_at_most_parallel_trials_run_and_a_failure_does_not_affect_others():
    _, happened, printed = train(ENDS)
    assert happened == [f"t-{n} {what}" for n in range(3) for what in ("starts", "ends")]
    assert "t-1: failed" in printed
    trials, happened, _ = train(ENDS, 2)
    assert happened[:2] == ["t-0 starts", "t-1 starts"]
    assert happened.index("t-2 starts") > happened.index("t-0 ends")
    assert [trial.state for trial in trials] == ["complete", "failed", "complete"]


@pytest.mark.parametrize(
    ("by", "release", "why"), [(None, "t-2", "lowest error"), ("auc", "t-0", "highest auc")]
)
def test_the_best_trial_is_chosen_by_the_first_or_the_given_score(by, release, why):
    best, reason = sweep.choose_best(train(ENDS, 3)[0], by)
    assert (best.release, reason) == (release, why)


def test_trials_without_a_score_or_without_the_given_one_are_an_error():
    with pytest.raises(RunFailedError, match=r"none of the trainings has a score. t-0: no shoes"):
        sweep.choose_best(train([("failed", {})])[0], None)
    happened = []
    with pytest.raises(
        UsageError, match=r"--by loss: t-0 has no such score.* Fix: choose one of: error, auc"
    ):
        train(ENDS, happened=happened, by="loss")
    assert happened == ["t-0 starts", "t-0 ends"], "the others would train for nothing"


def test_a_grid_expands_to_all_combinations_the_last_key_fastest():
    expected = [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert launch_training.expand_grid(["a=1,2", "b=x,y"]) == expected
    with pytest.raises(UsageError, match="this is not KEY=A,B"):
        launch_training.expand_grid(["a="])


def test_other_trials_wait_until_the_first_has_its_data():
    """Their data Jobs would make the same data at the same time."""
    states = ("preparing", "preparing", "preparing", "rendezvous")
    _, happened, _ = train(ENDS, 3, first={"states": states})
    assert happened[:6] == ["t-0 starts", *["t-0 prepares"] * 3, "t-1 starts", "t-2 starts"]


def test_a_score_is_read_again_if_the_cluster_was_unreachable_when_its_run_ended():
    trials, _, printed = train([ENDS[2], ENDS[0]], 2, first={"failures": 1})
    assert sweep.choose_best(trials, None)[0].release == "t-0"
    assert "t-0: cannot be reached. Retrying." in printed


def test_a_cluster_that_stays_unreachable_stops_the_sweep(monkeypatch):
    now = [0.0]

    def sleep(seconds):
        now[0] += 30.0
        assert now[0] < 1000, "it waits for ever"

    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(UnreachableError):
        train(ENDS[:1], first={"failures": 10**9})


@pytest.mark.parametrize(
    ("end", "second", "code", "message"),
    [
        (
            "complete",
            "the storage is full",
            3,
            "these releases continue on the cluster: t-1. Not started: rate=2.",
        ),
        ("failed", "", 1, "none of the trainings has a score. t-1: no shoes; t-2: no shoes"),
    ],
    ids=["the second is not launched", "no training has a score"],
)
def test_a_sweep_that_fails_prints_no_json_and_says_why(
    cli, here, monkeypatch, *, end, second, code, message
):
    def launch(plan, *_):
        if plan.job == "t-2" and second:
            raise CliError(second)
        return SimpleNamespace(session=Session(plan.job, end))

    monkeypatch.setattr(sweep, "plan_trainings", lambda *_: [TrainingPlan([], {"jobName": "t"})] * 2)
    monkeypatch.setattr(sweep, "launch", launch)
    monkeypatch.setattr(sweep.LaunchOptions, "connect", lambda _: FakeCluster())
    found, out, err = cli("sweep", "x", "--grid", "rate=1,2", "--parallel", "2", "-o", "json")
    assert (found, out, message in err) == (code, "", True), err
    assert err.rstrip().endswith(second)
