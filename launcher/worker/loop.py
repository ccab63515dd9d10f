"""The passes of one trainer: train, test, save, and at the end the model."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from launcher.errors import DataError, LauncherError
from launcher.layout import Output
from launcher.worker import checkpoint, model, outputs, samples
from launcher.worker.books import Log, Progress, add_metrics
from launcher.worker.program import Program
from launcher.worker.session import Trainer
from launcher.worker.settings import WorkerSettings


class Loop:
    """Trainer `rank`'s way through the passes. Whatever all must do together is marked by a barrier."""

    def __init__(self, settings: WorkerSettings, program: Program, log: Log, progress: Progress) -> None:
        self.settings = settings
        self.program = program
        self.log = log
        self.progress = progress
        self.first = settings.rank == 0
        self.train, self.test = self._read()
        self.start = 0 if settings.resume is None else settings.resume.passes
        self.trainer = Trainer(settings, program)
        log.line(f"network built: {len(self.trainer.network.tables)} embedding tables, mode {settings.mode}")

    def _read(self) -> tuple[samples.Samples, samples.Samples]:
        data = self.settings.data_dir
        found = []
        for file in ("train.txt", "test.txt"):
            name = f"{self.settings.rank}/data/{file}"  # as it is called below the job's folder
            rows = samples.read(data / file, self.program, self.progress.write, name)
            samples.check_labels(rows, name, self.program)
            found.append(rows)
        train, test = found
        self.log.line(
            f"read {train.rows} rows to train with ({train.skipped} skipped), {test.rows} to test with"
        )
        return train, test

    def run(self) -> None:
        """Everything, from meeting the servers to leaving them."""
        trainer = self.trainer
        self._join()
        rows = trainer.gather([self.train.rows])[:, 0]
        self.steps = max(1, int(np.ceil(rows.max() / self.settings.batch_size)))
        self.log.line(
            f"training begins at pass {self.start}: {self.steps} batches a pass, "
            f"{self.settings.trainer_count} thread(s) a trainer"
        )
        for number in range(self.start, self.settings.passes):
            self._pass(number)
        if self.start >= self.settings.passes:
            trainer.settle(last=True)  # an earlier start saved the last pass, but not the model
        if (
            not outputs.model_whole(Output(self.settings.output_dir).model)
            or self.start < self.settings.passes
        ):
            self._export()
        self.progress.set(state="done")
        trainer.leave()
        self.log.line("done")

    def _join(self) -> None:
        """Meets the others; goes on from the pass to resume, if there is one."""
        resume = self.settings.resume
        folder = None if resume is None else Output(self.settings.output_dir).save(resume)
        trainer = self.trainer
        if folder is not None and self.settings.mode != "geo":
            checkpoint.check_servers(folder, len(trainer.servers))
        if folder is not None and self.settings.mode == "geo":
            # Trainer 0's parameters become the servers', so they are set before everybody meets.
            trainer.set_parameters(checkpoint.load_arrays(folder / checkpoint.PARAMETERS))
            trainer.set_parameters(checkpoint.load_arrays(folder / f"optimizer-{self.settings.rank}.npz"))
        trainer.join()
        if folder is None:
            return
        if self.settings.mode != "geo":
            if self.first:
                trainer.load_tables(folder / checkpoint.TABLES)
            trainer.barrier()
            trainer.pull_dense()
        self.log.line(f"resumed from {folder.name}")

    def _pass(self, number: int) -> None:
        settings, trainer = self.settings, self.trainer
        seed = (int(self.program.worker_options["seed"]), number, settings.rank)
        began = time.monotonic()
        total = samples_seen = 0.0
        for batch, rows in enumerate(samples.batches(self.train.rows, self.steps, seed), 1):
            loss = trainer.step(self.train.take(rows))
            if not np.isfinite(loss):
                raise LauncherError(
                    f"the loss is {loss} at pass {number}, batch {batch}: training diverged. "
                    "Lower the learning rate (training.extraArgs, --learning_rate=…)."
                )
            total += loss * len(rows)
            samples_seen += len(rows)
            self.log.batch(number, batch, int(samples_seen), total / samples_seen, loss)
            self.progress.set(
                **{"pass": number},
                batch=batch,
                batches=self.steps,
                samples_per_second=round(samples_seen / (time.monotonic() - began), 1),
                loss=total / samples_seen,
                state="training",
            )
        seconds = time.monotonic() - began
        trainer.settle(last=number == settings.passes - 1)
        self._finish_pass(number, int(samples_seen), seconds, total / samples_seen)

    def _finish_pass(self, number: int, seen: int, seconds: float, loss: float) -> None:
        ranks = [(int(a), float(b), float(c)) for a, b, c in self.trainer.gather([seen, seconds, loss])]
        if self.first:
            prediction = self.trainer.predict(self.test.arrays)
            with self.program.calling("metrics()"):
                tests = self.program.module.metrics(prediction, self.test.arrays[self.program.label])
            shown = " ".join(f"test_{name}={value:.4f}" for name, value in tests.items())
            self.log.line(f"Pass={number} samples={seen} AvgCost={loss:.6g} seconds={seconds:.2f} {shown}")
            add_metrics(self.settings.output_dir, number, self.settings.attempt, ranks, tests)
        else:
            self.log.line(f"Pass={number} samples={seen} AvgCost={loss:.6g} seconds={seconds:.2f}")
        last = number == self.settings.passes - 1
        if last or (number + 1) % self.settings.saving_period == 0:
            self._save(number)

    def _save(self, number: int) -> None:
        self.progress.set(state="saving")
        began = time.monotonic()
        settings, trainer = self.settings, self.trainer
        save = checkpoint.Save(settings.output_dir, number, settings.attempt)
        if self.first:
            parameters = trainer.parameters()
            if settings.mode == "geo":
                parameters |= trainer.tables()
            save.begin(self._least_bytes())
            save.arrays(checkpoint.PARAMETERS, parameters)
        trainer.barrier()
        if settings.mode == "geo":
            save.arrays(f"optimizer-{settings.rank}.npz", trainer.optimizer_state())
            trainer.barrier()
        elif self.first:
            trainer.save_tables(save.folder / checkpoint.TABLES)
        if self.first:
            tables = 0 if settings.mode == "geo" else len(trainer.network.tables) + 1
            save.end(self._config, tables, len(trainer.servers))
            self.log.line(f"saved {save.final} in {time.monotonic() - began:.2f} s")
        trainer.barrier()

    def _least_bytes(self) -> int:
        """What this save takes at least: as much as the last one, else the dense parameters."""
        newest = outputs.newest_save(self.settings.output_dir)
        before = 0 if newest is None else outputs.save_bytes(Output(self.settings.output_dir).save(newest))
        return before or checkpoint.bytes_of(list(self.trainer.parameters().values()))

    @property
    def _config(self) -> Path:
        return self.settings.program_dir / self.settings.config_file

    def _export(self) -> None:
        if self.first:
            self.progress.set(state="exporting")
            began = time.monotonic()
            values = self.trainer.parameters() | self.trainer.tables()
            folder = Output(self.settings.output_dir).model
            result = model.export(
                folder, self.program, self._config, values, self.settings.data_dir / "test.txt"
            )
            if not result:
                raise DataError(f"metrics() of the program {self.program.path} gave nothing")
            shown = " ".join(f"{name}={value:.4f}" for name, value in result.items())
            self.log.line(f"model in {folder}: {shown} on the test set ({time.monotonic() - began:.2f} s)")
        self.trainer.barrier()
