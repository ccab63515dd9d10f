"""Tests of the callback for PaddleNLP's `Trainer`, with a stand-in that calls the events as PaddleNLP 2.8.1 does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.io import checkpoints
from launcher.metrics import parse_metrics
from launcher.paths import Position
from launcher.program import ScriptRun, TrainerCallback

EPOCHS, STEPS = 2, 7


def build_run(root: Path, resume: str = "") -> ScriptRun:
    return ScriptRun(
        {
            "PADDLE_LAUNCHER_OUTPUT_DIR": str(root / "output"),
            "PADDLE_LAUNCHER_RESUME": resume,
            "PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES": "3",
        }
    )


def train(
    callback: TrainerCallback, plain: Path, last: int = EPOCHS * STEPS, save_steps: int = 100
) -> list[int]:
    """Do what `Trainer.train` does until step `last`, with `save_steps`; return the steps that were trained."""
    args = SimpleNamespace(
        output_dir=str(plain), per_device_train_batch_size=8, gradient_accumulation_steps=2
    )
    state = SimpleNamespace(global_step=0, max_steps=EPOCHS * STEPS, num_train_epochs=EPOCHS)
    control = SimpleNamespace(should_log=False, should_save=False)
    if callback.resume_from:
        state.global_step = json.loads((callback.resume_from / "trainer_state.json").read_text())

    def call(event: str, **values: Any) -> None:
        getattr(callback, event)(args, state, control, model=None, **values)

    def log_evaluate_and_save(*, evaluates: bool) -> None:
        if control.should_log:
            control.should_log = False
            call("on_log", logs={"loss": 0.5, "learning_rate": 0.1})
        if evaluates:
            call("on_evaluate", metrics={"eval_accuracy": 0.9, "eval_runtime": 1.0, "epoch": 1.0})
        if control.should_save:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps(state.global_step))
            control.should_save = False
            call("on_save")

    trained = []
    call("on_init_end")
    call("on_train_begin")
    while state.global_step < last:
        if state.global_step % STEPS == 0 or not trained:
            call("on_epoch_begin")
        state.global_step += 1
        trained.append(state.global_step)
        control.should_save = state.global_step % save_steps == 0
        call("on_step_end")
        log_evaluate_and_save(evaluates=False)
        if state.global_step % STEPS == 0:
            call("on_epoch_end")
            log_evaluate_and_save(evaluates=True)
    if last == EPOCHS * STEPS:
        call("on_train_end")
    assert args.output_dir == str(plain), "what the script saves later is not part of a checkpoint"
    return trained


def test_a_trainer_continues_from_the_newest_checkpoint_and_its_scores_are_recorded(tmp_path: Path) -> None:
    output = tmp_path / "output"
    first = TrainerCallback(build_run(tmp_path), every=2)
    assert first.resume_from is None
    train(first, tmp_path / "plain", last=12)
    assert checkpoints.finished_checkpoints(output) == [Position(1, 5), Position(1), Position(0, 6)]
    run = build_run(tmp_path, Position(1, 5).folder)
    callback = TrainerCallback(run, every=2)
    assert callback.resume_from == output / Position(1, 5).folder / "checkpoint-12"
    assert train(callback, tmp_path / "plain") == [13, 14]
    assert run.epochs == EPOCHS
    assert checkpoints.newest_checkpoint(output) == Position(2)
    rows = parse_metrics((output / "metrics.csv").read_text())
    assert [(row.number, row.tests) for row in rows] == [(0, {"accuracy": 0.9}), (1, {"accuracy": 0.9})]
    assert rows[0].samples == STEPS * 16
    assert not (tmp_path / "plain").exists()


def test_an_epoch_is_recorded_before_its_checkpoint_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: after a kill between the two, no attempt recorded the epoch."""
    publish = ScriptRun._publish

    def publish_after_record(run: ScriptRun, *given: Any) -> None:
        assert (tmp_path / "output" / "metrics.csv").exists()
        publish(run, *given)

    monkeypatch.setattr(ScriptRun, "_publish", publish_after_record)
    callback = TrainerCallback(build_run(tmp_path))
    train(callback, tmp_path / "plain", last=STEPS, save_steps=STEPS)
    assert checkpoints.newest_checkpoint(tmp_path / "output") == Position(1)
    [row] = parse_metrics((tmp_path / "output" / "metrics.csv").read_text())
    assert (row.number, row.samples, row.tests) == (0, STEPS * 16, {"accuracy": 0.9})


def test_load_best_model_at_end_is_rejected(tmp_path: Path) -> None:
    callback = TrainerCallback(build_run(tmp_path))
    with pytest.raises(ValueError, match=r"load_best_model_at_end is True.*Fix: remove this argument"):
        callback.on_train_begin(
            SimpleNamespace(load_best_model_at_end=True), SimpleNamespace(), SimpleNamespace()
        )
