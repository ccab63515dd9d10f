"""Saves and loads of a running job, each of which proves itself. All trainers call these together.

A save is read back by the trainers of the servers that wrote it, side by side, and some rows of each file
are asked of the servers; a load is held to the files' sha256 before it, and to those rows and the dense
parameters after it. Paddle itself only logs when a load fails, and goes on with what it has.

geo: the servers have only what the trainers exchanged, so what is saved is trainer 0's copy of all
parameters and each trainer's optimizer. `settle` lets the exchange come to rest before, so that the steps of
the others are in it, but for what Paddle's exchange loses itself (ranks were seen to stay 0.3 to 2 % apart).
After a load all ranks begin with that copy.

`training.deltaSaves`: saves inside a pass hold the rows that were pushed since the save before, and name what
they continue: a base of all rows, and the deltas behind it. A load reads these one after the other.
The first save of an attempt is a base: after a load the servers count all rows as changed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import best, files
from launcher.errors import DataError, DivergedError, SettingsError, StorageFailedError
from launcher.layout import Output, Position
from launcher.worker import checkpoint, outputs, parts
from launcher.worker.books import Log, Sums
from launcher.worker.checkpoint import PARAMETERS, TABLES, Save
from launcher.worker.initial import Initial, bring_in
from launcher.worker.network import Table
from launcher.worker.settings import WorkerSettings
from launcher.worker.trainer import Trainer

LOADS = 2  # tries: a save is refused for ever only when the servers fail twice to read what is there
Rows = dict[int, NDArray[np.float32]]
Keys = NDArray[np.uint64]
OLDER = 600
"""Rows of each table and rank that a delta proves besides its own, of what it continues."""
KEYS = {"width": "the width", "rule": "the optimizer"}


class Keeper:
    """One trainer's part in all saves and loads."""

    def __init__(self, settings: WorkerSettings, trainer: Trainer, log: Log, config: Path, seed: int) -> None:
        self.settings, self.trainer, self.log = settings, trainer, log
        self.config, self.seed = config, seed
        self.first = settings.rank == 0
        self.geo = settings.mode == "geo"
        self.bytes = 0
        """Of the newest save that is no delta; the same on every rank after a save."""
        self.delta_bytes = 0
        """Of the newest delta; 0: there is none yet."""
        self.chain: list[dict[str, str]] = []
        """What the next delta continues, of `outputs.link`; trainer 0 alone knows the sums."""
        self.older: dict[str, list[int]] = {}
        """By table, ids that the saves of `chain` proved."""
        self.scores: list[tuple[int, float]] = []
        """(finished passes, score) by `training.keepBest`, of this run's passes so far; on every rank."""

    def save(self, at: Position, sums: Sums, steps: int) -> None:
        """Saves what the servers have; the trainers' pushes have arrived. `sums`: all 0 at a pass' end."""
        trainer, began = self.trainer, time.monotonic()
        delta = bool(at.batches) and 0 < len(self.chain) <= self.settings.delta_saves
        if not delta:
            self.chain, self.older = [], {}
        save = Save(self.settings.output_dir, at, self.settings.attempt)
        entries: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        parameters = trainer.parameters()
        if not all(np.isfinite(values).all() for values in parameters.values()):
            raise DivergedError(f"a parameter is no number at {at}. Lower the learning rate.")
        if self.first:
            whole = parameters | trainer.tables() if self.geo else parameters
            before = self.delta_bytes or self.bytes if delta else self.bytes
            save.begin(before or sum(values.nbytes for values in whole.values()))
            entries |= save.arrays(PARAMETERS, whole)
        trainer.barrier()
        if self.geo:
            name = f"optimizer-{self.settings.rank}.npz"
            entries |= save.arrays(name, trainer.optimizer_state())
        else:
            if self.first:
                trainer.save_tables(save.folder / TABLES, delta=delta)
            trainer.barrier()
            found, rows = self._own_parts(save)
            entries |= found
        save.add(self.settings.rank, entries, rows)
        ranks = trainer.gather([sums.samples, sums.seconds, sums.loss])
        if self.first:
            about = {
                "seed": self.seed,
                "batches": steps,
                "mode": self.settings.mode,
                "servers": len(trainer.servers),
                "shards": trainer.shards,
                "ranks": ranks.tolist(),
                "dense": checkpoint.digest(parameters),
                "tables": {
                    table.name: {
                        "folder": "" if self.geo else trainer.table_folder(table.name),
                        "rows": table.rows,
                        "width": table.width,
                        "rule": trainer.rules[table.name].kind,
                    }
                    for table in trainer.network.tables
                },
            }
            if metric := self.settings.keep_best:
                passes = [(at, value if np.isfinite(value) else None) for at, value in self.scores]
                about["scores"] = {"metric": metric, "passes": passes}
            told = ""
            if delta:
                about["chain"] = self.chain
                told = f" (what changed since {self.chain[-1]['folder']})"
                self.delta_bytes = save.end(self.config, self.settings.trainers, about)
            else:
                self.bytes = save.end(self.config, self.settings.trainers, about)
            self.log.line(f"saved {save.final} in {time.monotonic() - began:.2f} s{told}")
        self.bytes = int(trainer.gather([self.bytes])[0, 0])  # trainer 0's; all wait for it here
        if self.settings.delta_saves:
            self.chain.append(outputs.link(save.final) if self.first else {})
        if self.first:
            self._prune(save)

    def _prune(self, save: Save) -> None:
        try:
            first = best.ranked(self.settings.keep_best, self.scores)[:1]
            for name in save.prune(self.settings.keep_saves, [*map(Position, first)]):
                self.log.line(f"removed {name}: training.keepSaves is {self.settings.keep_saves}")
        except Exception as error:  # the save is whole, and the next one prunes again
            self.log.line(f"cannot remove an older save: {error}")

    def _own_parts(self, save: Save) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads what this rank's servers wrote. Raises `StorageError`; `StorageFailedError` if torn."""
        entries: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        tables = {self.trainer.table_folder(table.name): table for table in self.trainer.network.tables}
        try:
            for folder in [*tables, self.trainer.dense_folder]:
                found, keys, ids = self._read_back(save.folder, folder, tables.get(folder))
                entries |= found
                if folder in tables:
                    entries |= save.ids(folder, self.settings.rank, ids)
                    name = tables[folder].name
                    if asked := self._ask(name, keys):
                        rows[name] = asked
        except DivergedError:
            raise
        except DataError as error:
            save.need(sum(path.stat().st_size for path in files.folder_files(save.folder)))
            raise StorageFailedError(
                f"{save.at} was not saved whole: {error}. It is not marked done; see the logs of this rank's "
                "servers."
            ) from error
        return entries, rows

    def _read_back(self, save: Path, folder: str, table: Table | None) -> tuple[dict[str, Any], Rows, Keys]:
        """The entries, some rows and all ids of a table's parts; `table` is None for the dense one."""
        place, own = save / TABLES / folder, self.trainer.own_servers
        paths = parts.of_servers(place, own)
        shards, servers = self.trainer.shards, len(self.trainer.servers)
        expected = sum(len(parts.held(shards, servers, server)) for server in own) if table else len(own)
        if len(paths) != expected:
            found = f"{len(paths)} parts are in {place}"
            raise DataError(f"of servers {own[0]} to {own[-1]}, {found}, not {expected}")
        entries: dict[str, Any] = {}
        keys: Rows = {}
        ids = []
        for path in paths:
            width, rule = (table.width, self.trainer.rules[table.name].kind) if table else (0, "adam")
            part = files.patient(path, partial(parts.read_back, path, width, rule))
            entries[path.relative_to(save).as_posix()] = {"bytes": part.size, "sha256": part.sha256}
            keys |= part.rows
            ids.append(part.keys)
        return entries, keys, np.concatenate(ids)

    def _ask(self, table: str, keys: Rows) -> dict[str, Any]:
        """What the servers give for these rows, and for some that the saves of the chain proved.

        Raises `DataError` when it is not what they wrote.
        """
        older = self.older.setdefault(table, [])
        ids = np.array(list(dict.fromkeys([*keys, *older])), np.uint64).view(np.int64)
        if not len(ids):
            return {}
        given = self.trainer.rows(table, ids)
        if not np.isfinite(given).all():
            raise DivergedError(f"{table} has rows that are no numbers. Lower the learning rate.")
        if keys and parts.differ(np.stack(list(keys.values())), given[: len(keys)]):
            raise DataError(f"the rows of {table} that were written are not those of the servers")
        if self.settings.delta_saves:
            most = max(1, OLDER // self.settings.delta_saves)  # an equal share of each save
            older += list(keys)[:: -(-len(keys) // most) or 1]
        return {"ids": ids.tolist(), "values": given.tolist()}

    def bytes_of(self, at: Position) -> int:
        """Return the bytes that a load of this checkpoint reads."""
        folder = Output(self.settings.output_dir).save(at)
        return sum(outputs.save_bytes(m) for m in (*outputs.chain(folder, outputs.contents(folder)), folder))

    def prepare(self) -> Initial | None:
        """Before the trainers meet: checks a save's files, and sets what goes to the servers by meeting."""
        at = self.settings.resume
        if at is None:
            return self._initial()
        folder = Output(self.settings.output_dir).save(at)
        contents = outputs.contents(folder)
        self.scores = outputs.scores(contents, self.settings.keep_best)
        self.bytes = outputs.save_bytes([*outputs.chain(folder, contents), folder][0])
        if reason := self._other_tables(contents):
            raise SettingsError(
                f"{folder.name} cannot be gone on from: {reason}. Set program and training.extraArgs back, "
                "or set a new runId to begin anew."
            )
        self._check(folder, contents)
        if self.geo:
            # Trainer 0's parameters become the servers', so they are set before everybody meets.
            self.trainer.set_parameters(checkpoint.load_arrays(folder / PARAMETERS))
            own = f"optimizer-{self.settings.rank}.npz"
            self.trainer.set_parameters(checkpoint.load_arrays(folder / own))
        return None

    def _check(self, folder: Path, contents: Mapping[str, Any]) -> None:
        """Raises the error of a refused checkpoint when this rank's share of its files was changed."""
        names = [f"optimizer-{self.settings.rank}.npz", PARAMETERS]
        for member in [*outputs.chain(folder, contents), folder]:
            about = outputs.contents(member)
            if not self.geo:
                # Each rank looks at its share, whichever servers will load it.
                tables = sorted(name for name in about["files"] if name.startswith(f"{TABLES}/"))
                names = tables[self.settings.rank :: self.settings.trainers]
                names += [PARAMETERS] if self.first else []
            if reason := checkpoint.check_files(member, names, about):
                raise checkpoint.refuse(member, reason, self.settings.attempt)

    def restore(self, at: Position) -> None:
        """Loads an earlier checkpoint of this run into the running servers (geo: trainer 0), for the model.

        Rows that it does not have stay there; the model has only those of its ids.
        """
        folder = Output(self.settings.output_dir).save(at)
        contents = outputs.contents(folder)
        self._check(folder, contents)
        self.trainer.barrier()
        if self.geo:
            self.trainer.set_parameters(checkpoint.load_arrays(folder / PARAMETERS))
        else:
            self._load_servers(folder, contents)
        self.log.line(f"restored {folder.name}, the best by {self.settings.keep_best}, for the model")

    def _other_tables(self, contents: Mapping[str, Any]) -> str | None:
        """What is other about the network's tables than when they were saved."""
        saved, present = contents["tables"], {table.name: table for table in self.trainer.network.tables}
        if list(saved) != list(present):
            return f"it has the tables {', '.join(saved)}, but the program has {', '.join(present)}"
        for name, table in present.items():
            for key, value in (("width", table.width), ("rule", self.trainer.rules[name].kind)):
                if saved[name][key] != value:
                    said = f"its table {name} has {KEYS[key]} {saved[name][key]}"
                    return f"{said}, but the program's has {value}"
            if self.geo and saved[name]["rows"] != table.rows:
                return f"its table {name} has rows={saved[name]['rows']}, but the program's has {table.rows}"
        return None

    def load(self, initial: Initial | None) -> Sums:
        """After the trainers met: the servers get what was saved, or brought in. Returns this rank's sums."""
        at, trainer = self.settings.resume, self.trainer
        if at is None:
            if self.settings.init_from:
                bring_in(self.settings, self.trainer, initial, self.log)
            return Sums()
        folder = Output(self.settings.output_dir).save(at)
        contents = outputs.contents(folder)
        if not self.geo:
            self._load_servers(folder, contents)
        elif reason := self._dense_fault(folder, contents):
            raise checkpoint.refuse(folder, reason, self.settings.attempt)
        trainer.barrier()
        self.log.line(f"resumed from {folder.name}: what the servers have is what was saved")
        return Sums(*contents["ranks"][self.settings.rank])

    def _load_servers(self, folder: Path, contents: Mapping[str, Any]) -> None:
        if self.first:
            self._load_tables(folder, contents)
        self.trainer.barrier()
        self.trainer.pull_dense()

    def _load_tables(self, folder: Path, contents: Mapping[str, Any]) -> None:
        for _ in range(LOADS):
            for older in outputs.chain(folder, contents):
                for table in self.trainer.network.tables:
                    self.trainer.load_table(table.name, older / TABLES)
            self._load_all(folder, contents["servers"])
            self.trainer.pull_dense()
            reason = self._dense_fault(folder, contents) or self._rows_fault(contents)
            if reason is None:
                return
            self.log.line(f"the load of {folder.name} does not fit: {reason}")
        raise checkpoint.refuse(folder, reason or "", self.settings.attempt)

    def _load_all(self, folder: Path, saved_by: int) -> None:
        trainer, servers = self.trainer, len(self.trainer.servers)
        if saved_by == servers:
            trainer.load_tables(folder / TABLES)
            return
        temp = self.settings.output_dir / f".dense.attempt-{self.settings.attempt}.tmp"
        with files.storage(temp):
            shutil.rmtree(temp, ignore_errors=True)
            place = trainer.dense_folder
            parts.deal_dense(folder / TABLES / place, temp / place, trainer.rule, servers)
            trainer.load_dense(temp)
            for table in trainer.network.tables:
                trainer.load_table(table.name, folder / TABLES)
            shutil.rmtree(temp)

    def _dense_fault(self, folder: Path, contents: Mapping[str, Any]) -> str | None:
        given = self.trainer.parameters()
        found = checkpoint.load_arrays(folder / PARAMETERS)
        saved = {name: found[name] for name in given if name in found}
        if checkpoint.digest(saved) != contents["dense"]:
            return f"{PARAMETERS} does not hold the parameters that the servers gave at the save"
        if self.geo:
            given |= self.trainer.tables()
            saved = found
        wrong = [name for name, values in given.items() if parts.differ(values, saved[name])]
        return f"after the load the servers give other values of {', '.join(wrong)}" if wrong else None

    def _rows_fault(self, contents: Mapping[str, Any]) -> str | None:
        for name, saved in contents["rows"].items():
            given = self.trainer.rows(name, np.array(saved["ids"], np.int64))
            expected = np.array(saved["values"], np.float32)
            wrong = [n for n in range(len(given)) if parts.differ(given[n], expected[n])]
            if wrong:
                ids = ", ".join(str(saved["ids"][n] % 2**64) for n in wrong[:5])
                return f"after the load {len(wrong)} of {len(given)} rows of {name} are others, such as {ids}"
        return None

    def _initial(self) -> Initial | None:
        # geo: all tables are trainer 0's before they meet, and the servers' through it.
        if not self.settings.init_from or (self.geo and not self.first):
            return None
        initial = Initial.find(self.settings)
        initial.check(self.trainer.network)
        if self.geo:
            whole = {table.name: initial.whole(table) for table in self.trainer.network.tables}
            initial = replace(initial, values=initial.values | whole)
        if self.first:
            self.trainer.set_parameters(initial.values)
        return initial
