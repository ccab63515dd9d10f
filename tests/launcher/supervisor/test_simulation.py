"""Tests that simulated runs with faults keep every invariant, and that the simulation finds seeded bugs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.supervisor.coordinator import decisions
from launcher.supervisor.coordinator.members import Member
from launcher.supervisor.peers.messages import Plan
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor.simulation import InvariantBrokenError, World

pytestmark = pytest.mark.long  # unit tests find faults of the decisions sooner

CHILDREN = ("child_killed", "child_fails", "child_hangs", "starts_fail", "device_fails", "program_bug")
ELASTIC = (
    "lost_for_good", "launcher_killed", "forced", "frozen", "drained", "cut", "node_lost", "storage_hangs"
)  # fmt: skip
COORDINATORS = ("launcher_killed", "forced", "frozen", "drained", "lost_and_rank_0_drained")


def seed_ranges(*ranges: range) -> pytest.MarkDecorator:
    """Return the parametrization of a test with ranges of seeds, which run in several processes."""
    return pytest.mark.parametrize("seeds", ranges, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@pytest.fixture(autouse=True)
def no_log_lines() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def find_broken_run(seeds: range, *kinds: str) -> World | None:
    """Return the first run that breaks an invariant, or None."""
    for seed in seeds:
        world = World(seed, kinds=kinds, reliable=kinds == ("drained",))
        try:
            world.run()
        except InvariantBrokenError:
            return world
    return None


@pytest.mark.parametrize("kinds", [(), CHILDREN, COORDINATORS], ids=["any", "children", "coordinators"])
@seed_ranges(*(range(first, first + 250) for first in (0, 250, 500, 750)))
def test_random_faults_break_no_invariant(seeds: range, kinds: tuple[str, ...]) -> None:
    broken = find_broken_run(seeds, *kinds)
    if broken is not None:
        again = f"python -m tests.launcher.supervisor.simulation {broken.seed} {' '.join(kinds)}"
        pytest.fail(f"seed {broken.seed} (alone: {again}):\n{broken.newest_events()}", pytrace=False)


@pytest.mark.parametrize("kinds", [(), ELASTIC], ids=["any", "lost"])
@seed_ranges(*(range(first, first + 250) for first in (0, 250)))
def test_random_faults_break_no_invariant_of_an_elastic_run(seeds: range, kinds: tuple[str, ...]) -> None:
    resized = 0
    for seed in seeds:
        world = World(seed, kinds=kinds, is_elastic=True)
        try:
            world.run()
        except InvariantBrokenError as broken:
            pytest.fail(f"{broken}:\n{world.newest_events()}", pytrace=False)
        resized += len(world.sizes) > 1
    assert resized > len(seeds) / 4, "too few runs that went on with another number of ranks"


@seed_ranges(range(1, 160, 3), range(160, 310, 3))  # seeds with a grace period of 60 s
def test_drained_pods_lose_no_more_than_the_training_since_the_requested_checkpoint(seeds: range) -> None:
    resumed = 0
    for seed in seeds:
        world = World(seed, kinds=("drained",), reliable=True)
        world.run()
        resumed += world.requested_checkpoints
    assert resumed >= 1, "too few runs with a requested checkpoint"


@seed_ranges(range(20), range(20, 40))
def test_a_run_completes_although_rank_0_is_killed_sixteen_times(seeds: range) -> None:
    for seed in seeds:
        world = World(seed, faults=False)
        world.limits = replace(
            world.limits, restarts=1000, join=1000
        )  # rank 0 may be absent for most of the time
        world.seconds = 55.0  # between two checkpoints: longer than the time between two kills
        kills: list[float] = []

        def kill(world: World = world, kills: list[float] = kills) -> None:
            pod = world.current[0]
            if pod is not None and not pod.dead:
                pod.exit(137, "killed")
                kills.append(world.now)
            if len(kills) < 16:
                world.schedule(world.rng.uniform(0, 50), kill)

        world.schedule(world.rng.uniform(0, 50), kill)
        assert world.run() == "complete", world.newest_events()
        assert len(kills) == 16, world.newest_events()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("absent", "outcome"), [(1500, "complete"), (3000, "failed with 70: ")])
def test_a_missing_rank_is_waited_for_as_long_as_the_values_say(rank: int, absent: int, outcome: str) -> None:
    world = World(11, faults=False)
    assert world.ranks > 1
    world.mild, world.seconds, world.limits = False, 30.0, replace(world.limits, join=2100)

    def lose_pod() -> None:
        pod, world.current[rank] = world.current[rank], None
        assert pod is not None
        pod.exit(137, "its spot node was reclaimed")
        world.schedule(absent, lambda: world.create_pod(rank))

    world.schedule(45, lose_pod)
    assert world.run().startswith(outcome), world.newest_events()
    assert (world.now > 45 + 2100) == (outcome != "complete")


@pytest.mark.parametrize(("least", "rank_wait"), [(2, 20), (1, 60)], ids=["too few", "less than half"])
def test_an_elastic_run_goes_on_without_a_coordinator_that_only_reaches_the_storage(
    least: int, rank_wait: float
) -> None:
    """With one rank as the least number it could go on alone, while the others wait."""
    world = next(world for seed in range(99) if (world := build_elastic(seed)).ranks == 3)
    world.min_ranks, world.seconds = least, 12.0
    world.limits = replace(world.limits, min_trainers=least, rank_wait=rank_wait, join=2100)
    sizes: set[int] = set()

    def cut_off() -> None:
        pod = world.current[0]
        assert pod is not None and pod.coordinator is not None
        pod.cut, world.sizes = 1e6, sizes

    world.schedule(20, cut_off)
    world.schedule(400, lambda: [setattr(pod, "cut", 0.0) for pod in world.pods])
    assert world.run() == "complete", world.newest_events()
    assert 2 in sizes and 1 not in sizes, world.newest_events()
    assert any("leaves the run to others" in text for _, text, _ in world._log)


def build_elastic(seed: int) -> World:
    """Return an elastic run without faults whose restarts are not limited."""
    world = World(seed, faults=False, is_elastic=True)
    world.mild, world.limits = True, replace(world.limits, restarts=1000)
    return world


def test_a_seed_determines_the_run() -> None:
    one, other = World(11), World(11)
    assert (one.run(), one.newest_events(10_000)) == (other.run(), other.newest_events(10_000))


Patch = pytest.MonkeyPatch


def do_not_wait_for_lost_pods(patch: Patch) -> None:
    """Start the next attempt although a replaced pod may still run processes."""
    real: Callable[..., Plan] = decisions._plan_after_waiting

    def plan_after_waiting(plan: Plan, members: tuple[Member, ...], *rest: Any) -> Plan:
        return real(plan, [replace(member, ghost_until=0.0) for member in members], *rest)

    patch.setattr(decisions, "_plan_after_waiting", plan_after_waiting)


def processes_of_lost_ranks_count_as_dead_too_early(patch: Patch) -> None:
    """Assume that the processes of a lost rank are dead as soon as it counts as lost."""
    patch.setattr(Timings, "life", property(lambda timings: timings.silence))


def old_idle_report_counts_as_stopped(patch: Patch) -> None:
    """Count a rank as stopped that reported `idle` before it knew of the stop: it may be starting."""
    patch.setattr(decisions, "runs_no_process", lambda member, attempt: not member.phase.runs_processes)


def new_rank_0_ignores_the_run_record(patch: Patch) -> None:
    """Let a new rank 0 ignore the run record of the previous pod."""
    patch.setattr(
        decisions,
        "plan_first_attempt",
        lambda earlier, attempt, shards, now, own_rank, *, succeeds: (Plan(attempt=attempt, since=now), ()),
    )


def ranks_stop_before_the_requested_checkpoint_is_complete(patch: Patch) -> None:
    """Stop all ranks a few seconds after the request."""
    real = decisions._plan_before_leaving

    def plan_before_leaving(plan: Plan, members: Any, leaving: Any, leave_by: float, now: float) -> Plan:
        hurry = leave_by - 30 if plan.save_after is not None else leave_by
        return real(plan, members, leaving, hurry, now)

    patch.setattr(decisions, "_plan_before_leaving", plan_before_leaving)


def final_codes_restart(patch: Patch) -> None:
    """Restart after exit code 64 or 65, with which the next attempt would fail, too."""
    patch.setattr(decisions, "FINAL", ())


def restarts_have_no_limit(patch: Patch) -> None:
    """Restart after every failure."""
    patch.setattr(decisions, "_describe_last_failure", lambda *_: None)


BUGS: dict[Callable[[Patch], None], tuple[int, tuple[str, ...]]] = {
    do_not_wait_for_lost_pods: (100, ("node_lost",)),
    processes_of_lost_ranks_count_as_dead_too_early: (100, ("node_lost",)),
    old_idle_report_counts_as_stopped: (10, ("starts_fail",)),
    new_rank_0_ignores_the_run_record: (0, COORDINATORS),
    ranks_stop_before_the_requested_checkpoint_is_complete: (40, ("drained",)),
    final_codes_restart: (0, CHILDREN),
    restarts_have_no_limit: (0, CHILDREN),
}
"""Bug of the product's code → (first seed, the kinds of faults that show it soonest; empty: all kinds).

The first seed saves time: its run showed the bug when this was written.
"""


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    first, kinds = BUGS[bug]
    broken = find_broken_run(range(first, first + 300), *kinds)
    assert broken is not None, f"{bug.__name__} was not detected in 300 runs"
