"""Tests of progress.json, which a user's own program may write with any content, and of the deadlines of its states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.io.progress_file import ProgressFile
from launcher.paths import Position
from launcher.runtimes.v1 import V1Runtime
from launcher.schema import TrainerProgress
from launcher.settings import TrainSettings
from launcher.supervisor.progress import (
    BYTES_PER_SECOND,
    LEAST_SECONDS,
    MAX_BYTES,
    HangDetector,
    combine_progress,
    find_state_deadline,
    read_progress,
)
from tests.launcher.supervisor.loopback_gang import pod_environ


def make_settings(work_dir: Path, processes: int = 1) -> TrainSettings:
    given = {"runtime": "collective", "processes_per_pod": processes, "work_dir": work_dir}
    return TrainSettings.from_environ(pod_environ(**given))


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, settings = tmp_path / "progress.json", make_settings(tmp_path)
    written = ProgressFile(path)
    written.set(**{"pass": 1, "batch": 2}, loss=float("nan"), state="training")
    assert read_progress(settings) == TrainerProgress(
        1, 2, 0, 0.0, None, "training", saved=Position(0), bytes=0.0
    )
    written.set(saved=Position(1, 20), bytes=7)
    found = read_progress(settings)
    assert (found.saved, found.bytes) == (Position(1, 20), 7.0)
    ProgressFile(path, saves=False).write()
    assert read_progress(settings).saved is None, "this process saves no checkpoints"


def test_the_slowest_trainer_decides_the_place_and_all_together_the_speed() -> None:
    first = TrainerProgress(1, 5, samples_per_second=10.0, loss=2.0, state="saving", batch_size=4.0)
    second = replace(first, batch=4, state="training", loss=4.0, bytes=0.0)
    saving = replace(first, saved=Position(1), bytes=7.0)
    assert combine_progress([saving, second]) == replace(
        second, samples_per_second=20.0, loss=3.0, batch_size=8.0, saved=Position(1), bytes=7.0
    )
    assert combine_progress([first, replace(first, state="training")]).state == "saving", (
        "the others wait for it"
    )
    assert combine_progress([first]) == first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"pass": "1", "batch": true, "loss": "low", "state": 3, "saved": [1], "bytes": null}',
            {"bytes": None, "saved": Position(0)},
        ),
        ('{"batch": 2, "saved": {"pass": 1}}', {"batch": 2, "saved": Position(1)}),
        ('{"batch": 2, "saved": {}}', {"batch": 2, "saved": Position(0)}),
        ('{"batch": 2, "saved": {"pass": -1, "batch": 0}}', {"batch": 2, "saved": Position(0)}),
        ('{"batch": 1e400}', {}),
        ('{"batch": 2, "loss": NaN}', {}),
        ('{"batch": 2, "loss": -Infinity}', {}),
        ("{", {}),
        (json.dumps({"batch": 1, "note": "x" * MAX_BYTES}), {}),
        ('{"batch": ' + "[" * 5_000, {}),
    ],
    ids=[
        "types",
        "position",
        "no position",
        "negative",
        "infinite",
        "nan",
        "minus infinite",
        "no JSON",
        "long",
        "deep",
    ],
)
def test_wrong_values_and_unreadable_files_are_left_out(
    tmp_path: Path, text: str, expected: dict[str, Any]
) -> None:
    """A rank whose state is too long for rank 0 would count as lost."""
    settings = make_settings(tmp_path, processes=3)
    assert read_progress(settings) == TrainerProgress()
    (tmp_path / "progress-1.json").write_text(text)
    assert read_progress(settings) == TrainerProgress(**expected)
    (tmp_path / "progress-2.json").write_text('{"pass": -1}')
    assert read_progress(settings).number == -1


GB = 1_000_000_000


def seconds(state: str, **changes: Any) -> float:
    known: dict[str, Any] = {
        "progress_deadline": 600.0,
        "exit_deadline": 60.0,
        "longest_stays": {},
        "before": 0.0,
        "size": 0.0,
    }
    return find_state_deadline(state, **{**known, **changes})[0]


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        ("training", {"longest_stays": {"training": 9999.0}}, 600),
        ("done", {}, 60),
        ("saving", {"longest_stays": {"saving": 3.0}}, LEAST_SECONDS),
        ("saving", {"longest_stays": {"saving": 100.0}}, 500),
        ("saving", {"longest_stays": {"saving": 3.0}, "progress_deadline": 10.0}, LEAST_SECONDS),
        ("saving", {"longest_stays": {"saving": 20.0}, "size": 5.0 * GB}, LEAST_SECONDS + 500),
        (
            "joining",
            {"longest_stays": {"joining": 2.0}, "size": 40.0 * GB},
            LEAST_SECONDS + 40 * GB / BYTES_PER_SECOND,
        ),
        ("saving", {"before": 1200.0}, 1200),
        ("saving", {"before": 99999.0}, 6000),
        ("saving", {"longest_stays": {"loading": 300.0}}, 1500),
        ("starting", {}, 600),
        ("starting", {"progress_deadline": 10.0}, LEAST_SECONDS),
        ("loading", {"size": 400.0 * GB}, LEAST_SECONDS + 400 * GB / BYTES_PER_SECOND),
        ("loading", {"size": None}, 6000),
        ("waiting", {"longest_stays": {"waiting": 2.0}}, 6000),
    ],
)
def test_the_deadline_of_a_state_follows_from_earlier_stays_and_sizes(
    state: str, changes: dict[str, Any], expected: float
) -> None:
    assert seconds(state, **changes) == expected


FLEET, SCRIPT = {"reports_progress": True}, {"is_user_script": True}
NO_BATCH = "hangs: no batch for {} s (training.progressDeadlineSeconds), at pass 1, batch 4"
SILENT = "hangs: its log has not grown for 600 s (training.progressDeadlineSeconds)"


@pytest.mark.parametrize(
    ("runtime", "deadline", "steps"),
    [
        (FLEET, 600, [(0, "", 0, ""), (590, "", 0, ""), (610, "", 0, "hangs: still starting for 600 s")]),
        (SCRIPT, 600, [(0, "", 0, ""), (590, "", 0, ""), (610, "", 0, SILENT), (1210, "", 0, SILENT),
                       (1220, "", 7, ""), (1225, "", 0, "")]),
        *(
            (SCRIPT, 600, [(0, state, 0, ""), (300, state, 1, ""), (600, state, 2, ""), (720, state, 3, ""),
                           (4320, state, 3, f"hangs: still {state} for 600 s")])
            for state in ("starting", "testing")
        ),
        (SCRIPT, 600, [(0, "training", 0, ""), (590, "training", 1, ""), (610, "training", 2, NO_BATCH.format(600))]),
        (FLEET, 10, [(0, "starting", 0, ""), (11, "starting", 0, ""), (11, "saving", 0, ""), (22, "saving", 0, ""),
                     (22, "testing", 0, ""), (33, "testing", 0, ""), (33, "training", 0, ""),
                     (44, "training", 0, NO_BATCH.format(10))]),
        *(
            (FLEET, 600, [(0, state, 0, ""), (50, "training", 0, ""), (90, state, 0, ""), (339, state, 0, ""),
                          (341, state, 0, f"hangs: still {state} for 250 s (5 times its longest stay so far, at least "
                           "180 s)")])
            for state in ("starting", "joining", "loading", "saving")
        ),
        (FLEET, 600, [(0, "done", 0, ""), (50, "done", 0, ""),
                      (61, "done", 0, "hangs: done, but not exited for 60 s (for a trainer that is done), at pass 1")]),
    ],
    ids=[
        "fleet never reports", "a script's log stays silent, grows, is removed", "a starting script logs",
        "a testing script logs", "a script with steps only logs", "the deadline is for training only",
        "starting", "joining", "loading", "saving", "done",
    ],
)  # fmt: skip
def test_trainers_hang_when_neither_place_nor_state_nor_the_log_of_a_script_without_steps_changes(
    tmp_path: Path, runtime: dict[str, bool], deadline: int, steps: list[tuple[int, str, int, str]]
) -> None:
    """A step is (second, state in progress.json, size of the logs, start of the text about the hang).

    Regression: a script that prepared its data for long, and logged that, was restarted again and again. A trainer that
    hung while it saved was found after 100 minutes.
    """
    settings = replace(make_settings(tmp_path), progress_deadline_seconds=deadline)
    described = V1Runtime()
    vars(described).update(runtime)
    detector = HangDetector(settings, described, 60.0, {})
    for second, state, log_size, expected in steps:
        if state:
            written = {"state": state, "pass": 0, "batch": 4, "bytes": 0}
            (tmp_path / "progress.json").write_text(json.dumps(written))
        text, fix = detector.find_hang(log_size, 1000.0 + second) or ("", "Fix: ")
        assert (text[: len(expected)], bool(text)) == (expected, bool(expected)), second
        assert fix.startswith("Fix: ")
