"""A pass on the shared storage: written beside its name, checked, renamed, and `done` last.

pass-<NNNNN>/
  tables/<k>/part-…        async, sync: table k, each server's part, with its optimizer's state
  params.npz               dense parameters (geo: embedding tables too)
  optimizer-<rank>.npz     geo: each trainer keeps its own optimizer's state
  path.txt, <config>.py    where it was saved, and the program's config
  contents.json            every file and its size
  done                     the pass is whole
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher import files
from launcher.errors import GangError, SettingsError, StorageError
from launcher.layout import Output, Position
from launcher.worker.outputs import CONTENTS

PARAMETERS = "params.npz"
TABLES = "tables"
MARGIN_BYTES = 1 << 20  # room for names, lists and logs beside what is saved


class Save:
    """One pass being saved: trainer 0 calls begin, all write their parts, trainer 0 calls end."""

    def __init__(self, output_dir: Path, number: int, attempt: int) -> None:
        self.final = Output(output_dir).pass_dir(number)
        self.folder = Output(output_dir).unfinished(Position(number + 1), attempt)
        self.number = number

    def begin(self, least_bytes: int) -> None:
        """Makes the folder. Raises `StorageError` when less than `least_bytes` are free."""
        self._need(least_bytes)
        with files.storage(self.final):
            for old in (self.folder, self.final):
                if old.exists():
                    (old / "done").unlink(missing_ok=True)
                    shutil.rmtree(old)
            self.folder.mkdir(parents=True)

    def _need(self, least_bytes: int) -> None:
        free = files.free_bytes(self.final)
        if free < least_bytes + MARGIN_BYTES:
            raise StorageError(
                f"no space left to save pass {self.number} in {self.final.parent}: {free} bytes are free, "
                f"but it takes at least {least_bytes + MARGIN_BYTES}. Make room there (earlier runs are in "
                "runs/), then start the run again: it goes on from the last whole pass."
            )

    def arrays(self, name: str, values: Mapping[str, NDArray[Any]]) -> None:
        """Writes named arrays into the pass."""
        with files.storage(self.folder), (self.folder / name).open("wb") as file:
            np.savez(file, **dict(values))

    def end(self, config: Path, tables: int, servers: int) -> None:
        """Checks every part, adds the small files, renames, and writes `done`.

        Raises `StorageError` or `GangError` when a server's part is missing or torn.
        """
        self._check_parts(tables, servers)
        with files.storage(self.folder):
            shutil.copyfile(config, self.folder / config.name)
            files.write_whole(self.folder / "path.txt", f"{self.final}\n")
            sizes = {
                path.relative_to(self.folder).as_posix(): {"bytes": path.stat().st_size}
                for path in files.folder_files(self.folder)
            }
            files.write_json(
                self.folder / CONTENTS, {"pass": self.number, "servers": servers, "files": sizes}
            )
            self.folder.rename(self.final)
            files.fsync_dir(self.final.parent)
        files.write_whole(self.final / "done", "")

    def _check_parts(self, tables: int, servers: int) -> None:
        for table in range(tables):
            folder = self.folder / TABLES / f"{table:03d}"
            for server in range(servers):
                parts = sorted(folder.glob(f"part-{server:03d}*")) if folder.is_dir() else []
                torn = next((part for part in parts if not _readable(part)), None)
                if parts and torn is None:
                    continue
                what = f"part {torn.name} is torn" if torn else "no part is there"
                self._need(self._bytes())
                raise GangError(
                    f"pass {self.number} was not saved whole: of table {table}, server {server}, {what} in "
                    f"{folder}. The pass is not marked done; see the servers' logs in node_<i>/server*.log."
                )

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in files.folder_files(self.folder))


def _readable(part: Path) -> bool:
    opener: Any = gzip.open if part.suffix == ".gz" else open
    try:
        with opener(part, "rb") as file:
            while file.read(files.BLOCK):
                pass
    except (OSError, EOFError):
        return False
    return True


def check_servers(folder: Path, servers: int) -> None:
    """Raises `SettingsError` when a pass was saved by another number of pservers.

    Each server reads back the files that it wrote: with another number rows would be lost without a word.
    """
    saved = (files.read_json(folder / CONTENTS) or {}).get("servers")
    if saved != servers:
        raise SettingsError(
            f"{folder.name} was saved by {saved} pservers, now there are {servers} (trainers x portsNum): "
            "they cannot read each other's parts of the tables. Set portsNum back, or set a new runId to "
            "begin anew."
        )


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `Save.arrays` wrote; empty when there is no such file."""
    if not path.is_file():
        return {}
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


def bytes_of(arrays: Iterator[NDArray[Any]] | list[NDArray[Any]]) -> int:
    """Bytes that these arrays take on disk, about."""
    return sum(array.nbytes for array in arrays)
