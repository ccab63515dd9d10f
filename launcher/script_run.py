"""The interface of a user's script (runtimes collective and ps) to the launcher: progress, checkpoints, metrics, model.

docs/how-to/own-script.md has an example. This module imports neither numpy nor Paddle.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import math
import os
import random
import shutil
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher import metrics
from launcher.errors import DataError, LauncherError
from launcher.io import checkpoints, files, metrics_file, requested_checkpoints
from launcher.io.progress_file import ProgressFile
from launcher.io.rank_exchange import RankExchange
from launcher.io.step_clock import StepClock
from launcher.paths import OutputPaths, Position, position
from launcher.row_division import Division, batch_sizes, remaining
from launcher.schema import CheckpointFile, ScriptCheckpoint

ASK_SECONDS = 5.0
"""Seconds between two questions to the launcher whether somebody requested a checkpoint."""
SCORE_JSON = "score.json"
JOIN_SECONDS = 900.0
"""Longest wait for process 0 in seconds: the timeout of Paddle's own store (`init_parallel_env` in parallel.py)."""


class ScriptRun:
    """One process of a script. Create one object in every process, before the first step.

    Epochs and steps count from 0. A place (epoch, step) is where training continues: `step` steps of `epoch` are done.
    The launcher uses other words: a pass is an epoch, and the batches of a pass are the steps of all processes
    together. A checkpoint stores its position as a number of batches, so a run with another number of processes
    continues at the same part of the epoch.

    Attributes:
        rank: number of this process, from 0. Process 0 saves scores, the model and, unless all processes save together
            (`all_ranks`), the checkpoints. With runtime ps this is the number of a trainer. A parameter server has the
            number -1, and uses no other attribute than `checkpoint`.
        world_size: number of all processes; with runtime ps of all trainers.
        accumulation_steps: number of steps whose gradients to add up before an update. In an elastic run this is the
            largest world size divided by the current one, rounded up, so that the global batch stays about the same. In
            all other runs this is 1.
        epochs: number of epochs to train: `training.passes`, unless the script sets another.
        batch_size: `training.batchSize`, the samples of one step of one process.
        train_file: file with the pod's shard of the data, which all processes of the pod read; None if the launcher
            does not prepare the data, and with `data.format: files`.
        test_file: the test set; None if there is none.
        data: with `data.format: files` the folder of the data files, which the script must not change; else None.
        tables: folder of the side tables (`data.tables`), which is empty if there are none; None if the launcher does
            not prepare the data.
        output: the run's output folder on the shared storage; without the launcher, `output` in the current folder.
        start: the place (epoch, step) at which training continues; (0, 0) at the start of a run.
        checkpoint: the folder with the verified files that were saved at `start`; None if there is no checkpoint. To
            find out whether there is a checkpoint, test this attribute and not `start`, which can be (0, 0) although
            there is a checkpoint. For example, after 2 batches a run continues with 4 processes: 2 batches are less
            than one step of 4 processes.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the settings of this process from `environ` (None: `os.environ`), and verify the checkpoint.

        If the checkpoint is damaged, this process rejects it and exits with code 71. The next attempt then resumes from
        an earlier checkpoint.
        """
        env = dict(os.environ if environ is None else environ)
        self._uses_servers = bool(env.get("PADDLE_PSERVERS_IP_PORT_LIST"))
        is_server = self._uses_servers and env.get("TRAINING_ROLE") == "PSERVER"
        self.rank = -1 if is_server else int(env.get("PADDLE_TRAINER_ID") or env.get("RANK") or 0)
        self.world_size = int(env.get("PADDLE_TRAINERS_NUM") or env.get("WORLD_SIZE") or 1)
        full = int(env.get("PADDLE_LAUNCHER_FULL_WORLD_SIZE") or self.world_size)
        self.accumulation_steps = -(-full // self.world_size)
        self.epochs = int(env.get("PADDLE_LAUNCHER_PASSES") or metrics.DEFAULT_PASSES)
        self.batch_size = int(env.get("PADDLE_LAUNCHER_BATCH_SIZE") or 256)
        self.train_file = _path(env, "PADDLE_LAUNCHER_TRAIN_FILE")
        self.test_file = _path(env, "PADDLE_LAUNCHER_TEST_FILE")
        self.data = _path(env, "PADDLE_LAUNCHER_DATA_DIR")
        self.tables = _path(env, "PADDLE_LAUNCHER_TABLES_DIR")
        self.output = Path(env.get("PADDLE_LAUNCHER_OUTPUT_DIR") or "output").absolute()
        self._attempt = int(env.get("PADDLE_LAUNCHER_ATTEMPT") or 0)
        self._keep = int(env.get("PADDLE_LAUNCHER_KEEP_CHECKPOINTS") or 3)
        self._every_steps = int(env.get("PADDLE_LAUNCHER_CHECKPOINT_EVERY_BATCHES") or 0)
        minutes = env.get("PADDLE_LAUNCHER_CHECKPOINT_EVERY_MINUTES") or (0 if self._every_steps else 10)
        self._every_seconds = float(minutes) * 60
        self._requests = env.get("PADDLE_LAUNCHER_REQUESTS", "")
        self._exchange = RankExchange(
            self.rank, self.world_size, self._requests, self.output / ".script-ranks"
        )
        self._master = _master_address(env)
        progress = _path(env, "PADDLE_LAUNCHER_PROGRESS_FILE")
        self._progress = _ScriptProgress(progress)
        self._clock, self._has_waited = StepClock(), False
        self._saved_at = self._asked_at = time.monotonic()
        self._steps_since_save = self._asked = 0
        self._epoch_began: float | None = None
        """Monotonic time at which the measured part of this epoch began, plus the time spent saving and testing."""
        self._paused_at: float | None = None
        """Monotonic time at which the current saving or testing began; None while the process trains."""
        self._samples = self._measured = self._loss = 0.0
        """Of this epoch: number of samples, number of samples in measured steps, sum of the losses of all samples."""
        with _exit_on_error():
            self.checkpoint = self._find_checkpoint(env.get("PADDLE_LAUNCHER_RESUME"))
            at = (position(self.checkpoint.name) if self.checkpoint else None) or Position(0)
            self._resumed, self.start = at, (at.passes, at.batches // self.world_size)
            history = [[self.world_size, self.start[1], 0]] if self.start[1] else []
            if self.checkpoint and at.batches:
                history = checkpoints.read_any_contents(self.checkpoint).history or history
            self._resumed_history = history
        self._batches: RowBatches | None = None
        """The newest object that `batches` returned."""
        self._manifest = _path(env, "PADDLE_LAUNCHER_MANIFEST")
        self._progress.set(state="starting")

    def _find_checkpoint(self, name: str | None) -> Path | None:
        """Verify the checkpoint `name` and return its folder; None if there is no checkpoint (`name` is empty).

        Without the launcher `name` is None, which means the newest checkpoint. Raises the error of `checkpoints.reject`
        if the checkpoint is damaged.
        """
        if name is None:
            found = checkpoints.newest_checkpoint(self.output)
            name = found.folder if found else ""
        if not name:
            return None
        folder = self.output / name
        self._progress.set(state="loading")
        # Parameter servers do not verify the checkpoint: the trainers do.
        if (
            self.rank >= 0
            and (damage := checkpoints.find_damage(folder, self.rank, self.world_size)) is not None
        ):
            raise checkpoints.reject(folder, damage, self._attempt)
        return folder

    def init_parallel_env(self) -> None:
        """Connect to all other processes with `paddle.distributed.init_parallel_env`; do nothing if there are none.

        If process 0 does not answer, Paddle waits three seconds before it asks again (kDelay in its tcp_utils.h). This
        method waits until process 0 listens, and then calls Paddle's function: a start takes up to three seconds less.
        """
        if self.world_size == 1:
            return
        from paddle.distributed import init_parallel_env

        self._progress.set(state="joining")
        if self.rank and self._master:  # without an address Paddle reports what is missing
            _wait_for_listener(self._master, time.monotonic() + JOIN_SECONDS)
        init_parallel_env()
        self._progress.set(state="starting")

    def batches(
        self, epoch: int, rows: int, *, batch_size: int = 0, shuffle: bool = True, seed: int = 0
    ) -> RowBatches:
        """Return the batches of this process for the rest of an epoch; each batch is a list of row numbers.

        Row numbers are from 0 to `rows` - 1. This method divides the rows among all processes, and each process gets
        the same number of batches. In an epoch each row is trained once, even if the number of processes changes in the
        middle: `save` stores which rows are trained already.

        Call this method once in an epoch. Give the same arguments in all processes, and the same `rows`, `shuffle` and
        `seed` in every attempt. Pass the result to `paddle.io.DataLoader` as `batch_sampler`.

        Args:
            epoch: the epoch, from 0.
            rows: number of rows of all processes together.
            batch_size: largest number of rows in a batch; 0: `run.batch_size`.
            shuffle: True: the order of the rows is random, and depends on `seed` and `epoch` only. False: the rows come
                in the order of their numbers.
            seed: any number; another number gives another order.

        Raises:
            ValueError: `rows` is 0, or this method was called for the same epoch with another number of rows.
        """
        if rows < 1:
            raise ValueError(
                f"run.batches({epoch}, {rows}): there are no rows. Fix: give the number of all rows"
            )
        if (earlier := self._batches) and earlier.epoch == epoch and earlier.rows != rows:
            raise ValueError(
                f"run.batches({epoch}, {rows}): this epoch has batches of {earlier.rows} rows already, and a "
                "checkpoint stores how many of one set of rows are trained. Fix: call it for the training rows only; "
                "divide rows for an evaluation with range(run.rank, ROWS, run.world_size)"
            )
        is_resumed = epoch == self.start[0]
        history = self._resumed_history if is_resumed else []
        division = Division.resume([rows], history, self.world_size, batch_size or self.batch_size)
        first = self.start[1] if is_resumed else 0
        order = f"{seed}/{epoch}" if shuffle else ""
        self._batches = RowBatches(division, max(0, self.rank), epoch, first, order)
        return self._batches

    def lines(self, epoch: int, *, batch_size: int = 0) -> LineBatches:
        """Return the batches of this process for the rest of an epoch; each batch is a list of lines without newlines.

        The lines come from all shards of the prepared data, in the order of the shards. This process reads them from
        the shared storage. All processes together get each line once in an epoch, as `batches` describes. The arguments
        are those of `batches`.

        Raises:
            ValueError: the launcher has not prepared data for this run, or the data is not text.
        """
        with _exit_on_error():
            manifest = files.read_json(self._manifest) if self._manifest else None
        if not self._manifest or not manifest or manifest.get("format") in ("files", "parquet"):
            raise ValueError(
                "run.lines() reads the lines of the launcher's prepared data, which this run does not have. Fix: set "
                "data.format to a format of text, or use run.batches() with the number of rows of your own data"
            )
        root = self._manifest.parent / str(manifest["content"])
        shards = []
        for shard in manifest["shards"]:
            folder, names = root / str(shard["index"]), ["train.txt"]
            if shard.get("parts"):
                with _exit_on_error():
                    names = [each["name"] for each in (files.read_json(folder / "files.json") or {})["files"]]
            shards.append((int(shard["lines"]), [folder / name for name in names]))
        rows = sum(count for count, _ in shards)
        return LineBatches(self.batches(epoch, rows, batch_size=batch_size, shuffle=False), shards)

    def _position(self, epoch: int, step: int) -> Position:
        """Return the position after `step` steps of `epoch`. Its number of batches is the sum over all processes."""
        if epoch != self.start[0]:
            return Position(epoch, step * self.world_size)
        return Position(epoch, self._resumed.batches + (step - self.start[1]) * self.world_size)

    def report(self, epoch: int, step: int, steps: int = 0, *, loss: float, samples: int) -> None:
        """Report a trained step. Call this after every step: it writes a small local file, at most twice a second.

        Args:
            epoch: the current epoch, from 0.
            step: steps of this epoch that are done, so 1 after the first one.
            steps: steps of the whole epoch, for the estimate of the remaining time; 0 if unknown.
            loss: mean loss of the step's samples.
            samples: samples of this step, of this process alone.
        """
        now = time.monotonic()
        if self._epoch_began is None:
            self._epoch_began = now  # the first step of a process is slow, so its time is not measured
            self._clock.resume()
        else:
            self._measured += samples
            self._clock.add_step()
        self._samples += samples
        self._loss += loss * samples
        self._steps_since_save += 1
        seconds = now - self._epoch_began
        all_batches = {
            "batch": self._position(epoch, step).batches,
            "batches": self._position(epoch, steps).batches if steps else 0,
        }
        place = {"pass": epoch, "passes": self.epochs, "batch_size": samples / self.world_size, **all_batches}
        speed = round(self._measured / seconds, 1) if seconds > 0 else 0.0
        own = self._clock.step_seconds if self._has_waited else None
        loss = self._loss / (self._samples or 1)
        self._progress.stepped(**place, samples_per_second=speed, loss=loss, step_seconds=own)

    def should_save(self, *, all_ranks: bool = False) -> bool:
        """Return whether process 0 should save a checkpoint now; False in all other processes.

        With `all_ranks`, and with runtime ps, all processes get the answer of process 0, because all of them must call
        `save`. They wait for each other in this method, so all must call it equally often, such as every 100 steps.

        True if the interval `training.checkpointEvery` is over, or if the launcher answers that a checkpoint is
        requested: by a user (`launcher stop`), or because a pod must exit. Process 0 asks the launcher over HTTP, at
        most once every ASK_SECONDS. If the launcher does not answer, the result is False, and a later call asks again.

        The first call tells the launcher, through the progress file, that this script saves checkpoints. If this file
        cannot be written, the process prints the error and exits.
        """
        is_wanted = self.rank == 0 and self._wants_checkpoint()
        with self._clock.paused():
            if not self._uses_servers or self.world_size == 1:
                if all_ranks:
                    with _exit_on_error():
                        return bool(self._exchange.exchange(is_wanted, "run.should_save()")[0])
                return is_wanted
            from paddle.distributed import fleet

            return bool(fleet.util.all_reduce(int(is_wanted), "max"))

    def _wants_checkpoint(self) -> bool:
        self._progress.start_saving()
        now = time.monotonic()
        if 0 < self._every_steps <= self._steps_since_save or 0 < self._every_seconds <= now - self._saved_at:
            return True
        if not self._requests or now - self._asked_at < ASK_SECONDS:
            return False
        self._asked_at = now
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            # The number in the address increases only after an answer: if an answer was lost, the process asks at the
            # same address again, and gets the same answer.
            is_wanted = requested_checkpoints.ask_once(f"{self._requests}{self._asked + 1}", 0)[0]
            self._asked += 1
            return is_wanted
        return False

    @contextlib.contextmanager
    def save(self, epoch: int, step: int, *, all_ranks: bool = False) -> Iterator[Path]:
        """Save a checkpoint: `with run.save(epoch, step) as folder:` and write any files into `folder`.

        When the block ends without an error, the checkpoint appears with all its files, and checkpoints older than the
        newest `training.keepCheckpoints` are removed. After an error no checkpoint appears.

        Without `all_ranks` only process 0 may call this. With runtime ps all trainers must call it, and call
        `fleet.save_persistables(exe, str(folder))` in the block; that function waits for all trainers.

        Args:
            epoch: the epoch in which training will continue: 4 at the end of epoch 3.
            step: the number of finished steps of `epoch`: 0 at the end of an epoch.
            all_ranks: all processes call this, and write files with different names into the same folder. The
                checkpoint appears when all of them have left the block. The processes wait for each other before and
                after the block. A process that has waited RANKS_SECONDS (launcher/io/rank_exchange.py) exits.

        Raises:
            ValueError: `epoch` and `step` are 0; the block wrote no file, or a file with a name that cannot be in a
                checkpoint; or with `all_ranks` the processes have different values of `epoch` or `step`, or wrote more
                files than they can list to each other.
            RuntimeError: another process than process 0 calls this without `all_ranks`.
        """
        at = self._position(epoch, step)
        if at <= Position(0):
            raise ValueError(f"run.save({epoch}, {step}): there is nothing to save before the first step")
        made = checkpoints.CheckpointFolder(self.output, at, self._attempt)
        if self._uses_servers and self.rank > 0:  # the servers write the files, when trainer 0 requests it
            with self._in_state("saving"):
                yield made.folder
            return
        together = all_ranks and not self._uses_servers

        def create() -> None:
            if self.rank == 0:
                made.create()
            places = self._exchange.exchange([epoch, step], f"run.save({epoch}, {step})") if together else []
            if wrong := [rank for rank, place in enumerate(places) if place != places[0]]:
                raise ValueError(
                    f"process 0 saves at {places[0]}, but process {wrong[0]} at {places[wrong[0]]}. "
                    "Fix: let all processes save at the same step"
                )

        with self._writing(made.folder, "saving", create, together=together):
            yield made.folder
            found = made.list_files(self._exchange if together else None)
            if self.rank == 0:
                history = (
                    self._batches.history(step) if self._batches and self._batches.epoch == epoch else []
                )
                self._publish(made, found, self.world_size if together else 1, history)
            if together:
                self._exchange.exchange(None, f"run.save({epoch}, {step})")
        self._saved_at, self._steps_since_save = time.monotonic(), 0
        if self._requests:
            requested_checkpoints.wait_while_held(self._requests.removesuffix("_checkpoint/"))

    def _publish(
        self,
        made: checkpoints.CheckpointFolder,
        found: dict[str, CheckpointFile],
        processes: int,
        history: list[list[int]],
    ) -> None:
        """Publish a checkpoint with the files `found`, and remove the oldest checkpoints."""
        size = made.publish(
            ScriptCheckpoint(
                script=checkpoints.SCRIPT_VERSION,
                position=made.at,
                attempt=self._attempt,
                output_id=checkpoints.read_output_id(self.output) or "",
                files=found,
                processes=processes,
                history=history,
            )
        )
        if self._requests:
            made.output.checkpoint_request.unlink(missing_ok=True)
        removed: list[str] = []
        with contextlib.suppress(OSError, LauncherError):  # the next save tries again
            removed = checkpoints.prune_checkpoints(made.output, self._attempt, self._keep)
        self._progress.set(saved=made.at, bytes=size)
        gone = "".join(f", removed {name}" for name in removed)
        print(f"saved {made.at.folder} ({size:,} bytes){gone}", flush=True)  # noqa: T201

    @contextlib.contextmanager
    def save_model(self) -> Iterator[Path]:
        """Save the finished model: `with run.save_model() as folder:` and write any files into `folder`.

        When the block ends, the folder becomes `output/model/`, which is what `training.exportTo` uploads. This method
        adds the scores of the last epoch (`end_epoch`) as score.json, unless the block writes that file. Only process 0
        may call this.
        """
        folder, model = self.output / f".model.attempt-{self._attempt}.tmp", OutputPaths(self.output).model

        def create() -> None:
            files.remove_path(folder)
            folder.mkdir(parents=True)

        with self._writing(folder, "writing", create):
            yield folder
            if not (folder / SCORE_JSON).exists() and (scores := self._last_scores()):
                files.write_json(folder / SCORE_JSON, scores)
            files.fsync_tree(folder)
            files.remove_path(model)
            folder.rename(model)
            files.fsync_dir(self.output)

    def _last_scores(self) -> dict[str, float]:
        """Return the test scores of the newest epoch in metrics.csv, also if an earlier attempt has written them."""
        content = files.read_bytes(OutputPaths(self.output).metrics_csv) or b""
        rows = [row for row in metrics.parse_metrics(content.decode(errors="replace")) if row.rank == 0]
        return {name: score for name, score in rows[-1].tests.items() if math.isfinite(score)} if rows else {}

    @contextlib.contextmanager
    def _writing(
        self, folder: Path, state: str, create: Callable[[], None], *, together: bool = False
    ) -> Iterator[None]:
        """Report `state`, call `create`, which creates `folder`, and run the block.

        If the block fails, process 0 removes `folder`. `together` is whether all processes write into `folder`; if it
        is False, only process 0 may call this.
        """
        if self.rank and not together:
            raise RuntimeError(
                f"process {self.rank} must not save alone. Fix: if all processes have the same parameters, save in "
                "process 0 only: if run.rank == 0; for a checkpoint with parts of all processes, let all call "
                "run.save(…, all_ranks=True)"
            )
        with self._in_state(state), _exit_on_error():
            try:
                with files.storage_errors(self.output):
                    create()
                    yield
            except BaseException:
                if self.rank == 0:
                    shutil.rmtree(folder, ignore_errors=True)
                raise

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Exclude the time of the block from this process's own time per step.

        In the block the process waits for other processes. Put all communication of a step into `with run.waiting():`
        blocks, for example the exchange of gradients. Then the command `status` shows each rank's own time per step,
        and says which rank is slow. Without such blocks `status` shows no times: a fast process waits for the slow one
        in every step, so all would have the same time. On a GPU, call `paddle.device.synchronize()` before the block
        and at the end of the block.
        """
        self._has_waited = True
        with self._clock.paused():
            yield

    @contextlib.contextmanager
    def testing(self) -> Iterator[None]:
        """Report that the block tests the model, so that it may take longer than `training.progressDeadlineSeconds`."""
        with self._in_state("testing"):
            yield

    @contextlib.contextmanager
    def _in_state(self, state: str) -> Iterator[None]:
        began = self._paused_at = time.monotonic()
        self._progress.set(state=state)
        try:
            with self._clock.paused():
                yield
        finally:  # also if the script goes on after an error in the block
            if self._epoch_began is not None:
                self._epoch_began += time.monotonic() - max(began, self._epoch_began)
            self._paused_at = None
            self._progress.set(state="training")

    def end_epoch(self, epoch: int, **scores: float) -> None:
        """Record the end of an epoch in metrics.csv, with test scores such as `accuracy=0.91`, and begin the next.

        Every process must call this; only process 0 writes to metrics.csv. It writes its own scores, and it writes its
        own number of samples multiplied by the number of processes. If it has reported no samples in this epoch, it
        writes nothing, and the scores are lost.
        """
        if self.rank == 0 and self._samples:
            seconds = (self._paused_at or time.monotonic()) - (self._epoch_began or 0.0)
            row = (int(self._samples) * self.world_size, seconds, self._loss / self._samples)
            with _exit_on_error():
                with files.storage_errors(self.output):
                    self.output.mkdir(parents=True, exist_ok=True)
                metrics_file.write_metrics(self.output, epoch, self._attempt, [row], scores, may_rename=True)
        self._samples = self._measured = self._loss = 0.0
        self._epoch_began = time.monotonic()
        self._progress.write()  # with the last step, because there may be no later report


class RowBatches:
    """The batches of one process for the rest of an epoch; each batch is a list of row numbers.

    Attributes:
        epoch: the epoch, from 0.
        rows: number of rows of all processes together.
        first: the number of the first batch: the step of `run.start` in the epoch at which training continues, else 0.
        steps: the number of steps of the epoch, including the steps before `first`.
    """

    def __init__(self, division: Division, rank: int, epoch: int, first: int, order: str) -> None:
        """Create the batches of process `rank`.

        Args:
            division: the division of the rows that remain in the epoch among all processes.
            rank: number of this process, from 0.
            epoch: the epoch, from 0.
            first: the number of the first batch.
            order: seed of the random order of the rows; empty: the rows come in the order of their numbers.
        """
        self.epoch, self.first, self.rows = epoch, first, division.rows[0]
        self.steps = first + division.steps - division.done
        self._division, self._order = division, order
        self._part = division.parts[rank] or [(0, 0, 1)]  # all processes must take the same number of steps

    def __len__(self) -> int:
        """Return the number of batches, which is the same in all processes."""
        return self.steps - self.first

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches. Their sizes differ by at most one row."""
        division = self._division
        order: Sequence[int] = range(division.rows[0])
        if self._order:
            shuffled = array("q", order)
            random.Random(self._order).shuffle(shuffled)  # noqa: S311
            order = shuffled
        rows = (
            order[row]
            for _, first, end in remaining(self._part, division.steps, division.done)
            for row in range(first, end)
        )
        for size in batch_sizes(self._part, division.steps, division.done):
            yield list(itertools.islice(rows, size))

    def history(self, step: int) -> list[list[int]]:
        """Return how the rows of the epoch were divided until step `step`, in the form of `row_division.History`."""
        return self._division.history(self._division.done + step - self.first) if step else []


class LineBatches:
    """The batches of one process for the rest of an epoch; each batch is a list of lines.

    `epoch`, `first` and `steps` are the same attributes as in `RowBatches`.
    """

    def __init__(self, rows: RowBatches, shards: list[tuple[int, list[Path]]]) -> None:
        """Create the batches of the lines whose numbers are in `rows`; no line is read yet.

        `shards` has (number of lines, files) of each shard. Lines are numbered from 0 through all shards.
        """
        self.epoch, self.first, self.steps = rows.epoch, rows.first, rows.steps
        self._rows, self._shards = rows, shards

    def __len__(self) -> int:
        """Return the number of batches, which is the same in all processes."""
        return len(self._rows)

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the batches. If a file cannot be read, the process exits with the code of the launcher's error.

        Raises:
            FileNotFoundError: a file of a shard is absent.
        """
        expected, lines = 0, self._read(0)
        with _exit_on_error():
            for batch in self._rows:
                found: list[str] = []
                for row in batch:
                    if row != expected:
                        lines = self._read(row)
                    expected = row + 1
                    found += itertools.islice(lines, 1)
                if len(found) < len(batch):
                    raise DataError(
                        f"the shards in {self._shards[0][1][0].parents[1]} have fewer lines than their manifest "
                        "says: they were changed after the data Job. Fix: start the run again with another runId"
                    )
                yield found

    def _read(self, first: int) -> Iterator[str]:
        """Yield the lines of all shards, beginning with line number `first`."""
        for count, paths in self._shards:
            if first < count:
                yield from itertools.islice(
                    itertools.chain.from_iterable(map(_read_file, paths)), first, None
                )
            first = max(0, first - count)


def _read_file(path: Path) -> Iterator[str]:
    with (
        files.storage_errors(path),
        path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines,
    ):
        for line in lines:
            yield line.removesuffix("\n")


class _ScriptProgress(ProgressFile):
    """Writes the progress.json of a script's process; without the launcher it writes no file.

    If the file cannot be written, the process exits as `_exit_on_error` describes.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(path or Path("progress.json"), saves=False)
        self._has_file = path is not None

    def write(self) -> None:
        if self._has_file:
            with _exit_on_error():
                super().write()


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _master_address(env: Mapping[str, str]) -> str:
    """Return the `host:port` on which process 0 listens, from the variables that Paddle's parallel.py reads, too."""
    if env.get("MASTER_ADDR") and env.get("MASTER_PORT"):
        return f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    return env.get("PADDLE_MASTER") or env.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")[0]


def _wait_for_listener(address: str, deadline: float) -> None:
    """Wait until a connection to `host:port` succeeds or `deadline` (monotonic seconds) has passed."""
    host, _, port = address.rpartition(":")
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=3.0):
            return
        time.sleep(0.05)


@contextlib.contextmanager
def _exit_on_error() -> Iterator[None]:
    """Print a `LauncherError` of the block, and exit this process with the error's exit code.

    The exit code tells the launcher whether to restart the run.
    """
    try:
        yield
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(error.exit_code) from error
