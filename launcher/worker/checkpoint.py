"""A save on the shared storage: written beside its name, read back, renamed, and `done` last.

pass-<NNNNN>/ or pass-<NNNNN>-batch-<NNNNNNN>/
  tables/<id>/part-…       async, sync: each server's part of each table, with its optimizer's state; in a
                           delta (`training.deltaSaves`) the rows that changed since the save before
  ids/<id>-<rank>.npy      the ids that a rank's servers have of a table: the model is made of them
  params.npz               dense parameters (geo: embedding tables too)
  optimizer-<rank>.npz     geo: each trainer's own optimizer state
  path.txt, <config>.py    where it was saved, and the program's config
  contents.json            position, seed, each rank's sums of the pass, every file's size and sha256, and
                           what the servers gave for some rows of each file: a load is held to it; of a
                           delta, the saves that it continues
  done                     the save is whole
  refused.json             a load did not give what was saved: it is never tried again
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import CheckpointError, LauncherError, StorageError, StorageFailedError
from launcher.layout import Output, Position
from launcher.worker import outputs

PARAMETERS = "params.npz"
TABLES = "tables"
MARGIN_BYTES = 1 << 20  # room for names, lists and logs beside what is saved
_UNFINISHED = re.compile(r"\..+\.attempt-(\d+)\.tmp")


class Save:
    """One save being written: trainer 0 calls begin, all write and `add` their parts, trainer 0 calls end."""

    def __init__(self, output_dir: Path, at: Position, attempt: int) -> None:
        self.output = Output(output_dir)
        self.at = at
        self.attempt = attempt
        self.final = self.output.save(at)
        self.folder = self.output.unfinished(at, attempt)

    def begin(self, least_bytes: int) -> None:
        """Makes the folder, and removes what earlier attempts left. Raises `StorageError` without room."""
        with files.storage(self.output.root):
            self.output.root.mkdir(parents=True, exist_ok=True)
            for path in list(self.output.root.iterdir()):
                left = _UNFINISHED.fullmatch(path.name)
                if left and int(left[1]) < self.attempt:
                    shutil.rmtree(path)
            self.need(least_bytes)
            self.folder.mkdir()

    def need(self, least_bytes: int) -> None:
        """Raises `StorageError` when less is free."""
        free = files.free_bytes(self.final)
        if free < least_bytes + MARGIN_BYTES:
            raise StorageError(
                f"no space left to save {self.at} in {self.final.parent}: {free} bytes are free, "
                f"but it takes at least {least_bytes + MARGIN_BYTES}. Make room there (earlier runs are in "
                "runs/), then start the run again: it goes on from the newest save."
            )

    def arrays(self, name: str, values: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Writes named arrays; returns the entry for `add`."""
        path = self.folder / name
        with files.storage(path), path.open("wb") as file:
            np.savez(file, **dict(values))
            file.flush()
            os.fsync(file.fileno())  # `done` must not outlive what it stands for
        return {name: {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}}

    def ids(self, table: str, rank: int, ids: NDArray[np.uint64]) -> dict[str, Any]:
        """Writes the ids that a rank's servers have of a table; returns the entry for `add`."""
        path = self.folder / f"ids/{table}-{rank}.npy"
        with files.storage(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                np.save(file, np.sort(ids))
                file.flush()
                os.fsync(file.fileno())
        name = path.relative_to(self.folder).as_posix()
        return {name: {"bytes": path.stat().st_size, "sha256": files.sha256_file(path)}}

    def add(self, rank: int, entries: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        """What this rank wrote and read back: its files, and {table: {"ids", "values"}} from the servers."""
        files.write_json(self._of(rank), {"files": entries, "rows": rows})

    def _of(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def end(self, config: Path, ranks: int, about: Mapping[str, Any]) -> int:
        """Puts the ranks' lists together, renames, and writes `done`. Returns the bytes of all files.

        `about` has a `chain`, of `outputs.link`, in a delta only.
        """
        entries: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        with files.storage(self.folder):
            for rank in range(ranks):
                own = files.read_json(self._of(rank))
                if own is None:
                    raise StorageFailedError(f"{self.at} was not saved whole: {self._of(rank)} is not there")
                entries |= own["files"]
                for table, found in own["rows"].items():
                    into = rows.setdefault(table, {"ids": [], "values": []})
                    into["ids"] += found["ids"]
                    into["values"] += found["values"]
                self._of(rank).unlink()
            files.write_whole(self.folder / config.name, config.read_bytes())
            files.write_whole(self.folder / "path.txt", f"{self.final}\n")
            for name in (config.name, "path.txt"):
                entries[name] = {"bytes": (self.folder / name).stat().st_size}
            place = {"pass": self.at.passes, "batch": self.at.batches}
            output_id = outputs.output_id(self.output.root)
            contents = {
                "version": outputs.DELTA_VERSION if "chain" in about else outputs.VERSION,
                "position": place,
                "attempt": self.attempt,
                **({"outputId": output_id} if output_id else {}),
                **about,
                "files": entries,
                "rows": rows,
            }
            files.write_json(self.folder / outputs.CONTENTS, files.sealed(contents))
            # Refused, or never finished: an intact checkpoint here would have been resumed from.
            if self.final.is_dir() and not self.final.is_symlink():
                (self.final / "done").unlink(missing_ok=True)
            files.remove(self.final)
            self.folder.rename(self.final)
            files.fsync_dir(self.final.parent)
        files.write_whole(self.final / "done", "")
        return sum(int(entry["bytes"]) for entry in entries.values())

    def prune(self, keep: int, best: Collection[Position] = ()) -> list[str]:
        """Removes whole saves but the newest `keep`, `best`, and what these continue, and nothing else.

        Returns their names.
        """
        removed = []
        with files.storage(self.output.root):
            chains = {
                at: chain
                for at in outputs.finished(self.output.root)
                if (chain := self._chain(at)) is not None
            }
            fit = {at.folder for at in chains}
            whole = {at: chain for at, chain in chains.items() if fit.issuperset(m.name for m in chain)}
            kept = {*list(whole)[:keep], *(at for at in best if at in whole)}
            needed = {member.name for at in kept for member in whole[at]}
            # The newest first: a delta goes before what it continues.
            for at in [at for at in whole if at not in kept and at.folder not in needed]:
                doomed = self.output.unfinished(
                    at, self.attempt
                )  # so that a broken removal leaves no half save
                self.output.save(at).rename(doomed)
                shutil.rmtree(doomed)
                removed.append(at.folder)
        return removed

    def _chain(self, at: Position) -> list[Path] | None:
        """Return what a finished checkpoint continues; None when it cannot be resumed from.

        The files of what it continues are not looked at.
        """
        folder = self.output.save(at)
        try:
            found = outputs.checked_contents(folder)
        except CheckpointError:
            return None
        return None if outputs.chain_fault(folder, found) else outputs.chain(folder, found)


def check_files(folder: Path, names: list[str], contents: Mapping[str, Any]) -> str | None:
    """What is wrong with these files of a save, None when each has the sha256 that it was saved with."""
    for name in names:
        entry = contents["files"].get(name)
        if entry is None:
            return f"{name} is not among the files that were saved"
        try:
            found = files.patient(folder / name, functools.partial(files.sha256_file, folder / name))
        except FileNotFoundError:
            return f"{name} is missing"
        if found != entry["sha256"]:
            return f"{name} has other bytes than were saved"
    return None


def refuse(folder: Path, reason: str, attempt: int) -> LauncherError:
    """Marks a save as unfit for ever. Returns the error that ends this attempt; the next takes another."""
    about = {"reason": reason, "attempt": attempt, "time": time.time()}
    files.write_json(folder / outputs.REFUSED, about)
    return StorageFailedError(
        f"{folder.name} cannot be gone on from: {reason}. {outputs.REFUSED} in it says so: the next start "
        "takes the save before it."
    )


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `Save.arrays` wrote."""
    with files.storage(path), np.load(path) as found:
        return {name: found[name] for name in found.files}


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Hex sha256 of names and values."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name}{arrays[name].shape}".encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
