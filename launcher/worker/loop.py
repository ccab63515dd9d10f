"""The passes of one trainer: train, test, save, and at the end the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from launcher import best, files
from launcher.errors import DataError
from launcher.layout import Output, Position
from launcher.worker import convert, exporting, outputs, shapes, store
from launcher.worker.books import Log, Meter, Progress, Sums, add_metrics
from launcher.worker.keeping import Keeper
from launcher.worker.program import Program
from launcher.worker.records import Records
from launcher.worker.samples import Arrays
from launcher.worker.schedule import Schedule
from launcher.worker.scorer import Scorer
from launcher.worker.settings import WorkerSettings
from launcher.worker.testing import Tester
from launcher.worker.trainer import Trainer


class Loop:
    """Trainer `rank`'s way through the passes. Whatever all must do together is marked by a barrier."""

    def __init__(
        self,
        settings: WorkerSettings,
        program: Program,
        log: Log,
        progress: Progress,
        scorer: Scorer | None,
    ) -> None:
        """`scorer`: rank 0 has one."""
        self.settings = settings
        self.scorer = scorer
        self.program = program
        self.log = log
        self.progress = progress
        self.first = settings.rank == 0
        self.train, *self.test = self._read()
        self.start = settings.resume or Position(0)
        self.seed = int(program.worker_options["seed"])
        self.trainer = Trainer(settings, program)
        log.line(f"network built: {len(self.trainer.network.tables)} embedding tables, mode {settings.mode}")
        # geo: each trainer's parameters are a little different, and the model is trainer 0's.
        tests = self.test and (self.first or settings.mode != "geo")
        self.tester = Tester(program, self.trainer, settings.rank, self.test[0] if tests else None)
        self.config = settings.program_dir / settings.config_file
        self.keeper = Keeper(settings, self.trainer, log, self.config, self.seed)
        self.schedule = Schedule(
            settings.save_every_batches, settings.save_every_minutes, self._slowest, self._ask
        )
        self.spent = 0.0
        """Seconds of all steps of this attempt."""

    def _slowest(self, value: float) -> float:
        return float(self.trainer.gather([value]).max())

    def _ask(self, step: int, proposed: int) -> tuple[bool, int]:
        s = self.settings
        return store.ask(s.store_host, s.store_port, f"/ask/{s.attempt}/{step}", proposed)

    def _read(self) -> list[Records]:
        """The rows to train with and, on the first rank at least, those to test with."""
        settings = self.settings
        return convert.staged(
            self.program,
            settings.data_dir,
            settings.work_dir / "records",
            settings.rank,
            test=(settings.data_dir / "test.txt").is_file(),  # where it is staged
            say=self.log.line,
            check=self.progress.write,
        )

    def run(self) -> None:
        """Everything, from meeting the servers to leaving them."""
        trainer, start, passes = self.trainer, self.start, self.settings.passes
        sums = self._join()
        rows = trainer.gather([self.train.rows])[:, 0]
        self.steps = max(1, int(np.ceil(rows.max() / self.settings.batch_size)))
        self.log.line(
            f"training begins at pass {start.passes + 1}, batch {start.batches}: {self.steps} batches a "
            f"pass, {self.settings.trainer_count} thread(s) a trainer"
        )
        metric = self.settings.keep_best
        if self.first and (self.settings.resume is None or (metric and not self.keeper.scores)):
            sample = next(self.train.blocks(shapes.ROWS))
            found = shapes.check_batch(self.program, trainer.predict, sample)
            shapes.check_metric(self.program, metric, found)
        if self.settings.init_from and self.settings.resume is None:
            self._test_first()
        done = start.passes
        while done < passes and not self._ends_early():
            self._pass(done, start.batches if done == start.passes else 0, sums)
            done, sums = done + 1, Sums()
        if self._ends_early():
            self.log.line(f"ended early after pass {done}: training.patience is {self.settings.patience}")
        if done < passes or done == start.passes:
            trainer.settle(last=True)  # the last pass was not known to be the last, or is an earlier start's
        if (source := self._model_source(done)) is not None:
            if source.passes != done or (done == start.passes and start.batches):
                self.progress.set(state="loading", bytes=self.keeper.bytes_of(source))
                self.keeper.restore(source)
            self._export(source)
        self.progress.set(state="done")
        trainer.leave()
        self.log.line("done")

    def _ends_early(self) -> bool:
        return best.ends_early(self.settings.keep_best, self.keeper.scores, self.settings.patience)

    def _join(self) -> Sums:
        """Meets the others; goes on from the save to resume, if there is one."""
        size = None if self.settings.init_from else 0
        if self.settings.resume is not None:
            size = self.keeper.bytes_of(self.settings.resume)
        self.progress.set(
            **{"pass": self.start.passes}, batch=self.start.batches, state="meeting", bytes=size
        )
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
        batches = self._noted(number, done)
        meter = Meter(self.log, self.progress, number, done, sums)
        self.progress.going_on()
        while meter.batch < self.steps:
            span = self.schedule.span(self.steps - meter.batch)
            meter.go()
            self.trainer.train(batches, span, meter.told)
            self.spent += meter.pause()
            if self.schedule.trained(span, self.spent) and meter.batch < self.steps:
                self._settle(False, "saving")
                self._save(Position(number, meter.batch), sums)
                self.progress.going_on()
        self._finish_pass(number, sums)

    def _noted(self, number: int, done: int) -> Iterator[Arrays]:
        """The batches of a pass behind the first `done`; each is noted as it is taken."""
        seed = (self.seed, number, self.settings.rank)
        batches = self.train.batches(self.steps, seed, done)
        for batch, arrays in enumerate(batches, done + 1):
            # Also where a failure happens.
            self.progress.note(**{"pass": number}, batch=batch, batches=self.steps)
            yield arrays

    def _finish_pass(self, number: int, sums: Sums) -> None:
        last = number == self.settings.passes - 1
        self._settle(last, "testing")
        loss = sums.loss / sums.samples
        ranks = [
            (int(a), float(b), float(c))
            for a, b, c in self.trainer.gather([sums.samples, sums.seconds, loss])
        ]
        shown = ""
        tests = self.tester.score()
        if self.first:
            shown = _shown(tests)
            add_metrics(self.settings.output_dir, number, self.settings.attempt, ranks, tests)
        self.log.line(
            f"Pass={number + 1} samples={int(sums.samples)} AvgCost={loss:.6g} "
            f"seconds={sums.seconds:.2f}{shown}"
        )
        improved = bool(self.settings.keep_best) and self._improves(number + 1, tests)
        last = last or improved or self._ends_early()
        if last or (number + 1) % self.settings.saving_period == 0 or self.schedule.due:
            self._save(Position(number + 1), Sums())

    def _improves(self, done: int, tests: Mapping[str, float]) -> bool:
        """Notes trainer 0's score on every rank, as metrics.csv has it. Returns whether it is the best."""
        metric, scores = self.settings.keep_best, self.keeper.scores
        if self.first:  # the few rows before training may not have given any score
            shapes.check_metric(self.program, metric, tests)
        value = float(f"{tests.get(metric, math.nan) if self.first else 0.0:.6g}")
        scores.append((done, float(self.trainer.gather([value])[0, 0])))
        return best.ranked(metric, scores)[:1] == [done]

    def _settle(self, last: bool, state: str) -> None:
        """Waits for what all have pushed.

        Reports `waiting` meanwhile, so that the other ranks' training does not count towards the deadline of
        `state`.
        """

        def meet() -> None:
            self.progress.set(state="waiting")
            self.trainer.barrier()
            self.progress.set(state=state)

        self.progress.set(state=state)
        self.trainer.settle(last, meet)

    def _test_first(self) -> None:
        """What the earlier run's model says of the new data, before it trains on any of it."""
        self.progress.set(state="testing")
        tests = self.tester.score()
        if self.first:
            source = self.settings.init_from
            about = {"from": source, "attempt": self.settings.attempt, "score": tests}
            files.write_json(Output(self.settings.output_dir).before_json, about)
            self.log.line(f"before training, with the parameters of {source}:{_shown(tests)}")
        self.trainer.barrier()

    def _save(self, at: Position, sums: Sums) -> None:
        self.progress.set(state="saving")
        self.keeper.save(at, sums, self.steps)
        self.progress.note(bytes=self.keeper.bytes)  # bounds the next save, too
        self._note_save(at)
        if self.first:
            try:
                Output(self.settings.output_dir).checkpoint_request.unlink(missing_ok=True)
            except OSError as error:  # who asked finds the checkpoint, but waits in vain for this
                self.log.line(f"cannot remove the request for a checkpoint: {error}")

    def _model_source(self, done: int) -> Position | None:
        """The checkpoint that the model is yet to be made from; None: it is there. Raises `DataError`."""
        output, passes = Output(self.settings.output_dir), 0
        if self.first:
            made = outputs.model_checkpoint(output.model) if done == self.start.passes else None
            metric, scores = self.settings.keep_best, self.keeper.scores
            source = outputs.model_source(output.root, metric, scores, done, made or "")
            passes = -1 if source is None else 0 if made == source.folder else source.passes
        passes = int(self.trainer.gather([passes])[0, 0])
        if passes < 0:
            raise DataError(f"no model can be made: {output.root} has no intact checkpoint of pass {done}")
        return Position(passes) if passes else None

    def _export(self, at: Position) -> None:
        self.progress.set(state="writing" if exporting.writes(self.settings) else "waiting")

        def judge(folder: Path) -> dict[str, float]:
            assert self.scorer is not None  # noqa: S101 - rank 0 asks, and has it
            return self.scorer.score(folder, self.settings.work_dir / "records" / "test")

        about = (self.settings, self.program, self.trainer, self.config, self.log)
        exporting.export(*about, at=at, judge=judge)


def _shown(tests: Mapping[str, float]) -> str:
    return "".join(f" test_{name}={value:.4f}" for name, value in tests.items())
