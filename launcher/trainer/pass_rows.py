"""Read the rows that one trainer trains in each pass, from record files on the pod's own disk.

Each pod has staged one shard. If an attempt has as many trainers as shards, each trainer usually trains the shard of
its pod. With another number of trainers, a trainer's part may have rows of several shards (launcher/row_division.py).
The same holds for the rest of a pass whose beginning was trained by another number of trainers. Before the rendezvous,
the trainer copies these shards from the prepared data, and parses them. Later attempts use the copies again.

<work dir>/data/<shard>/train.txt      a copied shard
<work dir>/data/<shard>/sums.json      the checksums of its sources; written when the copy is complete
<work dir>/records/<shard>/            the records of the copied shard
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.dataprep import prepared_data
from launcher.errors import DataError, SettingsError, make_again_fix
from launcher.io import files
from launcher.io.rank_exchange import RankExchange
from launcher.io.thread_jobs import await_future
from launcher.row_division import Division, History
from launcher.trainer import conversion, record_files
from launcher.trainer.process_settings import ProcessSettings
from launcher.trainer.program_loader import TrainingProgram
from launcher.trainer.record_files import Arrays


class PassRows:
    """Holds the records of the shards that this trainer needs, and divides the rows of each pass among all trainers."""

    def __init__(
        self,
        settings: ProcessSettings,
        program: TrainingProgram,
        report: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """Open the records of the shards that this trainer needs. Parse the shards that are not parsed yet.

        Args:
            settings: the settings of this trainer.
            program: the training program.
            report: called now and then with a text about the progress.
            check: called often without arguments, also while this trainer waits for others. If it raises an error, the
                conversion stops with this error.

        Raises:
            DeadlineError: not all trainers have their shards after RANKS_SECONDS (launcher/io/rank_exchange.py).
            SettingsError: the checkpoint was saved inside a pass, and since then the program has changed: it now uses
                another number of rows of a shard. Or workDir.sizeLimit is too small for the shards.
            CheckpointError: contents.json of the checkpoint is missing or damaged.
            SettingsError, DataError, StorageError, UnfitError: see `conversion.convert_text` and
                `PreparedData.copy_shard`.
        """
        self._settings, self._program, self._report, self._check = settings, program, report, check
        work, self._own = settings.work, settings.world[settings.rank]
        store = f"{settings.store_address}_rows/"
        self._exchange = RankExchange(settings.rank, settings.trainers, store, settings.work_dir)
        self.staged, self.test = conversion.convert_staged(
            program, work.data, work.records, self._own, report=report, check=check
        )
        """The records of this pod's shard, and the records of the test set. The latter are None if the test set was not
        copied to this pod. Rank 0's pod always has the test set, if there is one."""
        self._shards = {self._own: self.staged}
        self._resumed_history: History = []
        contents = settings.resumed
        if contents is not None:
            self._resumed_history = contents.history
        self.rows: list[int] = []
        """Number of rows of each shard that the program uses. If each trainer trains the shard of its own pod, the list
        is empty until `gather_rows` is called."""
        self._resumed_pass = contents.position.passes if contents is not None else 0
        same = {settings.shards} >= {parts for parts, _, _ in self._resumed_history}
        if settings.world != tuple(range(settings.shards)) or not same:
            self._open_parts(contents.shard_rows if contents is not None else [])

    def _open_parts(self, rows: list[int]) -> None:
        """Open all shards from which this trainer trains rows, in the resumed pass or in a later pass.

        `rows` has the number of rows of each shard. If it is empty, each trainer counts the rows of some shards, and
        all trainers exchange these numbers.
        """
        s = self._settings
        if not rows:
            first, end = s.rank * s.shards // s.trainers, -(-(s.rank + 1) * s.shards // s.trainers)
            self._open(range(first, end))
            counted = [[shard, records.rows] for shard, records in self._shards.items()]
            found = self._exchange_while_checking(counted, "counting the rows of all shards")
            by_shard = {shard: count for each in found for shard, count in each}
            rows = [by_shard[shard] for shard in range(s.shards)]
        self.rows = rows
        for history in (self._resumed_history, ()):
            part = Division.resume(rows, history, s.trainers, s.batch_size).parts[s.rank]
            self._open([shard for shard, _, _ in part])
        for shard, records in self._shards.items():
            if records.rows != rows[shard]:
                raise SettingsError(
                    f"the program uses {records.rows:,} rows of shard {shard}, but it used {rows[shard]:,} when the "
                    "checkpoint inside this pass was saved, so the rows that are not trained yet are unknown. Fix: "
                    "restore the earlier program and training.args, or start from scratch: set startFromScratch to "
                    "any new text"
                )
        # Wait here until all trainers have their shards: in Paddle they wait for each other only for CONNECT_SECONDS.
        self._exchange_while_checking(None, "copying and parsing the shards of each trainer")

    def _exchange_while_checking(self, value: Any, what: str) -> list[Any]:
        """Send `value` to all trainers, and return the values of all trainers. Meanwhile call `check` repeatedly.

        This waits until all trainers have called it. `what` describes the exchange in errors.
        """
        with ThreadPoolExecutor(1, "exchange") as thread:
            return await_future(thread.submit(self._exchange.exchange, value, what), self._check)

    def _open(self, shards: Iterable[int]) -> None:
        """Open the records of some shards. Copy and parse the shards that this pod does not have yet.

        Raises:
            DataError: the manifest of the data is missing.
            SettingsError, StorageError: the pod's own disk does not have enough space.
            SettingsError, DataError, StorageError, UnfitError: see `conversion.convert_text` and
                `PreparedData.copy_shard`.
        """
        settings, work, layout = self._settings, self._settings.work, self._settings.layout
        missing = sorted(set(shards) - self._shards.keys())
        absent = [shard for shard in missing if not self._sums_file(shard).is_file()]
        if absent:
            path = layout.data_record(settings.data_digest)
            if (manifest := prepared_data.read_manifest(path)) is None:
                raise DataError(f"{path} is missing, but other shards are needed. {make_again_fix(path)}")
            size = sum(int(manifest["shards"][shard]["bytes"]) for shard in absent)
            needed = int(size * (1 + prepared_data.RECORDS_PER_BYTE))
            what = (
                f"the shards {', '.join(map(str, absent))} with the records of their rows ({needed:,} bytes)"
            )
            prepared_data.require_work_space(settings, needed, what)
            data = prepared_data.PreparedData(layout, manifest)
            for shard in absent:
                self._report(f"copying shard {shard}, because the run has {settings.trainers} trainers")
                text = self._sums_file(shard).with_name("train.txt")
                with files.storage_errors(text):
                    text.parent.mkdir(parents=True, exist_ok=True)
                copied = data.copy_shard(shard, text, self._check)
                files.write_json(self._sums_file(shard), {text.name: copied})
        for shard in missing:
            text = self._sums_file(shard).with_name("train.txt")
            name, folder = f"{shard}/data/train.txt", work.records / str(shard)
            self._shards[shard] = conversion.convert_text(
                self._program, text, name, folder, report=self._report, check=self._check
            )

    def _sums_file(self, shard: int) -> Path:
        return self._settings.work.data / str(shard) / conversion.CHECKSUMS

    def gather_rows(self, gather: Callable[[list[float]], NDArray[np.float64]]) -> None:
        """Exchange the numbers of rows among the trainers, if each trainer trains the shard of its own pod.

        All trainers call this together, after they have joined. `gather` is `Trainers.gather`.
        """
        if not self.rows:
            self.rows = gather([self.staged.rows])[:, 0].astype(int).tolist()

    def divide(self, number: int) -> Division:
        """Divide the rows of pass `number` (from 0) among the trainers.

        If the pass is resumed, divide only the rows that are not trained yet.
        """
        s, history = self._settings, self._resumed_history if number == self._resumed_pass else ()
        return Division.resume(self.rows, history, s.trainers, s.batch_size)

    def batches(self, division: Division, number: int, seed: int) -> Iterator[Arrays]:
        """Yield the batches of pass `number` (from 0) that this trainer must still train.

        If this trainer's part has no rows, all its batches have the same row, because all trainers must take the same
        number of steps.

        Args:
            division: the result of `divide` for this pass.
            number: number of the pass, from 0.
            seed: the program's seed, which determines the order of rows together with the pass and the shard.
        """
        part = division.parts[self._settings.rank] or [(self._own, 0, 1)]
        seeds = {shard: (seed, number, shard) for shard in self._shards}
        return record_files.read_batches(self._shards, part, division.steps, seeds, division.done)
