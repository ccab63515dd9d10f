"""Run all passes of one trainer: train, evaluate, save checkpoints, and at the end export the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from launcher import metrics
from launcher.errors import DataError
from launcher.io import checkpoints, files, requested_checkpoints
from launcher.io.metrics_file import write_metrics
from launcher.io.progress_file import ProgressFile
from launcher.paths import OutputPaths, Position
from launcher.trainer import network
from launcher.trainer.evaluation import evaluate_together, finite_scores
from launcher.trainer.export import export_model
from launcher.trainer.fleet_trainer import FleetTrainer
from launcher.trainer.pass_rows import PassRows
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Arrays
from launcher.trainer.save_schedule import SaveSchedule
from launcher.trainer.server_checkpoints import Checkpoints
from launcher.trainer.training_log import PassMeter, PassTotals, TrainerLog


class TrainingLoop:
    """Runs all passes of one trainer. Work that all trainers must do at the same time begins with a barrier."""

    def __init__(
        self, settings: ProcessSettings, program: TrainingProgram, log: TrainerLog, progress: ProgressFile
    ) -> None:
        """Read the rows and build the network."""
        self.settings = settings
        self.program = program
        self.log = log
        self.progress = progress
        self.first = settings.rank == 0
        self.start = settings.resume or Position(0)
        self._prepared = itertools.count(1)
        self.rows = PassRows(settings, program, log.line, self._report_preparation)
        self.test = self.rows.test
        self.trainer = FleetTrainer(settings, program)
        self.trainers = self.trainer.trainers
        log.line(f"network built: {len(self.trainer.network.tables)} embedding tables, mode {settings.mode}")
        self.checkpoints = Checkpoints(self.trainer, log)
        self.scores: list[tuple[int, float]] = []
        """List of (number of finished passes, value of the metric training.keepBest after them) for the run so far. All
        ranks have the same list."""
        self.schedule = SaveSchedule(
            settings.checkpoint_every_batches,
            settings.checkpoint_every_minutes,
            lambda seconds: float(self.trainers.gather([seconds]).max()),
            self._ask,
        )
        self.spent = 0.0
        """Training seconds of this attempt so far."""

    def _ask(self, step: int, proposed: int) -> tuple[bool, int]:
        """Ask rank 0's launcher whether a checkpoint is requested. This is the argument `ask` of `SaveSchedule`."""
        address = f"{self.settings.store_address}_checkpoint/{step}"
        return requested_checkpoints.ask_checkpoint_decision(address, proposed)

    def _report_preparation(self) -> None:
        """Increment the batch number in progress.json: it shows the launcher that a long preparation does not hang."""
        self.progress.set(batch=next(self._prepared))

    def run(self) -> None:
        """Join the servers, train the remaining passes, export the model, and leave the servers.

        An early stop (training.patience) ends the training before the last pass. The exported model has the values
        after the last pass, or with training.keepBest the values after the best pass.
        """
        trainer, start, passes = self.trainer, self.start, self.settings.passes
        totals = self._join()
        self.rows.gather_rows(self.trainers.gather)
        division = self.rows.divide(start.passes)
        steps = division.trained_before + division.steps
        self.log.line(
            f"training starts in pass {start.passes + 1}, after {start.batches} batches: {steps} batches "
            f"per pass, {self.settings.trainer_count} thread(s) per trainer"
        )
        metric = self.settings.keep_best
        if self.first and (self.settings.resume is None or (metric and not self.scores)):
            sample = next(self.rows.staged.blocks(network.ROWS))
            found = network.check_batch(self.program, trainer.predict, sample)
            network.check_metric(self.program, metric, found)
        if self.settings.init_model and self.settings.resume is None:
            self._evaluate_initial_model()
        done = start.passes
        while done < passes and not self._stops_early():
            self._train_pass(done, totals)
            done, totals = done + 1, PassTotals()
        self.progress.set(state="saving")
        self._report_published("saving", wait=True)
        if self._stops_early():
            self.log.line(f"stopped early after pass {done}: training.patience is {self.settings.patience}")
        if (source := self._model_source(done)) is not None:
            if source.passes != done or (done == start.passes and start.batches):
                contents = self.settings.read_checkpoint(source)
                self.progress.set(state="loading", bytes=checkpoints.total_bytes(contents))
                self.checkpoints.restore(contents)
            self._export(source)
        self.progress.set(state="done")
        trainer.leave()
        self.log.line("done")

    def _stops_early(self) -> bool:
        """Return whether to stop early, because the score did not improve in the last `training.patience` passes."""
        return metrics.stops_early(self.settings.keep_best, self.scores, self.settings.patience)

    def _join(self) -> PassTotals:
        """Connect to the servers, and load the checkpoint to resume from or the initial model.

        Return this rank's totals of the unfinished pass.
        """
        size = None if self.settings.init_model else 0
        if self.settings.resumed is not None:
            size = checkpoints.total_bytes(self.settings.resumed)
        position = {"pass": self.start.passes, "batch": self.start.batches}
        self.progress.set(**position, state="joining", bytes=size)
        initial = self.checkpoints.prepare()
        self.trainer.join()
        self.progress.mark("joined", state="loading")
        totals, self.scores = self.checkpoints.load(initial)
        self.progress.mark("loaded")
        if self.settings.resume is not None:
            self.progress.set(saved=self.settings.resume)
        return totals

    def _train_pass(self, number: int, totals: PassTotals) -> None:
        """Train the pass `number` (from 0), save checkpoints when they are due, and evaluate at the end.

        A resumed pass begins after the batches that are trained already. `totals` has the sums of these batches, and
        each further batch is added to these sums.
        """
        self.division = division = self.rows.divide(number)
        before = division.trained_before
        batches = self._report_position(number)
        meter = PassMeter(number, totals, self._show_batch, before + division.done)
        self.progress.resume_training()
        while meter.batch < before + division.steps:
            span = self.schedule.next_span(before + division.steps - meter.batch)
            meter.start_clock()
            self.trainer.train(batches, span, meter.add_batch)
            self.spent += meter.stop_clock()
            if self.schedule.record(span, self.spent) and meter.batch < before + division.steps:
                self._settle("saving")
                self._save(Position(number, meter.batch), totals)
                self.progress.resume_training()
        self._finish_pass(number, totals)

    def _show_batch(self, meter: PassMeter, loss: float) -> None:
        self._report_published("training")
        self.log.batch(meter, loss)
        self.trainer.clock.add_step()
        own = self.trainer.clock.step_seconds
        self.progress.stepped(samples_per_second=round(meter.rate, 1), loss=meter.average, step_seconds=own)

    def _report_position(self, number: int) -> Iterator[Arrays]:
        """Yield the batches of pass `number` that are not trained yet. Record each batch's number for progress.json."""
        division, before = self.division, self.division.trained_before
        batches = self.rows.batches(division, number, self.program.seed)
        for batch, arrays in enumerate(batches, before + division.done + 1):
            # Recorded before the batch is trained: if it fails, the launcher knows its position.
            self.progress.note(**{"pass": number}, batch=batch, batches=before + division.steps)
            yield arrays

    def _finish_pass(self, number: int, totals: PassTotals) -> None:
        """Evaluate after pass `number` (from 0), write metrics.csv, and save a checkpoint if one is due."""
        last = number == self.settings.passes - 1
        self._settle("testing")
        loss = totals.loss / max(totals.samples, 1.0)  # no samples if this trainer joined after the last row
        gathered = self.trainers.gather([totals.samples, totals.seconds, loss]).tolist()
        ranks = [(int(samples), seconds, mean) for samples, seconds, mean in gathered]
        shown = ""
        tests = evaluate_together(self.program, self.trainer, self.test)
        if self.first:
            shown = _format_scores(tests)
            write_metrics(self.settings.layout.output, number, self.settings.attempt, ranks, tests)
        self.log.line(
            f"Pass={number + 1} samples={int(totals.samples)} AvgCost={loss:.6g} seconds={totals.seconds:.2f}{shown}"
        )
        improved = bool(self.settings.keep_best) and self._improves(number + 1, tests)
        if self._stops_early():
            last = True
            self.progress.note(passes=number + 1)  # tells an elastic run to add no rank after this pass
        if last or improved or (number + 1) % self.settings.saving_period == 0 or self.schedule.is_due:
            self._save(Position(number + 1), PassTotals())

    def _improves(self, done: int, tests: Mapping[str, float]) -> bool:
        """Add the value of the metric training.keepBest to `scores`. Return whether it is the best value so far.

        All trainers call this together, because trainer 0 sends the value to all ranks. The value is rounded as in
        metrics.csv.

        Args:
            done: number of finished passes.
            tests: metric → value on the test set; only trainer 0 uses it.
        """
        metric, scores = self.settings.keep_best, self.scores
        if self.first:  # the check before training may have had no scores
            network.check_metric(self.program, metric, tests)
        value = float(f"{tests.get(metric, math.nan) if self.first else 0.0:.6g}")
        scores.append((done, float(self.trainers.gather([value])[0, 0])))
        return metrics.rank_passes(metric, scores)[:1] == [done]

    def _settle(self, state: str) -> None:
        """Wait until the updates of all trainers have arrived at the servers.

        `state` is the state in progress.json of the step that follows, for example `testing`. The launcher has a
        deadline for each state. While this trainer waits for the batches of other trainers, progress.json has the state
        `waiting` instead, so that this time does not count towards the deadline of `state`.
        """

        def barrier() -> None:
            self.progress.set(state="waiting")
            self.trainers.barrier()
            self.progress.set(state=state)

        self.progress.set(state=state)
        self.trainer.settle(barrier)

    def _evaluate_initial_model(self) -> None:
        """Evaluate the model of training.initModelPath on the test set before training, and write before.json."""
        self.progress.set(state="testing")
        tests = evaluate_together(self.program, self.trainer, self.test)
        if self.first:
            source = self.settings.init_model
            about = {"from": source, "attempt": self.settings.attempt, "score": finite_scores(tests)}
            files.write_json(OutputPaths(self.settings.layout.output).before_json, about)
            self.log.line(f"before training, with the parameters of {source}:{_format_scores(tests)}")
        self.trainers.barrier()

    def _save(self, at: Position, totals: PassTotals) -> None:
        """Wait until the previous checkpoint is complete, then start to save a checkpoint of the current state.

        If this checkpoint was requested, or if new ranks wait to join, all trainers are stopped when it is complete.
        Batches that are trained meanwhile would be lost, so in these two cases also wait until it is complete.

        Args:
            at: position of the training.
            totals: this rank's totals of the unfinished pass; all 0 at the end of a pass.
        """
        # All ranks decide together: in mode sync, a trainer that waits alone would block the others' next batch.
        is_held = self.trainers.gather([requested_checkpoints.is_held(self.settings.store_address)]).max() > 0
        stops = self.schedule.requested or is_held
        self.progress.set(state="saving")
        self._report_published("saving", wait=True)
        self.checkpoints.save(at, totals, self.division, self.scores)
        # From this size the launcher calculates the deadline of the next checkpoint.
        self.progress.note(bytes=self.checkpoints.expected_bytes)
        self.schedule.reset()
        if stops:
            self._report_published("saving", wait=True)

    def _report_published(self, state: str, *, wait: bool = False) -> None:
        """If a checkpoint is complete, write its position to progress.json, and remove the user's request for it.

        In this case progress.json has the state `state` afterwards.

        With `wait`, first wait until the checkpoint that is being written is complete. At the end also wait if the
        launcher is about to stop all trainers. All trainers make such a call after the same batch.

        Without `wait`, the trainers may make the call after different batches. Therefore it does not wait: in mode sync
        the other trainers could not finish their batch meanwhile.
        """
        at = self.checkpoints.published(wait=wait)
        if at is None:
            return
        self.progress.note(bytes=self.checkpoints.expected_bytes)
        self.progress.set(saved=at)
        if self.first:
            path = OutputPaths(self.settings.layout.output).checkpoint_request
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the checkpoint is complete; the user's command does not notice it
                self.log.line(
                    f"the requested checkpoint {at.folder} is saved, but {path} cannot be removed, so "
                    f"`python -m launcher stop` does not notice: {error}. Fix: remove this file"
                )
        if wait:
            self.progress.set(state="waiting")
            requested_checkpoints.wait_while_held(self.settings.store_address)
        self.progress.set(state=state)

    def _model_source(self, done: int) -> Position | None:
        """Return the position of the checkpoint from which to export the model; None if the model already exists.

        `done` is the number of finished passes. All trainers call this together, and trainer 0 decides.

        Raises:
            DataError: there is no intact checkpoint of this pass.
        """
        output, passes = OutputPaths(self.settings.layout.output), 0
        if self.first:
            made = checkpoints.model_checkpoint(output.model) if done == self.start.passes else ""
            metric, scores = self.settings.keep_best, self.scores
            source = checkpoints.choose_model_checkpoint(output.root, metric, scores, done, made)
            passes = -1 if source is None else 0 if made == source.folder else source.passes
        passes = int(self.trainers.gather([passes])[0, 0])
        if passes < 0:
            raise DataError(
                f"cannot export a model: {output.root} has no intact checkpoint of pass {done}. Fix: restore "
                "one from a copy; or train again: set `startFromScratch` to any new text, and another runId"
            )
        return Position(passes) if passes else None

    def _export(self, at: Position) -> None:
        """Export the model with the values of the checkpoint `at`."""
        self.progress.set(state="writing")
        export_model(self.program, self.trainer, self.log, self.test, at)


def _format_scores(tests: Mapping[str, float]) -> str:
    return "".join(f" test_{name}={value:.4f}" for name, value in tests.items())
