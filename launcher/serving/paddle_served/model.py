"""Open an exported model and predict rows with it (`Model`)."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from . import light_import
from .errors import ModelError, RowError
from .mapped_table import MappedTable
from .model_program import Arrays, ModelProgram

VERSION = 2
"""Version of the folder's format. In version 1 the embedding tables were inside the network."""
EMBEDDINGS = "embeddings"
CHUNK = 8192
"""Rows of one call of the network: their vectors fit into the processor's cache."""


@dataclass(frozen=True)
class PredictionResult:
    """Holds the predictions of some rows, their descriptions in words, and the counts of unknown ids."""

    predictions: NDArray[np.float32]
    """float32, shape [rows, …]: what the program's network() returns as prediction for each row."""
    words: list[str] | None
    """What the program's describe(prediction) returns for each row; None if the program has no describe()."""
    unknown: dict[str, int]
    """Number of ids that are not in the table, by table. Their vectors are zeros."""


def table_folder(folder: Path, name: str) -> Path:
    """Return the folder of table `name` in the model `folder`; characters invalid in a file name are escaped."""
    return folder / EMBEDDINGS / quote(name, safe="")


def read_description(folder: Path) -> dict[str, Any]:
    """Return the content of a model's `model.json`.

    Raises:
        ModelError: there is no model, it has another version, or a file is missing or incomplete.
    """
    path = folder / "model.json"
    try:
        about = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} is not a model: it has no model.json. Fix: use the folder `model` of a run's output, "
            "or of a folder that `python -m launcher results --to DIR` copied"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Fix: copy the model again") from error
    version = about.get("version") if isinstance(about, dict) else None
    if version is None:
        raise ModelError(f"{path} is damaged: it has no version. Fix: copy the model again")
    if version != VERSION:
        raise ModelError(
            f"{folder} has a model of version {version}, but this package reads version {VERSION}. Fix: use "
            "paddle_served (or the launcher's image) of the release that trained the model, or train it again"
        )
    try:
        is_intact = _has_valid_values(about)
    except (AttributeError, KeyError, TypeError):
        is_intact = False
    if not is_intact:
        raise ModelError(
            f"{path} is damaged: a value is missing, or is impossible (such as a file outside of the folder). Fix: "
            "copy the model again"
        )
    for name, size in about["files"].items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            found = None
        if found != size:  # Paddle itself does not notice truncated parameters
            is_now = "missing" if found is None else f"{found} bytes long, but was {size}"
            raise ModelError(
                f"{folder / name} is {is_now}: the copy of the model is incomplete. Fix: copy it again"
            )
    return dict(about)


def _has_valid_values(about: dict[str, Any]) -> bool:
    """Return whether texts, numbers and names of files in a `model.json` can be used.

    Raises AttributeError, KeyError or TypeError if a key is missing or has another type.
    """
    names = [about["config"], *about["files"]]
    texts = [*names, *about["tables"], *about["columns"], *about["features"], *about["ids"]]
    for lookup in about["lookups"]:
        texts += [lookup["table"], lookup["ids"], lookup["vectors"]]
    tables = about["tables"].values()
    numbers = [*about["files"].values(), *(table[key] for table in tables for key in ("rows", "width"))]
    parts = {*about["tables"], *(part for name in names for part in name.split("/"))}
    return (
        all(type(text) is str and "\0" not in text for text in texts)
        and all(type(number) is int and 0 <= number < 2**53 for number in numbers)
        and not parts & {"", ".", ".."}
        and all(lookup["table"] in about["tables"] for lookup in about["lookups"])
        and bool(about["features"])
        and isinstance(about["options"], dict)
    )


