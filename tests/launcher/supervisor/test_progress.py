"""Tests of the combined progress of several trainers in one pod."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.settings import TrainSettings
from launcher.supervisor.progress import combine_progress, read_progress
from tests.launcher.supervisor.loopback_gang import pod_environ


def test_the_slowest_trainer_decides_the_place_and_all_together_the_speed() -> None:
    first = {
        "pass": 1,
        "batch": 5,
        "state": "saving",
        "samples_per_second": 10.0,
        "loss": 2.0,
        "batch_size": 4,
    }
    second = {**first, "batch": 4, "state": "training", "loss": 4.0}
    saved = {"saved": {"pass": 1, "batch": 0}, "bytes": 7}
    combined = combine_progress([{**first, **saved}, {**second, "bytes": 0}])
    assert combined == {**second, "samples_per_second": 20.0, "loss": 3.0, "batch_size": 8, **saved}
    assert combine_progress([first, {**first, "state": "training"}])["state"] == "saving", (
        "the others wait for it"
    )
    assert combine_progress([first]) is first
    assert combine_progress([]) == {}


def test_trainers_without_a_readable_file_are_left_out(tmp_path: Path) -> None:
    env = {"RUNTIME": "collective", "PROCESSES_PER_POD": "3", "WORK_DIR": str(tmp_path)}
    settings = TrainSettings.from_environ(
        pod_environ(**{f"PADDLE_LAUNCHER_{key}": text for key, text in env.items()})
    )
    assert read_progress(settings) == {}
    (tmp_path / "progress-1.json").write_text("{")
    (tmp_path / "progress-2.json").write_text(json.dumps({"pass": 1, "batch": 2}))
    assert read_progress(settings) == {"pass": 1, "batch": 2}
