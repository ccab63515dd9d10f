"""Callbacks for training loops of libraries: `paddle.Model.fit`, and the `Trainer` of PaddleNLP and PaddleFormers.

They report steps, save and restore checkpoints, and record scores through a `ScriptRun`. docs/how-to/own-script.md has
examples. This module imports Paddle only in `hapi_callback`, and neither PaddleNLP nor PaddleFormers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.script_run import ScriptRun

NO_SCORES = ("step", "batch_size", "samples")
"""Keys in the logs of `paddle.Model.evaluate` that are not scores."""
NO_TRAINER_SCORES = (
    "epoch",
    "progress_or_epoch",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "cpu_used_memory",
    "cpu_available_memory",
)
"""Metrics of `Trainer.evaluate`, without the prefix eval_, that are not scores."""


def hapi_callback(run: ScriptRun) -> Any:
    """Return a `paddle.callbacks.Callback` for `model.fit(…, epochs=run.epochs, callbacks=[hapi_callback(run)])`.

    Process 0 saves parameters and optimizer after each epoch and when `run.should_save()` says so. After a restart
    `fit` reads the data of the finished steps again without training, so that all later steps get the data that they
    would have had, and then continues with the saved state.
    """
    from paddle.callbacks import Callback

    class ScriptRunCallback(Callback):  # type: ignore[misc]
        """Connects `paddle.Model.fit` with the launcher."""

        def on_train_begin(self, *_: object) -> None:
            self._place = (0, 0)
            self._is_epoch_done = self._is_save_due = False
            self._scores: dict[str, float] = {}
            self._testing = contextlib.ExitStack()
            self._batch_functions: dict[str, Callable[..., Any]] = {}
            if run.checkpoint:
                self._batch_functions = {
                    name: getattr(self.model, name) for name in ("train_batch", "eval_batch")
                }
                for name in self._batch_functions:
                    setattr(self.model, name, self._skip_batch)

        def _skip_batch(self, *_: object, **__: object) -> Any:
            """Do not train the batch; return the loss 0, in the form in which `fit` expects the result of a batch."""
            return ([0.0], []) if self.model._metrics else [0.0]

        def _restore(self) -> None:
            """Load the checkpoint, and train from the next step on.

            This is called after the last skipped step: a skipped step changes the learning rate, too, and would change
            the learning rate that the checkpoint restores.
            """
            for name, function in self._batch_functions.items():
                setattr(self.model, name, function)
            self._batch_functions = {}
            self.model.load(f"{run.checkpoint}/model")

        def on_epoch_begin(self, epoch: int, *_: object) -> None:
            self._finish_epoch()
            self._place = (epoch, 0)

        def on_train_batch_begin(self, *_: object) -> None:
            if self._batch_functions and self._place >= run.start:
                self._restore()
            # This is not done at the end of the step before: only now all callbacks, such as LRScheduler, have handled
            # that step.
            if self._is_save_due:
                self._save()

        def on_train_batch_end(self, step: int, logs: Mapping[str, Any]) -> None:
            epoch = self._place[0]
            self._place = (epoch, step + 1)
            if self._batch_functions:
                return
            samples = max(1, int(logs["batch_size"]) // run.world_size)
            run.report(epoch, step + 1, self.params["steps"] or 0, loss=_first(logs["loss"]), samples=samples)
            # Between two updates of the parameters, a checkpoint would lack the gradients of the steps before.
            self._is_save_due = (step + 1) % self.model._accumulate == 0 and run.should_save()

        def on_epoch_end(self, *_: object) -> None:
            self._is_epoch_done = not self._batch_functions

        def on_eval_begin(self, *_: object) -> None:
            self._testing.enter_context(run.testing())

        def on_eval_end(self, logs: Mapping[str, Any]) -> None:
            self._testing.close()
            self._scores = {key: _first(value) for key, value in logs.items() if key not in NO_SCORES}

        def on_train_end(self, *_: object) -> None:
            if self._batch_functions:
                self._restore()
            self._finish_epoch()

        def _finish_epoch(self) -> None:
            """Record and save the epoch that has ended, if an epoch has ended.

            `fit` evaluates the model after `on_epoch_end`. So this is called later than `on_epoch_end`, when the scores
            of the epoch exist.
            """
            if self._is_epoch_done:
                run.end_epoch(self._place[0], **self._scores)
                self._place = (self._place[0] + 1, 0)
                self._save()
            self._is_epoch_done, self._scores = False, {}

        def _save(self) -> None:
            self._is_save_due = False
            if run.rank == 0:
                with run.save(*self._place) as folder:
                    self.model.save(f"{folder}/model")

    return ScriptRunCallback()


def _first(value: Any) -> float:
    """Return a value of the logs of `paddle.Model` as a number; a loss is in a list, of which the first one counts."""
    return float(value[0] if isinstance(value, (list, tuple)) else value)


class TrainerCallback:
    """A callback for the `Trainer` of PaddleNLP and PaddleFormers: `Trainer(…, callbacks=[TrainerCallback(run)])`.

    All processes save together: `Trainer` writes its folder `checkpoint-N` into a checkpoint of the run. Give
    `resume_from` to `trainer.train(resume_from_checkpoint=…)`.

    Attributes:
        resume_from: the folder from which `Trainer` resumes; None at the start of a run.
    """

    def __init__(self, run: ScriptRun, every: int = 10) -> None:
        """Create the callback.

        Args:
            run: the `ScriptRun` of this process.
            every: the callback lets `Trainer` log, and asks the launcher whether to save, once in this number of steps.
        """
        self._run, self._every = run, every
        self._save = contextlib.ExitStack()
        self._output_dir: str | None = None
        self._logged_step = 0
        self._epoch: int | None = None
        """The epoch that has ended and is not recorded yet; None if there is none."""
        self._scores: dict[str, float] = {}
        found = sorted(run.checkpoint.glob("checkpoint-*")) if run.checkpoint else []
        self.resume_from: Path | None = found[0] if found else None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for all events without a method here."""
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)

    def on_train_begin(self, args: Any, state: Any, *_: object, **__: object) -> None:
        """Check the arguments of the training, and set the number of epochs of the run to that of `Trainer`.

        Raises:
            ValueError: `load_best_model_at_end` is set.
        """
        if getattr(args, "load_best_model_at_end", False):
            raise ValueError(
                "load_best_model_at_end is True, but must be False: the launcher moves each checkpoint when it is "
                "complete, so Trainer does not find the best one. Fix: remove this argument"
            )
        self._run.epochs = math.ceil(state.num_train_epochs)
        self._logged_step = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Every `every` steps, let `Trainer` log, and let it save if `run.should_save()` says so.

        At the last step of an epoch `Trainer` does not save, because `on_epoch_end` saves together with the scores. If
        `Trainer` saves after this step, it writes its checkpoint into a new checkpoint folder of the run.
        """
        if state.global_step % self._steps(state) == 0:
            control.should_save = False  # the end of the epoch saves, with its scores
        elif state.global_step % self._every == 0:
            control.should_log = True
            if self._run.should_save(all_ranks=True):
                control.should_save = True
        self._prepare_save(args, state, control)

    def on_log(self, args: Any, state: Any, *_: object, logs: Mapping[str, Any], **__: object) -> None:
        """Report the steps since the newest report with their mean loss; do nothing if `logs` has no loss."""
        if "loss" not in logs:
            return
        steps, samples = (
            self._steps(state),
            args.per_device_train_batch_size * args.gradient_accumulation_steps,
        )
        for number in range(self._logged_step, state.global_step):
            epoch, step = divmod(number, steps)
            self._run.report(epoch, step + 1, steps, loss=float(logs["loss"]), samples=samples)
        self._logged_step = state.global_step

    def on_evaluate(self, *_: object, metrics: Mapping[str, Any], **__: object) -> None:
        """Keep the scores for the end of the epoch."""
        scores = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        self._scores = {
            name: float(value)
            for name, value in scores.items()
            if isinstance(value, (int, float)) and name not in NO_TRAINER_SCORES
        }

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        """Record the previous epoch, unless `on_save` has recorded it already."""
        self._finish_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """Let `Trainer` log and save at the end of the epoch, into a new checkpoint folder of the run."""
        control.should_log = control.should_save = True
        self._epoch = max(0, math.ceil(state.global_step / self._steps(state)) - 1)
        self._prepare_save(args, state, control)

    def on_save(self, args: Any, *_: object, **__: object) -> None:
        """Record the epoch if it has ended, and then publish the checkpoint that `Trainer` has written."""
        self._finish_epoch()
        if self._output_dir is not None:
            args.output_dir, self._output_dir = self._output_dir, None
            self._save.close()

    def on_train_end(self, *_: object, **__: object) -> None:
        """Record the last epoch."""
        self._finish_epoch()

    def _prepare_save(self, args: Any, state: Any, control: Any) -> None:
        """If `Trainer` will save now, let it write into a new checkpoint folder of the run.

        `args.output_dir` is the path of that folder until `on_save` restores the original value.
        """
        if control.should_save and self._output_dir is None:
            folder = self._save.enter_context(self._run.save(*self._position(state), all_ranks=True))
            self._output_dir, args.output_dir = args.output_dir, str(folder)

    def _finish_epoch(self) -> None:
        if self._epoch is not None:
            self._run.end_epoch(self._epoch, **self._scores)
        self._epoch, self._scores = None, {}

    def _steps(self, state: Any) -> int:
        """Return the number of steps of an epoch."""
        return max(1, math.ceil(int(state.max_steps) / max(1, int(state.num_train_epochs))))

    def _position(self, state: Any) -> tuple[int, int]:
        """Return (epoch, step) at which training continues."""
        return divmod(int(state.global_step), self._steps(state))
