"""Tests that simulated runs with faults keep every invariant, and that the simulation finds seeded bugs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.io.checkpoints import CheckpointFolder
from launcher.schema import RankFiles
from launcher.supervisor.agent import ProcessWatchdog
from launcher.supervisor.coordinator import coordinator, decisions
from launcher.supervisor.coordinator.coordinator import Coordinator
from launcher.supervisor.coordinator.members import Member
from launcher.supervisor.peers.messages import Plan
from launcher.supervisor.process_group import OrderExecutor
from launcher.supervisor.shared_storage.output_lease import OutputLease
from tests.launcher.supervisor.simulated_machine import simulated_machine
from tests.launcher.supervisor.simulation import InvariantBrokenError, World

pytestmark = pytest.mark.long  # unit tests find faults of the decisions sooner

CHILDREN = ("child_killed", "child_fails", "child_hangs", "starts_fail", "program_bug")
COORDINATORS = ("launcher_killed", "forced", "frozen", "drained", "lost_and_rank_0_drained")


def seed_ranges(*ranges: range) -> pytest.MarkDecorator:
    """Return the parametrization of a test with ranges of seeds, which run in several processes."""
    return pytest.mark.parametrize("seeds", ranges, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@pytest.fixture(autouse=True)
def product() -> Iterator[None]:
    """Let launchers run in simulations, and suppress their log lines."""
    logging.disable(logging.CRITICAL)
    with simulated_machine():
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
@seed_ranges(*(range(first, first + 100) for first in (0, 100, 200, 300)))
def test_random_faults_break_no_invariant(seeds: range, kinds: tuple[str, ...]) -> None:
    broken = find_broken_run(seeds, *kinds)
    if broken is not None:
        again = f"python -m tests.launcher.supervisor.run_simulation {broken.seed} {' '.join(kinds)}"
        pytest.fail(f"seed {broken.seed} (alone: {again}):\n{broken.newest_events()}", pytrace=False)


def test_seeds_contain_undisturbed_restarted_and_failed_runs() -> None:
    ends: set[str] = set()
    for seed in range(150):
        world = World(seed)
        restarted = "restarted" if world.run() == "complete" and world.run_record["restarts"] else ""
        ends.add(restarted or ("failed" if world.failed else "undisturbed"))
        if len(ends) == 3:
            return
    pytest.fail(f"only {ends}")


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
        world.restarts, world.rendezvous = 1000, 1000.0  # rank 0 may be absent for most of the time
        world.seconds = 55.0  # between two checkpoints: longer than the time between two kills
        kills: list[float] = []

        def kill(world: World = world, kills: list[float] = kills) -> None:
            pod = world.current[0]
            if pod is not None and not pod.dead:
                pod.exit_container(137, "killed")
                kills.append(world.now)
            if len(kills) < 16:
                world.clock.schedule(world.rng.uniform(0, 50), kill)

        world.clock.schedule(world.rng.uniform(0, 50), kill)
        assert world.run() == "complete", world.newest_events()
        assert len(kills) == 16, world.newest_events()


def test_a_rank_0_whose_main_thread_was_stuck_accepts_states_again() -> None:
    """Regression: it kept the lease, but rejected all states until the run failed at rendezvousSeconds."""
    world = World(11, faults=False)
    assert world.ranks > 1

    def close_as_the_guard_does() -> None:
        coordinator = world.current[0].coordinator if world.current[0] is not None else None
        assert coordinator is not None
        coordinator.membership.close()

    world.clock.schedule(8, close_as_the_guard_does)
    assert world.run() == "complete", world.newest_events()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("absent", "outcome"), [(1500, "complete"), (3000, "failed with 70: ")])
def test_a_missing_rank_is_waited_for_as_long_as_the_values_say(rank: int, absent: int, outcome: str) -> None:
    world = World(11, faults=False)
    assert world.ranks > 1
    world.mild, world.seconds, world.rank_wait_hours = False, 30.0, 0.5

    def lose_pod() -> None:
        pod, world.current[rank] = world.current[rank], None
        assert pod is not None
        pod.exit_container(137, "its spot node was reclaimed")
        world.clock.schedule(absent, lambda: world._create_pod(rank))

    world.clock.schedule(45, lose_pod)
    assert world.run().startswith(outcome), world.newest_events()
    assert (world.now > 45 + 300 + 1800) == (outcome != "complete")
    assert outcome == "complete" or "python -m launcher resume" in str(world.failed)


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


def no_stop_without_orders(patch: Patch) -> None:
    """Let a launcher without orders keep its processes."""
    real = OrderExecutor.__init__
    patch.setattr(OrderExecutor, "__init__", lambda self, start, rank, _: real(self, start, rank, 1e9))
    patch.setattr(ProcessWatchdog, "_check_limits", lambda self, now: None)


def publish_before_recording(patch: Patch) -> None:
    """Publish a plan before run.json contains it."""
    real = Coordinator._announce_change

    def announce_change(self: Coordinator, before: Plan, plan: Plan, now: float) -> None:
        real(self, before, plan, now)
        self.plan = plan
        self.membership.publish(plan)

    patch.setattr(Coordinator, "_announce_change", announce_change)


def lease_that_never_expires(patch: Patch) -> None:
    """Let a rank 0 whose storage hangs continue although another one may have taken the output."""
    patch.setattr(OutputLease, "_watch", lambda self: None)


def old_idle_report_counts_as_stopped(patch: Patch) -> None:
    """Count a rank as stopped that reported `idle` before it knew of the stop: it may be starting."""
    patch.setattr(
        decisions,
        "_runs_no_process",
        lambda member, attempt: not member.phase.runs_processes,
    )


def done_without_all_parts(patch: Patch) -> None:
    """Let trainer 0 finish a checkpoint although another rank's part is missing."""
    patch.setattr(CheckpointFolder, "collect_rank_files", lambda self, config, ranks: RankFiles({}, {}))


def new_rank_0_ignores_the_run_record(patch: Patch) -> None:
    """Let a new rank 0 ignore the run record of the previous pod."""
    patch.setattr(
        coordinator,
        "plan_first_attempt",
        lambda earlier, attempt, ranks, now: (Plan(attempt=attempt, since=now), ()),
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


BUGS: dict[Callable[[Patch], None], tuple[int, tuple[str, ...]]] = {
    do_not_wait_for_lost_pods: (5, ("node_lost",)),
    no_stop_without_orders: (3, ("node_lost",)),
    publish_before_recording: (0, ()),
    lease_that_never_expires: (1, ("node_lost",)),
    old_idle_report_counts_as_stopped: (57, ("starts_fail",)),
    done_without_all_parts: (16, ("child_killed",)),
    new_rank_0_ignores_the_run_record: (12, ()),
    ranks_stop_before_the_requested_checkpoint_is_complete: (430, ("drained",)),
    final_codes_restart: (24, ()),
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
