"""Decides whether all ranks save a checkpoint before a pod that received SIGTERM exits; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.paths import Position
from launcher.supervisor.coordinator.member_states import Member
from launcher.supervisor.peers.messages import SIGTERM_CAUSE
from launcher.supervisor.progress import finite_number, whole_number
from launcher.supervisor.state_deadlines import BYTES_PER_SECOND
from launcher.trainer.save_schedule import ASK_SECONDS

_STATES = ("training", "testing", "waiting", "saving")
"""States of progress.json in which a trainer has trained batches that a checkpoint can save."""
_LEAST_SECONDS = 1.0
"""Shortest duration in seconds that is assumed for a save, because the launcher reads a trainer's state only about
twice a second."""


@dataclass(frozen=True)
class SaveRequest:
    """Request to all trainers for a checkpoint, because a pod must exit."""

    begin_by: float
    """Monotonic time after which the checkpoint would not be complete in time, so it must not begin."""
    after: Position
    """The newest checkpoint that all ranks had reported before the request; Position(0) if there was none."""


def find_leaving(members: Sequence[Member]) -> Member | None:
    """Return the member that must exit first, of those that received SIGTERM; None if there is none."""
    leaving = [(m.leave_by, m.rank) for m in members if m.leave_by is not None]
    return members[min(leaving)[1]] if leaving else None


def decide_save(
    request: SaveRequest | None, members: Sequence[Member], batch_size: int, now: float
) -> SaveRequest | str:
    """Decide whether pods that received SIGTERM wait for a checkpoint: return the request for it, else why not.

    A checkpoint is requested if the trainers are expected to complete it before the first pod must exit, by their
    present speed and the longest save that a launcher of the gang has measured. If none was measured yet, it
    takes the size of the restored or saved checkpoint at 10 MB/s; if that is unknown too, nothing is requested.
    None is requested either while the newest one is so young that a new one would take longer than the training
    since then.

    Args:
        request: the present request; None if none was made.
        members: all ranks; at least one of them received SIGTERM.

    Returns:
        The request; or, if the ranks must stop now, what became of the checkpoint, for messages.
    """
    deadline = min(m.leave_by for m in members if m.leave_by is not None)
    saved = min(filter(None, map(_read_saved, members)), default=Position(0))
    if request is None:
        return _request_checkpoint(members, batch_size, now, deadline, saved)
    if saved > request.after:
        return f"saved a checkpoint at {saved}"
    return request if now < deadline else "the requested checkpoint was not saved in time"


def _request_checkpoint(
    members: Sequence[Member], batch_size: int, now: float, deadline: float, saved: Position
) -> SaveRequest | str:
    """Return a new request for a checkpoint, or why there is none; see `decide_save`.

    `deadline` is the monotonic time at which the first pod must exit, `saved` the newest checkpoint.
    """
    busy = [m for m in members if m.phase != "training" or m.progress.get("state") not in _STATES]
    if busy:
        state = busy[0].progress.get("state") or busy[0].phase
        return f"no checkpoint begun: rank {busy[0].rank} is not training (its state is {state})"
    save = _estimate_save_seconds(members)
    reach = _estimate_reach_seconds(members, batch_size)
    if save is None or reach is None:
        return "no checkpoint begun: its duration is unknown, because none was saved or restored yet"
    age = now - max(m.saved for m in members)
    if age < ASK_SECONDS + save:
        return f"no checkpoint begun: the newest one is {age:.0f} s old"
    if now + reach + save > deadline:
        return (
            f"no checkpoint begun: it would take {reach + save:.0f} s (saving alone {save:.0f} s), "
            f"{deadline - now:.0f} s are left"
        )
    return SaveRequest(deadline - save, saved)


def describe_save_request(members: Sequence[Member], now: float) -> str | None:
    """Return which pod must exit, that a checkpoint was requested, and how many seconds are left at time `now`.

    None if no pod must exit (any more).
    """
    leaving = find_leaving(members)
    if leaving is None or leaving.leave_by is None:
        return None
    return f"{leaving.label}{SIGTERM_CAUSE}checkpoint requested, {leaving.leave_by - now:.0f} s left"


def _read_saved(member: Member) -> Position | None:
    """Return the newest checkpoint that a rank's trainer reported; Position(0) if there is none.

    Return None for a rank that takes no part in saving: with runtime collective that is every rank but 0.
    """
    if member.progress and "saved" not in member.progress:
        return None
    saved = member.progress.get("saved")
    if not isinstance(saved, dict):
        return Position(0)
    return Position(whole_number(saved.get("pass")) or 0, whole_number(saved.get("batch")) or 0)


def _estimate_save_seconds(members: Sequence[Member]) -> float | None:
    measured = [m.state.save_seconds for m in members if m.state and m.state.save_seconds is not None]
    if measured:
        return max(_LEAST_SECONDS, *measured)
    size = max(finite_number(m.progress.get("bytes")) or 0.0 for m in members)
    return max(_LEAST_SECONDS, size / BYTES_PER_SECOND) if size else None


def _estimate_reach_seconds(members: Sequence[Member], batch_size: int) -> float | None:
    """Return the seconds until the slowest trainer has trained the batch after which all of them save.

    They save after the batch at which the fastest one asks next: within ASK_SECONDS, but not before its next batch.
    None if a trainer reports no speed yet.
    """
    done, speeds = [], []
    for member in members:
        progress = member.progress
        keys = ("pass", "batches", "batch", "samples_per_second")
        batch_rows = finite_number(progress.get("batch_size")) or batch_size
        number, batches, batch, rows = (finite_number(progress.get(key)) for key in keys)
        if number is None or not batches or batch is None or rows is None or rows <= 0:
            return None
        done.append(number * batches + batch)
        speeds.append(rows / batch_rows)
    target = max(done) + max(1.0, ASK_SECONDS * max(speeds))
    return max((target - at) / speed for at, speed in zip(done, speeds, strict=True))
