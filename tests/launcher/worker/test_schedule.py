"""When to save inside a pass."""

from __future__ import annotations

from itertools import pairwise

from launcher.worker.schedule import Schedule


def nobody(step: int, proposed: int) -> tuple[bool, int]:
    """Nobody wants a checkpoint."""
    return False, proposed


def saves(schedule: Schedule, batches: int, seconds: float) -> list[int]:
    """The batches after which a save is due, each of which is made."""
    found = []
    batch = 0
    while batch < batches:
        span = schedule.span(batches - batch)
        batch += span
        if schedule.trained(span, batch * seconds):
            found.append(batch)
            schedule.saved()
    return found


def test_batches_are_counted_from_the_last_save_of_any_kind() -> None:
    schedule = Schedule(4, 0, lambda _: 0, nobody)
    assert saves(schedule, 6, 1) == [4]
    schedule.saved()  # a pass ended
    assert saves(schedule, 9, 1) == [4, 8]


def test_without_a_setting_nothing_is_saved_and_nobody_meets() -> None:
    def met(_: float) -> float:
        raise AssertionError("the ranks met")

    assert saves(Schedule(0, 0, met, nobody), 100, 1) == []


def test_minutes_become_a_number_of_batches_that_suits_the_slowest_and_stays() -> None:
    asked = []

    def slowest(seconds: float) -> float:
        asked.append(seconds)
        return 2 * seconds  # another rank takes twice as long

    schedule = Schedule(0, 1, slowest, nobody)
    assert saves(schedule, 400, 0.1) == [300], "a minute at 0.2 s a batch"
    assert [round(s, 1) for s in asked] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2], (
        "until 5 s were seen, then never again"
    )
    assert saves(schedule, 400, 5.0) == [200], "the number stays though the batches became slow"


def test_all_ranks_agree_also_when_their_own_speeds_differ() -> None:
    found = [saves(Schedule(0, 0.1, lambda _, s=speed: 8.0, nobody), 100, speed) for speed in (0.01, 3.0)]
    assert found[0] == found[1] == list(range(1, 101)), (
        "a batch takes longer than the interval: each is saved"
    )


def test_the_shorter_of_batches_and_minutes_counts() -> None:
    assert saves(Schedule(5, 60, lambda s: s, nobody), 20, 1) == [5, 10, 15, 20]
    assert saves(Schedule(50, 0.1, lambda s: s, nobody), 20, 1)[:2] == [6, 12]


def test_a_checkpoint_that_is_asked_for_is_saved_at_the_same_batch_by_ranks_of_any_speed() -> None:
    decided: dict[int, tuple[bool, int]] = {}

    def ask(step: int, proposed: int) -> tuple[bool, int]:
        return decided.setdefault(
            step, (step >= 50 and not any(save for save, _ in decided.values()), proposed)
        )

    fast, slow = (saves(Schedule(0, 0, lambda _: 0, ask), 2000, seconds) for seconds in (0.1, 3.0))
    assert fast == slow == [64], "the fast one decides, long before the slow one is there"
    steps = sorted(decided)
    assert steps[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {after - before for before, after in pairwise(steps[7:])} <= {99, 100}, "10 s"


def test_a_checkpoint_that_is_asked_for_at_a_pass_end_is_due_there() -> None:
    schedule = Schedule(0, 0, lambda _: 0, lambda step, proposed: (step == 4, proposed))
    assert saves(schedule, 3, 1) == []
    assert schedule.trained(schedule.span(1), 4)
    assert schedule.due, "the pass ends here: its own save is the one"
    schedule.saved()
    assert not schedule.due
