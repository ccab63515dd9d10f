"""A grid as trainings side by side: in which order, what a failure does, and which one is the best."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.cli import recipe, sweeping
from launcher.cli.problems import RunFailed, UsageError
from launcher.cli.sweeping import Trial
from launcher.cli.view import View


class Session:
    """A run that is over at the third look; its score is in files, which a glance does not read."""

    def __init__(self, name: str, end: str, score: dict[str, float], told: list[str]) -> None:
        self.name, self.end, self.score, self.told, self.looks = name, end, score, told, 0

    def glance(self) -> View:
        self.looks += 1
        state = "training" if self.looks < 3 else self.end
        if state != "training":
            self.told.append(f"{self.name} ends")
        return View(self.name, self.name, state, cause="no shoes" if state == "failed" else "")

    def look(self) -> View:
        return View(self.name, self.name, self.end, cause="no shoes", score=self.score)


def train(
    ends: Sequence[tuple[str, dict[str, float]]], parallel: int
) -> tuple[list[Trial], list[str], list[str]]:
    """(the trials, what happened in order, what was said)."""
    trials = [Trial(f"t-{n}", (f"rate={n}",), f"t-{n}") for n in range(len(ends))]
    happened: list[str] = []
    said: list[str] = []

    def launch(trial: Trial) -> Session:
        happened.append(f"{trial.release} begins")
        return Session(trial.release, *ends[trials.index(trial)], happened)

    sweeping.train(trials, parallel, launch, lambda: None, said.append, sleep=lambda _: None)
    return trials, happened, said


ENDS = [("complete", {"error": 0.3, "auc": 0.6}), ("failed", {}), ("complete", {"error": 0.2, "auc": 0.5})]


def test_no_more_than_asked_are_at_work_and_a_failure_leaves_the_others_alone() -> None:
    _, happened, said = train(ENDS, 1)
    assert happened == [f"t-{n} {what}" for n in range(3) for what in ("begins", "ends")]
    assert "t-1: failed" in said
    trials, happened, _ = train(ENDS, 2)
    assert happened[:2] == ["t-0 begins", "t-1 begins"]
    assert happened.index("t-2 begins") > happened.index("t-0 ends")
    assert [trial.state for trial in trials] == ["complete", "failed", "complete"]


@pytest.mark.parametrize(
    ("by", "highest", "release", "why"),
    [
        (None, None, "t-2", "lowest error"),
        ("auc", None, "t-0", "highest auc"),
        ("auc", False, "t-2", "lowest auc"),
    ],
)
def test_the_best_is_by_the_first_score_or_the_one_that_is_named(
    by: str | None, highest: bool | None, release: str, why: str
) -> None:
    trials, _, _ = train(ENDS, 3)
    best, told = sweeping.best(trials, by, highest)
    assert (best.release, told) == (release, why)


def test_without_a_score_there_is_no_best() -> None:
    with pytest.raises(RunFailed, match=r"none of the trainings has a score. t-0: no shoes"):
        sweeping.best(train([("failed", {})], 1)[0], None, None)
    with pytest.raises(UsageError, match="--by loss: t-0 has no such score, but error, auc"):
        sweeping.best(train(ENDS[:1], 1)[0], "loss", None)


def test_a_grid_is_all_combinations_and_the_last_key_changes_fastest() -> None:
    assert recipe.combinations(["a=1,2", "b=x,y"]) == [
        ("a=1", "b=x"),
        ("a=1", "b=y"),
        ("a=2", "b=x"),
        ("a=2", "b=y"),
    ]
    with pytest.raises(UsageError, match="names no values"):
        recipe.combinations(["a="])


def test_a_score_that_there_is_not_ends_the_sweep_after_the_first_training_that_has_scores() -> None:
    trials = [Trial(f"t-{n}", (), f"t-{n}") for n in range(3)]
    happened: list[str] = []

    def launch(trial: Trial) -> Session:
        return Session(trial.release, "complete", {"error": 0.3}, happened)

    with pytest.raises(UsageError, match="--by mae: t-0 has no such score, but error"):
        sweeping.train(trials, 1, launch, lambda: None, lambda _: None, by="mae", sleep=lambda _: None)
    assert happened == ["t-0 ends"]


def test_the_others_wait_until_the_first_one_has_its_data() -> None:
    trials = [Trial(f"t-{n}", (), f"t-{n}") for n in range(3)]
    launched: list[str] = []
    states = iter(["preparing", "preparing", "rendezvous"])

    class Preparing(Session):
        def glance(self) -> View:
            if self.name != "t-0" or (state := next(states, None)) is None:
                return super().glance()
            assert launched == ["t-0"], "its data Job would make the same data at the same time"
            return View(self.name, self.name, state)

    def launch(trial: Trial) -> Session:
        launched.append(trial.release)
        return Preparing(trial.release, "complete", {"error": 0.3}, [])

    sweeping.train(trials, 3, launch, lambda: None, lambda _: None, sleep=lambda _: None)
    assert launched == ["t-0", "t-1", "t-2"]
