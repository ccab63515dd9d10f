"""Read progress.json, in which each trainer (or a user's own program) writes how far it has trained.

`HangDetector` finds trainers that stay in one state of progress.json for too long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.errors import LauncherError
from launcher.io import files
from launcher.paths import Position
from launcher.runtimes.runtime_protocol import Runtime
from launcher.schema import TrainerProgress, read_fields
from launcher.settings import TrainSettings

MAX_BYTES = 1 << 14
"""Size in bytes above which progress.json is not read. The limit is needed because a rank's state contains the
progress, and is sent to rank 0 several times a second."""
STATES_BEFORE_TRAINING = ("starting", "joining", "loading")
"""States in which a trainer has not trained a batch since its start, so its pass and batch mean nothing yet."""
LEAST_SECONDS = 180.0
"""A trainer may stay at least this many seconds in every state except `training`, `waiting` and `done`. This is longer
than `Timings.storage`, so that the storage probe reports a hung storage first."""
LONGEST_STAY_FACTOR = 5
"""A trainer may stay in a state for this many times the longest stay in that state so far."""
UNMEASURED_FACTOR = 10
"""A trainer may stay in the state `waiting` for this many times training.progressDeadlineSeconds: 100 minutes by
default. If no trainer of this rank has been in another state before, a trainer may stay in that state for at most the
same time, or longer if a large checkpoint needs more time at BYTES_PER_SECOND."""
BYTES_PER_SECOND = 10e6
"""The lowest speed that is assumed for writing or loading a checkpoint."""
FIXES = {
    "training": "if a batch takes longer, increase training.progressDeadlineSeconds",
    "saving": "see whether the shared storage responds on that rank's node",
    "writing": "see whether the shared storage responds on that rank's node",
    "loading": "see whether the shared storage and the pservers respond on that rank's node",
    "joining": "see whether that rank's node reaches the nodes of the other ranks (lost packets, a network policy)",
    "starting": "see whether that rank's node reaches the nodes of the other ranks (lost packets, a network policy)",
}
"""State of progress.json → the fix in the message about a trainer that hangs in this state."""


SILENT_LOG = (
    "hangs: its log has not grown for {:.0f} s (training.progressDeadlineSeconds), and the script does not report its "
    "steps"
)
SILENT_LOG_FIX = (
    "Fix: let any process of the script log a line at shorter intervals, or report its steps "
    "(launcher.program.ScriptRun); or increase training.progressDeadlineSeconds"
)


def read_progress(settings: TrainSettings) -> TrainerProgress:
    """Return the combined progress of this rank's trainers (`combine_progress`).

    The result has no values if none of the trainers has a readable progress.json.
    """
    paths = map(settings.work.trainer_progress, range(settings.processes_per_pod))
    return combine_progress([progress for path in paths if (progress := _read(path)) is not None])


def _read(path: Path) -> TrainerProgress | None:
    with contextlib.suppress(LauncherError, OSError):  # a user's own program may write anything there
        if path.stat().st_size <= MAX_BYTES and (value := files.read_json(path)):
            progress = read_fields(TrainerProgress, value)
            # The key `saved` without a position: no checkpoint yet. Without the key, this process saves none.
            return replace(progress, saved=progress.saved or Position(0)) if "saved" in value else progress
    return None


def combine_progress(found: Sequence[TrainerProgress]) -> TrainerProgress:
    """Return the progress of the slowest trainer of one pod, with some values that are calculated from all trainers.

    These values are the sums of the speeds and of the batch sizes, the longest time per step and the mean of the
    losses. The position of the newest checkpoint and its size come from the first trainer that reports them.
    """
    if not found:
        return TrainerProgress()
    losses = [each.loss for each in found if each.loss is not None]
    return replace(
        min(found, key=lambda each: (each.number or 0, each.batch or 0)),
        samples_per_second=_sum([each.samples_per_second for each in found]),
        batch_size=_sum([each.batch_size for each in found]),
        step_seconds=max(each.step_seconds or 0.0 for each in found) or None,
        loss=sum(losses) / len(losses) if losses else None,
        saved=next((each.saved for each in found if each.saved is not None), None),
        bytes=next((each.bytes for each in found if each.bytes), found[0].bytes),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


class HangDetector:
    """Finds out whether the trainers of one rank hang in one attempt.

    The trainers hang if the pass, the batch and the state of the slowest trainer have not changed for too long. For a
    user's script, a growing log counts as progress, too, unless its state is `training` or `done`. (A script that
    reports its steps has the state `training` from its first step on, but not during a test.)
    """

    def __init__(
        self,
        settings: TrainSettings,
        runtime: Runtime,
        exit_deadline: float,
        longest_stays: dict[str, float],
    ) -> None:
        """Create the detector before the trainers train.

        Args:
            settings: the settings of this rank.
            runtime: says whether the trainers report their progress, and whether they run a user's script.
            exit_deadline: seconds within which a trainer with the state `done` must exit.
            longest_stays: state → longest time in seconds that a trainer of this rank has spent in this state; the
                detector updates it. It has no entry for the state `training`.
        """
        self._settings, self._runtime = settings, runtime
        self._exit_deadline, self._longest_stays = exit_deadline, longest_stays
        self._place: tuple[object, ...] = ()
        self._state = ""
        self._training_since: float | None = None
        self._entered = self._moved = 0.0
        """Monotonic time at which the state last changed, and that at which the position or the log last changed."""

    def find_hang(self, log_size: int, now: float) -> tuple[str, str] | None:
        """Return (what the trainers do, such as "hangs: no batch for 600 s …", a fix); None if they do not hang.

        Call this again and again while the trainers of this rank train.

        Args:
            log_size: bytes of the logs of all trainers of this rank.
            now: monotonic time.
        """
        if self._training_since is None:
            self._training_since = self._entered = now
        progress, deadline = read_progress(self._settings), self._settings.progress_deadline_seconds
        state = progress.state or ("starting" if self._runtime.reports_progress else "")
        # A script's steps say more than its log, but before the first step, or during a test, it may only log.
        follows_log = self._runtime.is_user_script and state not in ("training", "done")
        place = progress.number, progress.batch, state, log_size if follows_log else None
        if place != self._place:
            self._place, self._moved = place, now
        if state != self._state:
            if self._state not in ("", "training"):
                stay = now - self._entered
                self._longest_stays[self._state] = max(self._longest_stays.get(self._state, 0.0), stay)
            self._state, self._entered = state, now
        if not state:
            is_silent = follows_log and now - self._moved >= deadline
            return (SILENT_LOG.format(deadline), SILENT_LOG_FIX) if is_silent else None
        limit, source = self.find_deadline(state, self._entered - self._training_since, progress.bytes)
        if now - self._moved < limit:
            return None
        what = {"training": "no batch", "done": "done, but not exited"}.get(state, f"still {state}")
        at = f"at pass {(progress.number or 0) + 1}, batch {progress.batch}"
        fix = FIXES.get(state, "see the last lines of its log")
        return f"hangs: {what} for {limit:.0f} s ({source}), {at}", f"Fix: {fix}"

    def find_deadline(self, state: str, before: float, size: float | None) -> tuple[float, str]:
        """Return (seconds that a trainer may stay in `state`, where that number comes from).

        Args:
            state: `state` of progress.json.
            before: seconds from the order `train` until the trainer entered this state.
            size: bytes of the checkpoint that was loaded or saved last; None if unknown.
        """
        deadline, stays = self._settings.progress_deadline_seconds, self._longest_stays
        if state == "training":
            return deadline, "training.progressDeadlineSeconds"
        if state == "done":
            return self._exit_deadline, "for a trainer that is done"
        # Other trainers train or write the model; the coordinator checks that at least one trainer does.
        if state == "waiting":
            return UNMEASURED_FACTOR * deadline, f"{UNMEASURED_FACTOR} times training.progressDeadlineSeconds"
        least = LEAST_SECONDS + (size or 0.0) / BYTES_PER_SECOND
        if state in stays:
            seconds = max(least, LONGEST_STAY_FACTOR * stays[state])
            return seconds, f"{LONGEST_STAY_FACTOR} times its longest stay so far, at least {least:.0f} s"
        known = max(before, LONGEST_STAY_FACTOR * max(stays.values(), default=0.0))
        bound = float("inf") if size is None else known
        first = max(deadline, min(UNMEASURED_FACTOR * deadline, bound))
        return max(first, least), "not measured in this run yet: from training.progressDeadlineSeconds"
