"""Run a pserver, or a trainer that uses the pservers, with PaddlePaddle 2.6.2's library fleet.

`FleetTrainer` joins, trains, predicts and leaves. Paddle's training modes are incomplete if a program is run one
batch (step) at a time. `FleetTrainer` adds what is missing:

- async: operators of Paddle's program push the gradients to the servers, but no operator pulls the dense parameters
  (all parameters except embedding tables) from the servers. `FleetTrainer` pulls them.
- sync: the operator send_barrier of Paddle's program dereferences a communicator that does not exist in this mode.
  `FleetTrainer` removes this operator. After each step it waits for all trainers, and for the servers' barrier table.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.distributed import fleet

from launcher.errors import DeadlineError, SettingsError
from launcher.io.step_clock import StepClock, processor_seconds
from launcher.trainer.network import BuiltNetwork, build_training_graph, prepare_paddle
from launcher.trainer.paddle_internals import (
    CONNECT_SECONDS,
    GlooRoleMaker,
    ServerConnection,
    Trainers,
    dense_shape,
    keep_gradients,
    remove_operators,
    table_numbers,
)
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Arrays
from launcher.trainer.server_commands import OwnServers, serve_commands, socket_path
from launcher.trainer.server_memory import LayoutError, ServerMemory
from launcher.trainer.server_tables import ServerLayout

Step = Callable[[Arrays, Any, Any], float]
"""Takes a batch, Paddle's executor and Paddle's scope. Trains the batch, and returns its mean loss."""
OnBatch = Callable[[Arrays, float], None]
"""Takes a trained batch and its mean loss. It is called in the order in which batches end, and never by two threads at
once."""


class TrainerThreads:
    """Trains batches of one trainer in a pool of threads. The threads run until the trainer's process exits.

    Each thread trains one batch at a time. The number of threads T (`trainerCount`) determines the order of updates:

    - async: a thread pushes its gradients when its batch ends. So a batch is computed without the gradients of up to
      T - 1 other batches of its own trainer, and without the newest gradients of other trainers. The dense parameters
      are pulled once for every T batches, while the next batches are computed.
    - sync: in a step each trainer trains T batches at once. The servers apply the mean of the T gradients of all
      trainers to the dense parameters, and all gradients of table rows to the tables. Only then does a thread start its
      next batch.
    """

    def __init__(self, threads: int, scope: Any, step: Step, apply: Callable[[], None]) -> None:
        """Start the threads, which share the parameters in Paddle's scope `scope`.

        Args:
            threads: number of threads.
            scope: Paddle's scope with the parameters.
            step: `step(batch, executor, scope)` trains one batch and returns its mean loss.
            apply: called without arguments after every `threads` batches, to get the updates of other trainers. It is
                never called by two threads at once.
        """
        self._step, self._apply = step, apply
        self._executors = [self._new_executor(scope) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads + 1, "trainer")  # the additional thread calls `apply`

    @staticmethod
    def _new_executor(scope: Any) -> tuple[Any, Any]:
        """Return an executor and a scope for one thread. Its scope is a child of `scope`, which has the parameters."""
        own = scope.new_scope()
        for name in ("feed", "fetch"):
            own.var(name)
        return paddle.static.Executor(paddle.CPUPlace()), own

    def train(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches in all threads. The threads do not wait for each other.

        After a failure no thread starts a further batch, and this method raises the exception of the failed thread.
        """
        work = _BatchQueue(batches, count, on_batch)
        for thread in [self._pool.submit(self._train_thread, executor, work) for executor in self._executors]:
            thread.result()
        work.applied.result()

    def train_in_steps(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches in steps, for mode sync. In a step each thread trains one batch.

        The next step starts after the servers have applied the gradients of all batches of this step.
        """
        work = _BatchQueue(batches, count, on_batch)
        next_ = work.take_up_to(len(self._executors))
        while taken := next_:
            pairs = zip(taken, self._executors, strict=False)
            steps = [self._pool.submit(self._step, batch, *executor) for batch, executor in pairs]
            losses = [step.result() for step in steps]
            applied = self._pool.submit(self._apply)
            next_ = work.take_up_to(len(self._executors))  # while `apply` runs, read the next batches
            applied.result()
            for batch, loss in zip(taken, losses, strict=True):
                work.report(batch, loss)

    def _train_thread(self, executor: tuple[Any, Any], work: _BatchQueue) -> None:
        """Train batches of `work` in one thread until none is left.

        When all T threads together have trained T further batches, start `apply`. It runs while the next batches are
        trained.
        """
        try:
            while (batch := work.take()) is not None:
                loss = self._step(batch, *executor)
                if work.report(batch, loss) % len(self._executors) == 0:
                    with work.apply_lock:
                        work.applied.result()
                        work.applied = self._pool.submit(self._apply)
        except BaseException:
            work.stop()
            raise


class _BatchQueue:
    """Hands out the next `count` batches to the threads of one trainer, each batch once."""

    def __init__(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        self._batches, self._left, self._on_batch, self._ended = batches, count, on_batch, 0
        self._lock = threading.Lock()
        self.apply_lock = threading.Lock()
        self.applied: Future[None] = Future()
        """The newest call of `apply`; the next call starts when this one has ended."""
        self.applied.set_result(None)

    def take(self) -> Arrays | None:
        """Return the next batch; None after `count` batches, or after `stop` was called."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return next(self._batches)

    def take_up_to(self, most: int) -> list[Arrays]:
        """Return the next `most` batches; fewer at the end, and an empty list when no batch is left."""
        return [batch for _ in range(most) if (batch := self.take()) is not None]

    def report(self, batch: Arrays, loss: float) -> int:
        """Call `on_batch` for a trained batch and its mean loss. Return how many batches were reported so far."""
        with self._lock:
            self._on_batch(batch, loss)
            self._ended += 1
            return self._ended

    def stop(self) -> None:
        """Hand out no further batch."""
        self._left = 0


def await_ports(addresses: list[tuple[str, int]], what: str) -> None:
    """Wait until all addresses (host, port) accept connections. `what` describes them in the error.

    Raises:
        DeadlineError: some addresses do not accept connections after CONNECT_SECONDS; the message lists them.
    """
    deadline = time.monotonic() + CONNECT_SECONDS
    waiting = addresses
    while waiting := [a for a in waiting if not _accepts(*a)]:
        if time.monotonic() > deadline:
            missing = ", ".join(f"{host}:{port}" for host, port in waiting)
            raise DeadlineError(
                f"waited {CONNECT_SECONDS} s for {what}, but nothing listens on {missing}. Fix: see "
                "server.log of those ranks: python -m launcher logs --role pserver"
            )
        time.sleep(0.05)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def _build_graph(
    settings: ProcessSettings, program: TrainingProgram, layout: ServerLayout
) -> tuple[GlooRoleMaker, BuiltNetwork]:
    prepare_paddle(program.seed)
    role = GlooRoleMaker(settings)
    return role, build_training_graph(program, role, settings.mode, settings.batch_size, layout.shards)


def run_pserver(settings: ProcessSettings, program: TrainingProgram) -> None:
    """Run as pserver: hold a share of the parameters, and serve the trainers until trainer 0 stops all servers.

    Raises:
        SettingsError: the layout of Paddle's memory is not the expected one, the program cannot be trained, or this
            pserver would get no shard.
        CheckpointError: contents.json of the checkpoint is missing or damaged.
    """
    path = socket_path(settings.work_dir, settings.server)
    path.unlink(missing_ok=True)  # the socket of an earlier attempt
    layout = ServerLayout.read(settings)
    _, network = _build_graph(settings, program, layout)
    with paddle.static.program_guard(network.main, network.startup):
        fleet.init_server()
        number = layout.own[settings.server]
        host, port = layout.addresses[number]
        shown = f"pserver {number + 1} of {len(layout.addresses)} serves on {host}:{port}"
        print(shown, flush=True)  # noqa: T201 - this is the process' log
        dense = dense_shape(number, len(layout.addresses))
        try:
            memory = ServerMemory(
                table_numbers(), network.shapes, layout.shards, layout.shards_of(number), dense
            )
        except LayoutError as error:
            raise SettingsError(
                f"a check of Paddle's memory failed, so this pserver could not save its tables: {error}. Fix: use the "
                f"package paddlepaddle=={paddle.__version__} of PyPI, as launcher/Dockerfile does, on nodes where a "
                "process may read its own /proc/self/mem"
            ) from error
        serve_commands(memory, network.rules, number, path)
        memory.run_server(host, port)


PUSHING = ("distributed_push_sparse", "send", "send_barrier")


class FleetTrainer:
    """Trains as one trainer of a job. It has the network, the dense parameters, and the connections to the servers."""

    servers: ServerConnection
    """The connection to all servers of the job, which `join` creates."""
    own_servers: OwnServers
    """The connections to the servers in this pod, to save and load tables. `join` creates them."""

    def __init__(self, settings: ProcessSettings, program: TrainingProgram) -> None:
        self.clock = StepClock(processor_seconds)
        """Measures the processor time of this trainer per step, during `train`. The time in which the trainer waits for
        pservers does not count, because these may run on a slow node."""
        self.settings, self.layout = settings, ServerLayout.read(settings)
        self._role, self.network = _build_graph(settings, program, self.layout)
        self.trainers = Trainers(self._role, settings.rank, settings.trainers)
        self.scope = paddle.static.global_scope()
        # Run the operators of a step one after another, as `train_from_dataset` does. By default each executor runs
        # them in four threads, which takes 5 to 7 % more CPU. `trainerCount` is the setting for more threads.
        paddle.set_flags({"FLAGS_new_executor_serial_run": True})
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(self.network.startup)
        self.feeds = list(program.inputs)
        self._test = self.network.main.clone(for_test=True)
        remove_operators(self._test, PUSHING)
        keep_gradients(self.network.main)

    def start_threads(self, count: int) -> None:
        """Start `count` threads in which `train` trains batches."""
        apply = self._apply_step if self.settings.mode == "sync" else self.servers.pull_dense
        self.threads = TrainerThreads(count, self.scope, self._step, apply)

    def join(self) -> None:
        """Connect to the servers, wait until all trainers have done so, and start the threads of `train`.

        Afterwards the servers and all trainers have trainer 0's dense parameters. Each trainer keeps its own values of
        the parameters that are never trained. This method only checks that they are equal on all ranks.

        Raises:
            DeadlineError: some pservers do not listen after CONNECT_SECONDS.
            SettingsError: a parameter that is never trained does not start with the same values on all ranks.
        """
        await_ports(self.layout.addresses, "all pservers of the job")
        sync = self.network.main if self.settings.mode == "sync" else None
        self.servers = ServerConnection(self._role, self.trainers, self.scope, self._test, sync)
        self.own_servers = OwnServers.connect(self.settings.work_dir, self.layout)
        self.start_threads(self.settings.trainer_count)
        if not self.network.untrained:
            return
        values = self.parameters()
        sums = self.trainers.gather(
            [float(zlib.crc32(values[name].tobytes())) for name in self.network.untrained]
        )
        for name, by_rank in zip(self.network.untrained, sums.T, strict=True):
            if len(set(by_rank)) > 1:
                raise SettingsError(
                    f"the parameter {name!r}, which is not trained, starts with other values on each rank. Fix: give "
                    "it an initializer of Paddle, or numbers from a generator with a fixed seed"
                )

    def train(self, batches: Iterator[Arrays], count: int, on_batch: OnBatch) -> None:
        """Train the next `count` batches of `batches`. Call `on_batch` with each batch and its mean loss."""
        in_steps = self.settings.mode == "sync"
        train = self.threads.train_in_steps if in_steps else self.threads.train
        self.clock.resume()
        train(batches, count, on_batch)
        self.clock.pause()

    def _step(self, batch: Arrays, exe: Any, scope: Any) -> float:
        """Train one batch, and return its mean loss."""
        [loss] = exe.run(self.network.main, feed=batch, fetch_list=[self.network.loss], scope=scope)
        return float(np.asarray(loss).reshape(-1)[0])

    def _apply_step(self) -> None:
        """End a step of mode sync: wait until the servers have applied all gradients, then pull the dense parameters.

        All trainers call this together.
        """
        self.servers.flush()  # otherwise a gradient may arrive only in the next step
        self.trainers.barrier()
        self.servers.barrier()
        self.servers.pull_dense()

    def settle(self, barrier: Callable[[], None] | None = None) -> None:
        """Wait until the updates of all trainers have arrived at the servers, then pull the dense parameters.

        All trainers call this together. Afterwards the moving statistics of batch_norm are the mean over all trainers.

        Args:
            barrier: waits for the other trainers, takes no arguments; None for `Trainers.barrier`.
        """
        self.servers.flush()
        (barrier or self.trainers.barrier)()
        self.servers.pull_dense()
        for name in self.network.statistics:
            value = np.array(self.scope.find_var(name).get_tensor())
            mean = self.trainers.total(value.astype(np.float64)) / self.settings.trainers
            self.set_parameters({name: mean.astype(value.dtype)})

    def predict(self, arrays: Arrays) -> NDArray[np.float32]:
        """Return the network's prediction for some rows, shape [rows, …].

        The network uses this trainer's dense parameters, and looks up vectors in the servers' tables.
        """
        feed = {name: arrays[name] for name in self.feeds}
        [found] = self.exe.run(self._test, feed=feed, fetch_list=[self.network.prediction.name])
        return np.asarray(found)

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Return this trainer's copy of all dense parameters, by name."""
        return {name: np.array(self.scope.find_var(name).get_tensor()) for name in self.network.dense()}

    def set_parameters(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Set dense parameters in this trainer's memory. `values` has the new value of each parameter by name."""
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def leave(self) -> None:
        """Wait until all trainers have called this, then disconnect from the servers. Trainer 0 also stops them all."""
        self.trainers.barrier()
        self.servers.leave(stop=self.settings.rank == 0)
