"""Tests of progress.json, which a user's own program may write with any content, and of the deadlines of its states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    tmp_path: Path, state: str, changes: dict[str, Any], expected: float
) -> None:
    deadline, stays = changes.get("progress_deadline", 600.0), changes.get("longest_stays", {})
    settings = replace(make_settings(tmp_path), progress_deadline_seconds=deadline)
    detector = HangDetector(settings, V1Runtime(), 60.0, stays)
    assert detector.find_deadline(state, changes.get("before", 0.0), changes.get("size", 0.0))[0] == expected


HANGS = yaml.safe_load(Path(__file__).with_name("hangs.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", HANGS.values(), ids=HANGS)
def test_trainers_hang_when_neither_place_nor_state_nor_the_log_of_a_script_without_steps_changes(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    settings = replace(make_settings(tmp_path), progress_deadline_seconds=case.get("deadline", 600))
    runtime = V1Runtime()
    setattr(runtime, case["runtime"], True)
    detector = HangDetector(settings, runtime, 60.0, {})
    for second, state, log_size, *expected in case["steps"]:
        if state:
            written = {"state": state, "pass": 0, "batch": 4, "bytes": 0}
            (tmp_path / "progress.json").write_text(json.dumps(written))
        text, fix = detector.find_hang(log_size, 1000.0 + second) or ("", "Fix: ")
        assert bool(text) == bool(expected), second
        assert text.startswith(tuple(expected) or "")
        assert fix.startswith("Fix: ")
