"""Pservers and trainers of a simulation: they stand in for `ChildProcess`, and write real checkpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import EXIT_STORAGE, EXIT_UNFIT, LauncherError
from launcher.io import checkpoints, files
from launcher.io.checkpoints import CheckpointFolder
from launcher.paths import OutputPaths, Position
from launcher.runtimes.runtime_protocol import ProcessSpec, RankAttempt
from launcher.runtimes.v1 import V1Runtime
from launcher.schema import CheckpointContents, RankFiles, to_json
from launcher.settings import TrainSettings
from launcher.supervisor.timings import Timings
from tests.launcher.supervisor import virtual_time

if TYPE_CHECKING:
    from tests.launcher.supervisor.simulated_pod import SimulatedPod

# Long periods: every event wakes a launcher, and each turn of a loop takes real time.
T = Timings(poll=2.0, training_poll=2.0, hold=1.5, status=60.0)
STALL = 60  # training.progressDeadlineSeconds


@dataclass(frozen=True, kw_only=True)
class _Spec(ProcessSpec):
    attempt: RankAttempt


class SimulatedRuntime(V1Runtime):
    """A runtime with one pserver and one trainer per rank, and with the checkpoints of runtime fleet."""

    def check(self, settings: TrainSettings) -> None:
        """Accept all settings."""

    def pservers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        return [_spec("pserver", attempt)]

    def trainers(self, attempt: RankAttempt) -> list[ProcessSpec]:
        return [_spec("trainer", attempt)]

    def newest_checkpoint(self, output_dir: Path) -> Position | None:
        return checkpoints.newest_checkpoint(output_dir)

    def is_complete(self, output_dir: Path, settings: TrainSettings) -> bool:
        return files.read_bytes(OutputPaths(output_dir).model / "model.json") is not None


def _spec(role: Any, attempt: RankAttempt) -> _Spec:
    log, ports = attempt.settings.work.log(f"{role}.log"), (7164,) if role == "pserver" else ()
    return _Spec(role, role, (role,), {}, attempt.settings.work_dir, log, ready_ports=ports, attempt=attempt)


class SimulatedChild:
    """One pserver or trainer (`ChildProcess`). Its events run in no thread of the pod's launcher."""

    pid = 1

    def __init__(self, spec: _Spec, ended: Callable[[], None], forks: object = None) -> None:
        clock = virtual_time.active()
        assert clock is not None
        self.pod: SimulatedPod = clock.running.owner  # type: ignore[assignment]
        self.spec, self._ended, self.world, self.rank = spec, ended, self.pod.world, self.pod.rank
        self.attempt, self.resume = spec.attempt.attempt, spec.attempt.resume
        self.returncode: int | None = None
        self.ended_at, self.stopped, self.done = 0.0, False, virtual_time.Event()
        self.runs, self.hung, self.accepts = True, False, False
        self.stubborn = self.world.rng.random() < 0.2
        self.pod.children.append(self)
        with clock.outside():
            self.world.check_process_start(self)
        if self.world.now < self.world.killed_starts and self.world.rng.random() < 0.3:
            self._after(self.world.rng.uniform(0, 1), lambda: self.exit(-9))
        self._start()

    def _start(self) -> None:
        """Let the pserver accept connections a little later."""
        rng = self.world.rng
        self._after(T.ready + 9 if rng.random() < 0.003 else rng.uniform(0.5, 4), self._accept)

    def _accept(self) -> None:
        self.accepts = True

    def _after(self, delay: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay` seconds, unless the process has exited or hangs by then."""
        self.world.clock.schedule(delay, lambda: then() if self.runs and not self.hung else None)

    def signal(self, signum: int) -> None:
        """Handle a signal: SIGKILL at once, SIGTERM soon, or never in a stubborn process."""
        self.stopped = True
        if signum == signal.SIGKILL:
            self.exit(-9)
        elif not self.stubborn and not self.hung:
            self.world.clock.schedule(self.world.rng.uniform(0, 6), lambda: self.exit(-15))

    def exit(self, code: int) -> None:
        """Let the process exit with `code`; a frozen launcher notices it later."""
        if self.runs:
            self.runs = self.accepts = False
            self.pod.children.remove(self)
            self.world.log_event(
                "%s: %s of attempt %d exits with %d", self.pod, self.spec.name, self.attempt, code
            )
            self.world.clock.schedule(self.pod.frozen - self.world.clock.now, lambda: self._notice_exit(code))

    def _notice_exit(self, code: int) -> None:
        self.returncode, self.ended_at = code, self.world.clock.now + self.pod.clock_offset
        self.done.set()
        self._ended()


class SimulatedTrainer(SimulatedChild):
    """A trainer: trains from checkpoint to checkpoint; trainer 0 completes each one, and writes the model."""

    def _start(self) -> None:
        world, at = self.world, self.resume
        self.at = world.points.index(at) + 1 if at is not None else 0
        self._continue()

    @property
    def _gang(self) -> list[SimulatedTrainer]:
        """Return the trainers of this attempt that run."""
        return [
            child
            for child in self.world.children
            if isinstance(child, SimulatedTrainer) and child.attempt == self.attempt
        ]

    def _report(self, state: str) -> None:
        at = self.world.points[min(self.at, len(self.world.points) - 1)]
        saved = self.world.points[self.at - 1] if self.at else None
        progress = {
            "pass": at.passes,
            "batch": at.batches,
            "batches": 30,
            "samples_per_second": 256
            * 30
            * self.world.points[-1].passes
            / len(self.world.points)
            / self.world.seconds,
            "state": state,
            "bytes": 30_000_000,
            "saved": to_json(saved),
        }
        work = self.spec.attempt.settings.work
        work.progress.write_text(json.dumps(progress))

    def _continue(self) -> None:
        """Train until the next checkpoint, or end the training after the last one."""
        self._report("training")
        if self.at == len(self.world.points):
            self._after(self.world.rng.uniform(0, 2), self._finish_training)
        else:
            self._train(self.world.seconds, 0)

    def _train(self, left: float, asked: int) -> None:
        """Train until the next checkpoint in `left` seconds, and ask rank 0 meanwhile whether to save it early."""
        ask = self.world.ask
        if left <= ask:
            self._after(left, self._start_checkpoint)
        else:
            self._after(ask, lambda: self._ask(left - ask, asked + 1))

    def _ask(self, left: float, number: int) -> None:
        """Ask rank 0 for the time number `number` since the newest checkpoint; repeat it without an answer."""
        rank_0, path = self.world.current[0], f"{self.spec.attempt.store}_checkpoint/{self.at}/{number}"
        coordinator = rank_0.coordinator if rank_0 is not None else None
        if rank_0 is None or rank_0.dead or coordinator is None or self.world.is_cut(self.pod, rank_0):
            self._after(1.0, lambda: self._ask(left, number))
            return

        def decide() -> None:
            if not coordinator.trainer_store.accepts(path):
                self._after(1.0, lambda: self._ask(left, number))
            elif json.loads(coordinator.trainer_store.decide(path, 0))[0]:
                self.world.check_requested_checkpoint(self.attempt, self.at)
                self._after(0.0, self._start_checkpoint)
            else:
                self._after(0.0, lambda: self._train(left, number))

        virtual_time.Thread(decide, owner=rank_0).start()

    def _finish_training(self) -> None:
        """Exit as the training is done; trainer 0 also writes the model. The last trainer stops the pservers."""
        world, model = self.world, OutputPaths(self.spec.attempt.settings.layout.output).model
        if self.rank == 0:
            world.check_output_write(self.pod, "the model")
            model.mkdir(exist_ok=True)
            (model / "model.json").write_text("{}")
        done = world.done.setdefault(self.attempt, set())
        done.add(self.rank)
        if len(done) == world.ranks:
            for child in [child for child in world.children if child.attempt == self.attempt]:
                if child.spec.role == "pserver":
                    late = T.pserver_exit + 9 if world.rng.random() < 0.02 else world.rng.uniform(0, 3)
                    child._after(late, lambda child=child: child.exit(0))
        self.exit(0)

    # Checkpoints.

    def _folder(self) -> CheckpointFolder:
        return CheckpointFolder(
            self.spec.attempt.settings.layout.output, self.world.points[self.at], self.attempt
        )

    def _use_storage(self, work: Callable[[], None]) -> None:
        """Call `work`, which writes to the storage: later, or not at all, if the storage has a fault."""
        kind, until = self.world.find_storage_fault(self.pod)
        if kind == "hang":
            self._after(until - self.world.clock.now + 0.1, lambda: self._use_storage(work))
            return
        if kind in ("full", "fail"):
            self.exit(EXIT_STORAGE if kind == "full" else EXIT_UNFIT)
            return
        try:
            work()
        except (LauncherError, OSError) as error:
            self.exit(getattr(error, "exit_code", 1))

    def _start_checkpoint(self) -> None:
        """Reach the position at which all ranks write their parts of a checkpoint."""
        if self.world.bug == (self.rank, self.at):
            self.exit(1)
            return
        self._report("saving")
        if self.rank == 0:
            self._use_storage(lambda: self._folder().create(0))
        slow = self.world.find_storage_fault(self.pod)[0] == "slow"
        self._after(self.world.rng.uniform(0.05, 6 if slow else 1), self._write_part)

    def _write_part(self) -> None:
        """Write this rank's part, once trainer 0 has created the folder."""
        if not self._folder().folder.exists():
            self._after(1.0, self._write_part)  # the barrier of the trainers
        else:
            self._use_storage(self._add_part)

    def _add_part(self) -> None:
        world = self.world
        self._folder().add_rank_files(self.rank, RankFiles({}, {}))
        parts = world.parts.setdefault((self.at, self.attempt), set())
        parts.add(self.rank)
        # In some runs a barrier ends when another trainer is lost, instead of never.
        if len(parts) == world.ranks or (world.loose_barriers and len(self._gang) < world.ranks):
            first = next((trainer for trainer in self._gang if trainer.rank == 0), None)
            if first is not None and first.at == self.at:
                first._after(world.rng.uniform(0.05, 1), lambda: first._use_storage(first._complete))

    def _complete(self) -> None:
        """Complete the checkpoint as trainer 0, and let all ranks continue."""
        world, at, folder = self.world, self.world.points[self.at], self._folder()
        if not folder.folder.exists():
            return  # completed already
        world.check_output_write(self.pod, "a checkpoint")
        written = folder.collect_rank_files(world.config_file, world.ranks)
        folder.publish(
            CheckpointContents(
                version=checkpoints.VERSION, position=at, attempt=self.attempt, output_id="", seed=0,
                batches=30, mode="sync", servers=world.ranks, shards=world.ranks, ranks=[], dense="", tables={},
                scores=None, chain=[], files=written.files, rows=written.rows,
            )
        )  # fmt: skip
        world.check_checkpoint(self.at, self.attempt)
        for trainer in [trainer for trainer in self._gang if trainer.at == self.at]:
            if not trainer.hung:
                trainer.at += 1
                trainer._continue()


def start_child(spec: _Spec, ended: Callable[[], None], forks: object = None) -> SimulatedChild:
    """Start a process; this replaces the class `ChildProcess`."""
    return (SimulatedTrainer if spec.role == "trainer" else SimulatedChild)(spec, ended, forks)
