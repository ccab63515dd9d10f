"""Tests of when a checkpoint is saved inside a pass."""

from __future__ import annotations

from itertools import pairwise

from launcher.trainer.save_schedule import SaveSchedule


def no_request(step: int, proposed: int) -> tuple[bool, int]:
    """Answer that no checkpoint is requested."""
    return False, proposed


def saved_batches(schedule: SaveSchedule, batches: int, seconds: float) -> list[int]:
    """Return the batches after which a checkpoint was due and saved."""
    found = []
    batch = 0
    while batch < batches:
        span = schedule.next_span(batches - batch)
        batch += span
        if schedule.record(span, batch * seconds):
            found.append(batch)
            schedule.reset()
    return found


def test_batches_are_counted_from_the_last_checkpoint_of_any_kind() -> None:
    schedule = SaveSchedule(4, 0, lambda _: 0, no_request)
    assert saved_batches(schedule, 6, 1) == [4]
    schedule.reset()  # a pass ended
    assert saved_batches(schedule, 9, 1) == [4, 8]


def test_without_a_setting_nothing_is_saved_and_ranks_do_not_communicate() -> None:
    def slowest(_: float) -> float:
        raise AssertionError("the ranks communicated")

    assert saved_batches(SaveSchedule(0, 0, slowest, no_request), 100, 1) == []


def test_minutes_are_converted_once_to_batches_of_the_slowest_rank() -> None:
    asked = []

    def slowest(seconds: float) -> float:
        asked.append(seconds)
        return 2 * seconds  # another rank takes twice as long

    schedule = SaveSchedule(0, 1, slowest, no_request)
    assert saved_batches(schedule, 400, 0.1) == [300], "a minute at 0.2 s a batch"
    assert [round(s, 1) for s in asked] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2], (
        "until 5 s were measured, and not any more after that"
    )
    assert saved_batches(schedule, 400, 5.0) == [200], (
        "the number is constant although the batches became slow"
    )


def test_ranks_of_different_speeds_save_at_the_same_batches() -> None:
    found = [
        saved_batches(SaveSchedule(0, 0.1, lambda _, s=speed: 8.0, no_request), 100, speed)
        for speed in (0.01, 3.0)
    ]
    assert found[0] == found[1] == list(range(1, 101)), (
        "a batch takes longer than the interval: a checkpoint after each"
    )


def test_the_shorter_of_batches_and_minutes_is_used() -> None:
    assert saved_batches(SaveSchedule(5, 60, lambda s: s, no_request), 20, 1) == [5, 10, 15, 20]
    assert saved_batches(SaveSchedule(50, 0.1, lambda s: s, no_request), 20, 1)[:2] == [6, 12]


def test_a_requested_checkpoint_is_saved_at_the_same_batch_on_ranks_of_any_speed() -> None:
    decided: dict[int, tuple[bool, int]] = {}

    def ask(step: int, proposed: int) -> tuple[bool, int]:
        return decided.setdefault(
            step, (step >= 50 and not any(wanted for wanted, _ in decided.values()), proposed)
        )

    fast, slow = (
        saved_batches(SaveSchedule(0, 0, lambda _: 0, ask), 2000, seconds) for seconds in (0.1, 3.0)
    )
    assert fast == slow == [64], "the fast rank decides, long before the slow one asks"
    steps = sorted(decided)
    assert steps[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert {after - before for before, after in pairwise(steps[7:])} <= {99, 100}, "10 s"


def test_a_checkpoint_requested_at_the_end_of_a_pass_is_due_there() -> None:
    schedule = SaveSchedule(0, 0, lambda _: 0, lambda step, proposed: (step == 4, proposed))
    assert saved_batches(schedule, 3, 1) == []
    assert schedule.record(schedule.next_span(1), 4)
    assert schedule.is_due, "the checkpoint at the end of the pass fulfills the request"
    schedule.reset()
    assert not schedule.is_due
