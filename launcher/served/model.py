"""`Model`: a folder that training exported, in memory and ready to predict."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from .engine import Engine
from .errors import ModelError, RowError
from .program import Arrays, Program
from .table import Table

VERSION = 2
"""Of the folder: 1 had its embedding tables inside the network."""
EMBEDDINGS = "embeddings"
CHUNK = 8192
"""Rows that are predicted at once: their vectors stay in the processor's cache."""


@dataclass(frozen=True)
class Answer:
    """What the model says of some rows."""

    predictions: NDArray[np.float32]
    """Shape [rows, …], as the program's network() gave it: for several classes the whole vector."""
    words: list[str] | None
    """The program's own describe(prediction) of each row; None when it has none."""
    unknown: dict[str, int]
    """Ids that each table does not know, by its name; they read as zeros."""


@dataclass(frozen=True)
class Lookup:
    """One use of a table in the network, by the names of its ids and of the input for their vectors."""

    table: str
    ids: str
    vectors: str


def table_folder(folder: Path, name: str) -> Path:
    """Where a model keeps a table; any name is fit for a file's."""
    return folder / EMBEDDINGS / quote(name, safe="")


def description(folder: Path) -> dict[str, Any]:
    """The content of `model.json`. Raises `ModelError` for no model, another version's, or one not whole."""
    path = folder / "model.json"
    try:
        about = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} holds no model: there is no model.json in it. Name the folder `model` of a run's "
            "output, or of what `python -m launcher results --to DIR` copied."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Copy the model again.") from error
    version = about.get("version") if isinstance(about, dict) else None
    if version != VERSION:
        raise ModelError(
            f"{folder} holds a model of version {version}, but this package reads version {VERSION}. Take "
            "the paddle_served (or the launcher's image) of the release that trained it, or train it again."
        )
    for name, size in about["files"].items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            found = None
        if found != size:  # Paddle itself takes parameters that are cut off for whole ones
            is_now = "missing" if found is None else f"{found} bytes long, but was {size}"
            raise ModelError(f"{folder / name} is {is_now}: the model was not copied whole. Copy it again.")
    return dict(about)


class Model:
    """A trained model. Its methods may be called from several threads."""

    def __init__(self, path: str | Path, threads: int = 1) -> None:
        """Opens the folder; tables are mapped, not read. `threads`: of Paddle's mathematics, each call.

        Raises `ModelError`.
        """
        folder = Path(path)
        self.about = description(folder)
        self.program = Program(folder, self.about)
        self.tables = {
            name: Table(table_folder(folder, name), table["rows"], table["width"])
            for name, table in self.about["tables"].items()
        }
        self._lookups = [Lookup(**lookup) for lookup in self.about["lookups"]]
        self._network = Engine(folder / "network", threads)
        computed = any(lookup.ids not in self.program.features for lookup in self._lookups)
        self._ids = Engine(folder / "ids", threads) if computed else None
        self._lock = threading.Lock()
        self.ids = dict.fromkeys(self.tables, 0)
        """Ids that were looked up, padding included, by table."""
        self.unknown = dict.fromkeys(self.tables, 0)
        """Those of them that the table does not know."""

    @property
    def columns(self) -> list[str]:
        """The columns that a row to predict must have."""
        return self.program.needed

    @property
    def score(self) -> dict[str, float]:
        """The program's metrics of this model on the test set."""
        return dict(self.about["score"])

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """What the model says of rows given as {column: text or number}; float32, shape [rows, …].

        Columns that nobody knows when predicting (the label's) may be left out. Raises `RowError`.
        """
        return self.answer(rows).predictions

    def answer(self, rows: Sequence[Mapping[str, Any]]) -> Answer:
        """`predict`, with the program's own words and the number of unknown ids."""
        if not len(rows):
            raise RowError("there are no rows to predict")
        answer = self.predict_arrays(self.program.arrays(rows))
        words = [self.program.describe(prediction) for prediction in answer.predictions]
        told = [word for word in words if word is not None]
        return Answer(answer.predictions, told or None, answer.unknown)

    def predict_arrays(self, arrays: Arrays) -> Answer:
        """`answer` of rows that are parsed already: input's name → array, the label's may be missing."""
        count = len(arrays[self.program.features[0]])
        found: list[NDArray[np.float32]] = []
        unknown = dict.fromkeys(self.tables, 0)
        for first in range(0, count, CHUNK):
            part = {name: arrays[name][first : first + CHUNK] for name in self.program.features}
            found.append(self._run(part, unknown))
        with self._lock:
            for name, times in unknown.items():
                self.unknown[name] += times
        return Answer(np.concatenate(found), None, unknown)

    def _run(self, features: Arrays, unknown: dict[str, int]) -> NDArray[np.float32]:
        feed = dict(features)
        ids = self._ids.run(features) if self._ids else []
        known = features | dict(zip(self.about["ids"], ids, strict=True))
        for lookup in self._lookups:
            asked = known[lookup.ids]
            feed[lookup.vectors], lost = self.tables[lookup.table].look_up(asked)
            unknown[lookup.table] += lost
            with self._lock:
                self.ids[lookup.table] += asked.size
        [prediction] = self._network.run(feed)
        return prediction
