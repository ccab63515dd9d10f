"""Tests that simulated runs with faults keep every invariant, and that the simulation finds seeded bugs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.supervisor.coordinator import decisions
from launcher.supervisor.coordinator.decisions import AttemptPlan, Member
from tests.launcher.supervisor import simulated_coordinator
from tests.launcher.supervisor.simulated_pod import SimulatedPod
from tests.launcher.supervisor.simulated_processes import SimulatedProcesses
from tests.launcher.supervisor.simulation import InvariantBrokenError, World

SEEDS, CHUNK = 2000, 250


@pytest.fixture(autouse=True)
def silence_launcher_logs() -> Iterator[None]:
    """Suppress the launcher's log lines of thousands of runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def find_broken_run(seeds: range) -> World | None:
    """Return the first run that breaks an invariant, or None."""
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except InvariantBrokenError:
            return world
    return None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_random_faults_break_no_invariant(first: int) -> None:
    broken = find_broken_run(range(first, first + CHUNK))
    if broken is not None:
        again = f"python -m tests.launcher.supervisor.simulation {broken.seed}"
        pytest.fail(f"seed {broken.seed} (alone: {again}):\n{broken.newest_events()}", pytrace=False)


def test_seeds_contain_undisturbed_restarted_and_failed_runs() -> None:
    ends: dict[str, int] = {}
    for seed in range(150):
        world = World(seed)
        restarted = "restarted" if world.run() == "complete" and world.run_json["restarts"] else ""
        ends[restarted or ("failed" if world.failed else "undisturbed")] = seed
    assert set(ends) == {"restarted", "failed", "undisturbed"}


def test_a_run_completes_although_rank_0_is_killed_sixteen_times() -> None:
    for seed in range(20):
        world = World(seed, faults=False)
        world.restarts, world.rules = 1000, replace(world.rules, restarts=1000)
        world.seconds = 55.0  # between two checkpoints: longer than the time between two kills
        kills: list[float] = []

        def kill(world: World = world, kills: list[float] = kills) -> None:
            pod = world.current[0]
            if pod is not None and not pod.dead:
                pod.exit_container(137, "killed")
                kills.append(world.now)
            if len(kills) < 16:
                world.schedule(world.rng.uniform(0, 50), kill)

        world.schedule(world.rng.uniform(0, 50), kill)
        assert world.run() == "complete", world.newest_events()
        assert len(kills) == 16, world.newest_events()


def test_a_seed_determines_the_run() -> None:
    one, other = World(11), World(11)
    assert (one.run(), one.newest_events(10_000)) == (other.run(), other.newest_events(10_000))


Patch = pytest.MonkeyPatch


def do_not_wait_for_lost_pods(patch: Patch) -> None:
    """Start the next attempt although a replaced pod may still run processes."""
    real: Callable[..., AttemptPlan] = decisions.decide_next_plan

    def decide_next_plan(plan: AttemptPlan, members: tuple[Member, ...], *rest: Any) -> AttemptPlan:
        return real(plan, [replace(member, ghost_until=0.0) for member in members], *rest)

    patch.setattr(simulated_coordinator, "decide_next_plan", decide_next_plan)


def no_stop_without_orders(patch: Patch) -> None:
    """Let a launcher without orders keep its processes."""
    real = SimulatedPod.__init__

    def init(self: SimulatedPod, *arguments: Any) -> None:
        real(self, *arguments)
        self.executor._orphan_seconds = 1e9

    patch.setattr(SimulatedPod, "__init__", init)
    patch.setattr(SimulatedPod, "_guard", lambda self: None)


def publish_before_recording(patch: Patch) -> None:
    """Publish a plan before run.json contains it."""

    def record_plan(self: SimulatedPod, plan: AttemptPlan) -> Iterator[float]:
        self.plan = plan
        self.publish()
        yield from self._persist(plan, "training", None)

    patch.setattr(SimulatedPod, "record_plan", record_plan)


def lease_that_never_expires(patch: Patch) -> None:
    """Let a rank 0 whose storage hangs continue although another one may have taken the output."""
    patch.setattr(SimulatedPod, "_watch_lease", lambda self: None)


def old_idle_report_counts_as_stopped(patch: Patch) -> None:
    """Count a rank as stopped that reported `idle` before it knew of the stop: it may be starting."""
    patch.setattr(
        decisions,
        "_runs_no_process",
        lambda member, attempt: member.phase in ("absent", *decisions.PHASES_WITHOUT_PROCESSES),
    )


def done_without_all_parts(patch: Patch) -> None:
    """Let trainer 0 finish a checkpoint when its own part is written."""
    real = SimulatedProcesses.write_part

    def write_part(self: SimulatedProcesses) -> None:
        if self.is_working and self.pod.rank == 0:
            self.world.schedule(0.1, self.finish_checkpoint)
        real(self)

    patch.setattr(SimulatedProcesses, "write_part", write_part)


def new_rank_0_ignores_the_run_record(patch: Patch) -> None:
    """Let a new rank 0 ignore the run record of the one before."""
    patch.setattr(
        simulated_coordinator,
        "plan_first_attempt",
        lambda earlier, attempt, ranks, now, offset: (AttemptPlan(attempt, since=now), ()),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        do_not_wait_for_lost_pods,
        no_stop_without_orders,
        publish_before_recording,
        lease_that_never_expires,
        old_idle_report_counts_as_stopped,
        done_without_all_parts,
        new_rank_0_ignores_the_run_record,
    ],
)
def test_a_seeded_bug_is_found(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    assert find_broken_run(range(SEEDS)) is not None, f"{bug.__name__} was not detected in {SEEDS} runs"