class Predictor:
    """The network in `<path>.pdmodel` and `<path>.pdiparams`; several threads may call `run`.

    Each thread gets its own copy of Paddle's predictor; the copies share the weights.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Load the network. Raise `ModelError` if Paddle is not installed or cannot read the files."""
        try:
            paddle = light_import.import_inference()
        except ImportError as error:
            raise ModelError(
                f"Paddle cannot be imported ({error}). Fix: run pip install ./served in a clone of paddle-training"
            ) from error
        program, values = path.with_suffix(".pdmodel"), path.with_suffix(".pdiparams")
        config = paddle.AnalysisConfig(str(program), str(values))
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        config.enable_memory_optim()
        try:
            self._first = paddle.create_predictor(config)
        except (RuntimeError, ValueError, OSError) as error:
            last = str(error).strip().splitlines()[-1]
            raise ModelError(
                f"Paddle cannot read {program}: {last}. Fix: copy the model again; the copy may be incomplete"
            ) from error
        self._inputs: list[str] = self._first.get_input_names()
        self._outputs: list[str] = self._first.get_output_names()
        self._own = threading.local()
        self._cloning = threading.Lock()

    def run(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the network's outputs for the inputs in `feed`, whose other arrays are ignored."""
        predictor = getattr(self._own, "predictor", None)
        if predictor is None:
            with self._cloning:
                predictor = self._own.predictor = self._first.clone()
        for name in self._inputs:
            predictor.get_input_handle(name)._copy_from_cpu_bind(np.ascontiguousarray(feed[name]))
        predictor.run()
        return [predictor.get_output_handle(name).copy_to_cpu() for name in self._outputs]


class Model:
    """Holds an opened model, and predicts rows with it. Several threads may call its methods."""

    def __init__(self, path: str | Path, threads: int = 1) -> None:
        """Open the model in a folder, or raise `ModelError`. Its tables are memory-mapped, not read."""
        folder = Path(path)
        self.about = read_description(folder)
        self.version = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
        """Identifies this model: the first digits of the sha256 of its model.json."""
        self.program = ModelProgram(folder, self.about)
        self.tables = {
            name: MappedTable(table_folder(folder, name), table["rows"], table["width"])
            for name, table in self.about["tables"].items()
        }
        self._lookups = self.about["lookups"]
        """For each use of a table its name (`table`), and the names of the variables with ids and vectors."""
        self._network = Predictor(folder / "network", threads)
        computed = any(lookup["ids"] not in self.program.features for lookup in self._lookups)
        self._ids = Predictor(folder / "ids", threads) if computed else None
        self._lock = threading.Lock()
        self.ids = dict.fromkeys(self.tables, 0)
        """Number of ids that were looked up so far, with padding, by table."""
        self.unknown = dict.fromkeys(self.tables, 0)
        """Number of these ids that are not in the table, by table."""
        self.last_row: Mapping[str, Any] | None = None
        """The last row that was predicted: a model that replaces this one must predict it too."""

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that a row to predict must have."""
        return self.program.needed

    @property
    def score(self) -> dict[str, float]:
        """Return the program's metrics of this model on its test set: metric → value."""
        return dict(self.about.get("score") or {})

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Return the predictions of some rows, float32 of shape [rows, …].

        Args:
            rows: {column: text or number} for each row. Columns in the program's BLANK (such as the label)
                may be missing.

        Raises:
            RowError: a row is invalid.
        """
        return self.answer(rows).predictions

    def answer(self, rows: Sequence[Mapping[str, Any]]) -> PredictionResult:
        """Return predictions like `predict`, with the program's descriptions and the count of unknown ids."""
        if not len(rows):
            raise RowError("there are no rows to predict. Fix: send at least one row")
        answer = self.predict_arrays(self.program.arrays(rows))
        described = [self.program.describe(prediction) for prediction in answer.predictions]
        words = [text for text in described if text is not None]
        self.last_row = rows[-1]
        return PredictionResult(answer.predictions, words or None, answer.unknown)

    def self_check(self, row: Mapping[str, Any] | None) -> tuple[int, ...]:
        """Predict inputs of zeros, and the row `row` unless it is None. Return the shape of one prediction.

        Raises:
            ModelError: a prediction failed or is not finite.
        """
        zeros = self.predict_arrays(self.program.zeros())
        if row is not None:
            try:
                found = self.predict([row])
            except RowError as error:
                reason = str(error).partition(". Fix: ")[0]  # its fix is for a client that sends the row
                raise ModelError(
                    f"the model rejects a row that was predicted before: {reason}. Fix: correct its program "
                    "and train it again, or restart the server to serve it nevertheless"
                ) from error
            if not np.isfinite(found).all():
                raise ModelError(
                    "the prediction of a row is NaN or infinite. Fix: check the row for extreme numbers; if it has "
                    "none, train the model again with a smaller learning rate"
                )
        return zeros.predictions.shape[1:]

    def predict_arrays(self, arrays: Arrays) -> PredictionResult:
        """Return the predictions of parsed rows: the array [rows, …] of each input, without the label."""
        count = len(arrays[self.program.features[0]])
        found: list[NDArray[np.float32]] = []
        unknown = dict.fromkeys(self.tables, 0)
        for first in range(0, count, CHUNK):
            part = {name: arrays[name][first : first + CHUNK] for name in self.program.features}
            found.append(self._run(part, unknown))
        with self._lock:
            for name, times in unknown.items():
                self.unknown[name] += times
        return PredictionResult(np.concatenate(found), None, unknown)

    def _run(self, features: Arrays, unknown: dict[str, int]) -> NDArray[np.float32]:
        """Return the predictions of one chunk, and add the number of unknown ids to `unknown`."""
        feed = dict(features)
        ids = self._ids.run(features) if self._ids else []
        known = features | dict(zip(self.about["ids"], ids, strict=True))
        for lookup in self._lookups:
            asked, table = known[lookup["ids"]], lookup["table"]
            feed[lookup["vectors"]], lost = self.tables[table].look_up(asked)
            unknown[table] += lost
            with self._lock:
                self.ids[table] += asked.size
        [prediction] = self._network.run(feed)
        return prediction
