"""The passes of one trainer: train, test, save, and at the end the model."""

from __future__ import annotations

import itertools
import time

import numpy as np

from launcher.errors import DataError, DivergedError
from launcher.layout import Output, Position
from launcher.worker import model, outputs, samples
from launcher.worker.books import Log, Progress, add_metrics
from launcher.worker.keeping import Keeper, Sums
from launcher.worker.program import Program
from launcher.worker.schedule import Schedule
from launcher.worker.settings import WorkerSettings
from launcher.worker.trainer import Trainer


class Loop:
    """Trainer `rank`'s way through the passes. Whatever all must do together is marked by a barrier."""

    def __init__(self, settings: WorkerSettings, program: Program, log: Log, progress: Progress) -> None:
        self.settings = settings
        self.program = program
        self.log = log
        self.progress = progress
        self.first = settings.rank == 0
        self.train, *self.test = self._read()
        self.start = settings.resume or Position(0)
        self.seed = int(program.worker_options["seed"])
        self.trainer = Trainer(settings, program)
        log.line(f"network built: {len(self.trainer.network.tables)} embedding tables, mode {settings.mode}")
        self.config = settings.program_dir / settings.config_file
        self.keeper = Keeper(settings, self.trainer, log, self.config, self.seed)
        self.schedule = Schedule(settings.save_every_batches, settings.save_every_minutes, self._slowest)
        self.spent = 0.0
        """Seconds of all steps of this attempt."""

    def _slowest(self, value: float) -> float:
        return float(self.trainer.gather([value]).max())

    def _read(self) -> list[samples.Samples]:
        data = self.settings.data_dir
        found = []
        for file in ("train.txt", "test.txt") if self.first else ("train.txt",):  # rank 0 alone tests
            name = f"{self.settings.rank}/data/{file}"  # as it is called below the job's folder
            rows = samples.read(data / file, self.program, self.progress.write, name)
            samples.check_labels(rows, name, self.program)
            found.append(rows)
        train = found[0]
        tested = f", {found[1].rows} to test with" if self.first else ""
        self.log.line(f"read {train.rows} rows to train with ({train.skipped} skipped){tested}")
        return found

    def run(self) -> None:
        """Everything, from meeting the servers to leaving them."""
        trainer, start, passes = self.trainer, self.start, self.settings.passes
        sums = self._join()
        rows = trainer.gather([self.train.rows])[:, 0]
        self.steps = max(1, int(np.ceil(rows.max() / self.settings.batch_size)))
        self.log.line(
            f"training begins at pass {start.passes}, batch {start.batches}: {self.steps} batches a pass, "
            f"{self.settings.trainer_count} thread(s) a trainer"
        )
        for number in range(start.passes, passes):
            if number > start.passes:
                sums = Sums()
            self._pass(number, start.batches if number == start.passes else 0, sums)
        if start.passes >= passes:
            trainer.settle(last=True)  # an earlier start saved the last pass, but not the model
        if start.passes < passes or not outputs.model_whole(Output(self.settings.output_dir).model):
            self._export()
        self.progress.set(state="done")
        trainer.leave()
        self.log.line("done")

    def _join(self) -> Sums:
        """Meets the others; goes on from the save to resume, if there is one."""
        self.progress.set(**{"pass": self.start.passes}, batch=self.start.batches, state="meeting")
        initial = self.keeper.prepare()
        self.trainer.join()
        self.progress.mark("met", state="loading")
        sums = self.keeper.load(initial)
        self.progress.mark("loaded")
        if self.settings.resume is not None:
            self._note_save(self.settings.resume)
        return sums

    def _note_save(self, at: Position) -> None:
        self.progress.set(saved={"pass": at.passes, "batch": at.batches})
        self.schedule.saved()

    def _pass(self, number: int, done: int, sums: Sums) -> None:
        """Trains pass `number` behind its first `done` batches, of which `sums` tells."""
        trainer, progress = self.trainer, self.progress
        seed = (self.seed, number, self.settings.rank)
        batches = enumerate(samples.batches(self.train.rows, self.steps, seed), 1)
        rate_samples = rate_seconds = 0.0
        progress.going_on()
        for batch, rows in itertools.islice(batches, done, None):
            progress.note(**{"pass": number}, batch=batch, batches=self.steps)  # also where a failure happens
            began = time.monotonic()
            loss = trainer.step(self.train.take(rows))
            if not np.isfinite(loss):
                raise DivergedError(
                    f"the loss is {loss} at pass {number}, batch {batch}: training diverged. "
                    "Lower the learning rate (training.extraArgs, --learning_rate=…)."
                )
            seconds = time.monotonic() - began
            self.spent += seconds
            sums.seconds += seconds
            sums.loss += loss * len(rows)
            sums.samples += len(rows)
            rate_samples += len(rows)
            rate_seconds += seconds
            average = sums.loss / sums.samples
            self.log.batch(number, batch, int(sums.samples), average, loss)
            progress.stepped(samples_per_second=round(rate_samples / rate_seconds, 1), loss=average)
            if self.schedule.stepped(self.spent) and batch < self.steps:
                progress.set(state="saving")
                trainer.settle(last=False)
                self._save(Position(number, batch), sums)
                progress.going_on()
        self._finish_pass(number, sums)

    def _finish_pass(self, number: int, sums: Sums) -> None:
        last = number == self.settings.passes - 1
        self.progress.set(state="testing")
        self.trainer.settle(last)
        loss = sums.loss / sums.samples
        ranks = [
            (int(a), float(b), float(c))
            for a, b, c in self.trainer.gather([sums.samples, sums.seconds, loss])
        ]
        shown = ""
        if self.first:
            [test] = self.test
            prediction = self.trainer.predict(test.arrays)
            with self.program.calling("metrics()"):
                tests = self.program.module.metrics(prediction, test.arrays[self.program.label])
            shown = "".join(f" test_{name}={value:.4f}" for name, value in tests.items())
            add_metrics(self.settings.output_dir, number, self.settings.attempt, ranks, tests)
        self.log.line(
            f"Pass={number} samples={int(sums.samples)} AvgCost={loss:.6g} seconds={sums.seconds:.2f}{shown}"
        )
        if last or (number + 1) % self.settings.saving_period == 0 or self.schedule.due:
            self._save(Position(number + 1), Sums())

    def _save(self, at: Position, sums: Sums) -> None:
        self.progress.set(state="saving")
        self.keeper.save(at, sums, self.steps)
        self._note_save(at)

    def _export(self) -> None:
        if self.first:
            self.progress.set(state="exporting")
            began = time.monotonic()
            values = self.trainer.parameters() | self.trainer.tables()
            folder = Output(self.settings.output_dir).model
            result = model.export(
                folder, self.program, self.config, values, self.settings.data_dir / "test.txt"
            )
            if not result:
                raise DataError(f"metrics() of the program {self.program.path} gave nothing")
            shown = " ".join(f"{name}={value:.4f}" for name, value in result.items())
            self.log.line(f"model in {folder}: {shown} on the test set ({time.monotonic() - began:.2f} s)")
        self.trainer.barrier()
