"""Thousands of simulated runs with faults keep every invariant, and a bug put in on purpose is found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.gang import machine
from launcher.gang.machine import Member, Plan
from tests.launcher.core import simulated_lead
from tests.launcher.core.simulated_children import Children
from tests.launcher.core.simulated_pod import Pod
from tests.launcher.core.simulation import BrokenError, World

SEEDS, CHUNK = 2000, 250


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The launcher's own lines of thousands of runs are nobody's reading."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_broken(seeds: range) -> World | None:
    """The first of these runs in which something is broken."""
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except BrokenError:
            return world
    return None


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_schedule_of_faults_breaks_an_invariant(first: int) -> None:
    broken = first_broken(range(first, first + CHUNK))
    if broken is not None:
        again = f"python -m tests.launcher.core.simulation {broken.seed}"
        pytest.fail(f"seed {broken.seed} (alone: {again}):\n{broken.tail()}", pytrace=False)


def test_the_seeds_hold_runs_that_complete_after_restarts_and_runs_that_fail() -> None:
    ends: dict[str, int] = {}
    for seed in range(150):
        world = World(seed)
        restarted = "restarted" if world.run() == "complete" and world.run_json["restarts"] else ""
        ends[restarted or ("failed" if world.failed else "undisturbed")] = seed
    assert set(ends) == {"restarted", "failed", "undisturbed"}


def test_rank_0_may_be_killed_sixteen_times_at_random_moments() -> None:
    for seed in range(20):
        world = World(seed, faults=False)
        world.restarts, world.rules = 1000, replace(world.rules, restarts=1000)
        world.seconds = 55.0  # of training between two checkpoints: longer than the kills leave it
        kills: list[float] = []

        def kill(world: World = world, kills: list[float] = kills) -> None:
            pod = world.current[0]
            if pod is not None and not pod.dead:
                pod.ends(137, "killed")
                kills.append(world.now)
            if len(kills) < 16:
                world.at(world.rng.uniform(0, 50), kill)

        world.at(world.rng.uniform(0, 50), kill)
        assert world.run() == "complete", world.tail()
        assert len(kills) == 16, world.tail()


def test_one_seed_is_always_the_same_run() -> None:
    one, other = World(11), World(11)
    assert (one.run(), one.tail(10_000)) == (other.run(), other.tail(10_000))


Patch = pytest.MonkeyPatch


def ghosts_do_not_count(patch: Patch) -> None:
    """The next attempt does not wait for a replaced pod that may still run children."""
    real: Callable[..., Plan] = machine.decide

    def decide(plan: Plan, members: tuple[Member, ...], *rest: Any) -> Plan:
        return real(plan, [replace(member, ghost=0.0) for member in members], *rest)

    patch.setattr(simulated_lead, "decide", decide)


def orphans_live_on(patch: Patch) -> None:
    """A launcher without an order leaves its children alone."""
    real = Pod.__init__

    def init(self: Pod, *arguments: Any) -> None:
        real(self, *arguments)
        self.follower._orphan = 1e9

    patch.setattr(Pod, "__init__", init)
    patch.setattr(Pod, "_guard", lambda self: None)


def told_before_it_is_written(patch: Patch) -> None:
    """Ranks hear a plan that run.json does not know."""

    def plans(self: Pod, plan: Plan) -> Iterator[float]:
        self.plan = plan
        self.publish()
        yield from self._persist(plan, "training", None)

    patch.setattr(Pod, "plans", plans)


def lease_without_an_end(patch: Patch) -> None:
    """A rank 0 whose storage hangs goes on although another one may have taken the output."""
    patch.setattr(Pod, "_watch", lambda self: None)


def silence_before_the_stop_is_enough(patch: Patch) -> None:
    """A rank that said it is idle before it knew of the stop counts as stopped: it may just start."""
    patch.setattr(
        machine, "_childless", lambda member, attempt: member.phase in ("absent", *machine.CHILDLESS)
    )


def done_is_not_the_last(patch: Patch) -> None:
    """Trainer 0 calls a save whole when its own part is there."""
    real = Children.part

    def part(self: Children) -> None:
        if self.at_work and self.pod.rank == 0:
            self.world.at(0.1, self.save)
        real(self)

    patch.setattr(Children, "part", part)


def a_successor_forgets(patch: Patch) -> None:
    """A new rank 0 does not go on with the books of the one before."""
    patch.setattr(
        simulated_lead, "again", lambda earlier, attempt, ranks, now, offset: (Plan(attempt, since=now), ())
    )


@pytest.mark.parametrize(
    "bug",
    [
        ghosts_do_not_count,
        orphans_live_on,
        told_before_it_is_written,
        lease_without_an_end,
        silence_before_the_stop_is_enough,
        done_is_not_the_last,
        a_successor_forgets,
    ],
)
def test_a_bug_put_in_on_purpose_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert first_broken(range(SEEDS)) is not None, f"{bug.__name__} was not found in {SEEDS} runs"
