"""Open an exported model and predict rows with it (`Model`): description, embedding tables, program, network.

The model's folder contains its training program, and in `interface.py` the interface that this program was written for.
While the program is imported, `launcher.program` is this file. So the program runs with any version of the launcher,
and without the launcher.

An embedding table is two memory-mapped files: the sorted ids, and their vectors.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import sys
import threading
import traceback
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from . import paddle_inference

ID_MAX = 2**64 - 1
VERSION = 2
"""Version of the format of a model's folder. In version 1 the embedding tables were inside the network."""
EMBEDDINGS = "embeddings"
CHUNK = 8192
"""Number of rows in one call of the network. The vectors of so few rows fit into the processor's cache."""
IDS, VECTORS = "ids.npy", "vectors.npy"
CANNOT_MAP = {errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of a file system that cannot map files, such as some FUSE file systems."""
INTERFACE = "launcher.program"
"""The module from which programs import the interface."""
Arrays = dict[str, NDArray[Any]]
_importing = threading.Lock()


class ServedError(Exception):
    """Base class of this package's errors. `str(error)` is the message for users."""


class ModelError(ServedError):
    """The model cannot be used."""


class RowError(ServedError):
    """A row cannot be predicted; the message contains the row's number (from 1) and the column."""


@dataclass(frozen=True)
class PredictionResult:
    """Holds the predictions of some rows, their descriptions in words, and the counts of ids."""

    predictions: NDArray[np.float32]
    """float32, shape [rows, …]: for each row the prediction that the program's network() returns."""
    words: list[str] | None
    """What the program's describe(prediction) returns for each row. None if the program has no describe(), and always
    None in a result of `Model.predict_arrays`."""
    ids: dict[str, int]
    """Table → number of ids that were looked up; padding counts too."""
    unknown: dict[str, int]
    """Table → number of ids that the table does not have. Their vectors are zeros."""


def table_folder(folder: Path, name: str) -> Path:
    """Return the folder of the table `name` in the model's folder.

    Characters of the name that are invalid in a file name are escaped.
    """
    return folder / EMBEDDINGS / quote(name, safe="")


def read_description(folder: Path) -> dict[str, Any]:
    """Read a model's `model.json`, check the sizes of the files that it lists, and return the content.

    `model.json` does not list the files of the embedding tables. `MappedTable` checks those files.

    Raises:
        ModelError: there is no model, it has another version, `model.json` is damaged, or a listed file is missing or
            has another size.
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
    """Return whether the values in a `model.json` (texts, numbers and file names) are allowed.

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


class MappedTable:
    """Looks up vectors in a table with `rows` ids.

    The file `ids.npy` is uint64 [rows] in ascending order, and `vectors.npy` is float32 [rows, width].
    """

    def __init__(self, folder: Path, rows: int, width: int) -> None:
        """Map the files of the table in `folder` into memory.

        Raises:
            ModelError: a file is missing or cannot be read, or does not have `rows` rows, or its vectors do not have
                `width` numbers.
        """
        self.rows, self.width = rows, width
        self.ids = _mapped(folder / IDS, (rows,), np.dtype(np.uint64))
        self.vectors = _mapped(folder / VECTORS, (rows, width), np.dtype(np.float32))

    def look_up(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], int]:
        """Return the vectors of ids, and the number of unknown ids.

        Args:
            ids: int64 of any shape. Each number has the bits of an unsigned 64-bit id, so it may be negative; 0 is
                padding.

        Returns:
            The vectors, of shape [*ids.shape, width], and the number of unknown ids. The vectors of padding and unknown
            ids are zeros. Padding does not count as unknown.
        """
        wanted = ids.reshape(-1).view(np.uint64)
        if not self.rows:
            return np.zeros((*ids.shape, self.width), np.float32), int(np.count_nonzero(wanted))
        order = np.argsort(wanted)  # three times as fast: neighbours in the file are read together
        at = np.empty(len(wanted), np.int64)
        at[order] = np.searchsorted(self.ids, wanted[order])
        np.minimum(at, self.rows - 1, out=at)
        lost = self.ids[at] != wanted
        found = np.take(self.vectors, at, axis=0)
        found[lost] = 0
        return found.reshape(*ids.shape, self.width), int(np.count_nonzero(lost & (wanted != 0)))


def map_or_read(map_file: Callable[[], Any], read: Callable[[], Any]) -> NDArray[Any]:
    """Return what `map_file` returns. If the file system cannot map files, return what `read` returns."""
    try:
        return np.asarray(map_file())
    except OSError as error:
        if error.errno not in CANNOT_MAP:
            raise
        return np.asarray(read())


def _mapped(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    mode: Any = "r" if shape[0] else None  # numpy cannot map an array without items
    try:
        array = map_or_read(
            lambda: np.load(path, mmap_mode=mode, allow_pickle=False),
            lambda: np.load(path, allow_pickle=False),
        )
    except FileNotFoundError:
        raise ModelError(
            f"{path} is missing: the copy of the model is incomplete. Fix: copy it again"
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}). Fix: copy the model again; the copy may be incomplete"
        ) from error
    if array.shape != shape or array.dtype != kind:
        raise ModelError(
            f"{path} has {array.dtype} of shape {array.shape}, but model.json says {kind} of shape {shape}: "
            "the files are from two models. Fix: copy the model again"
        )
    return array


# The values that parse() returns for each input become arrays, in training and in prediction. The values of many rows
# are kept flat and become one array at the end, which is twice as fast as an array per row.


class IdColumn:
    """Collects the ids of many rows, and writes each id as the int64 that has the same bits.

    An id is from 0 to 2**64-1.
    """

    def __init__(self, length: int, cut: bool) -> None:
        self._length, self._cut = length, cut
        self._flat, self._counts = array("Q"), array("L")

    def add(self, value: Any) -> None:
        """Add the id or ids of the next row.

        Raises:
            ValueError: an id is not from 0 to 2**64-1, or there are more ids than `length`. With `cut`, further ids are
                dropped instead.
            TypeError: an id is no whole number.
        """
        flat = self._flat
        before = len(flat)
        try:
            if isinstance(value, int):
                flat.append(value)
            else:
                value = value if isinstance(value, list | tuple) else list(value)  # a generator is read once
                flat.extend(value)
        except OverflowError:
            ids = [value] if isinstance(value, int) else value
            wrong = next(each for each in ids if not 0 <= each <= ID_MAX)
            raise ValueError(
                f"{wrong} is not an id: ids are whole numbers from 0 to 2**64-1. Fix: return hash64(text) of "
                "launcher.program, or another number in this range"
            ) from None
        count = len(flat) - before
        if count > self._length:
            if not self._cut:
                raise ValueError(
                    f"{count} ids, but Ids({self._length}) takes at most {self._length} per row. Fix: use "
                    f"Ids({count}) for all of them, or Ids({self._length}, cut=True) for the first ones"
                )
            del flat[before + self._length :]
            count = self._length
        self._counts.append(count)

    def fill(self, target: NDArray[Any]) -> int | None:
        """Write all rows to `target`, of shape [rows, length]; shorter rows are padded with 0.

        Return None, which means that all rows are valid: `add` has rejected invalid ids.
        """
        flat = np.frombuffer(self._flat, np.uint64).view(np.int64)
        counts = np.frombuffer(self._counts, np.dtype("L"))
        if len(flat) == target.size:
            target[:] = flat.reshape(target.shape)
        else:  # pad with 0
            target[np.arange(self._length) < counts[:, None]] = flat
        return None


class NumberColumn:
    """Collects the numbers of many rows, and writes them as float32."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._flat = array("d")

    def add(self, value: Any) -> None:
        """Add the number or numbers of the next row. `fill` reports numbers that are not finite.

        Raises:
            ValueError: there are more or fewer numbers than the column has in a row.
            TypeError: a value is no number.
            OverflowError: a whole number is too large for a float.
        """
        flat = self._flat
        before = len(flat)
        if isinstance(value, int | float):
            flat.append(value)
        else:
            flat.extend(value)
        if len(flat) - before != self._width:
            count = len(flat) - before
            raise ValueError(
                f"{count} numbers, but Real({self._width}) takes {self._width} per row. Fix: return {self._width}, "
                f"or use Real({count})"
            )

    def fill(self, target: NDArray[Any]) -> int | None:
        """Write all rows to `target`, of shape [rows, width].

        Returns:
            The index (from 0) of the first row with a number that is not finite in float32; None if all numbers are
            finite.
        """
        with np.errstate(over="ignore"):
            target[:] = np.frombuffer(self._flat, np.float64).reshape(target.shape)
        bad = ~np.isfinite(target).all(axis=1)
        return int(bad.argmax()) if bad.any() else None


def new_column(kind: Any) -> IdColumn | NumberColumn:
    """Return an empty column for the program's input `kind`, an `Ids` or a `Real`.

    The class of `kind` may come from any version of the interface, so it is recognized by its attributes.
    """
    return IdColumn(kind.length, kind.cut) if hasattr(kind, "length") else NumberColumn(kind.width)


class ModelProgram:
    """Calls the functions of a model's training program: parse() for rows, describe() for predictions.

    `folder` is the model's folder, and `about` the content of its model.json.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Import the program, and call its prepare() and inputs().

        Raises:
            ModelError: the program or `interface.py` is missing, or the import or one of these functions failed.
        """
        self.path = folder / "program" / about["config"]
        self.columns: list[str] = about["columns"]
        self.features: list[str] = about["features"]
        self.module = _load(self.path, folder / "interface.py")
        self.blank: dict[str, str] = dict(getattr(self.module, "BLANK", {}))
        """Column → text for columns that are unknown in a prediction, such as the label."""
        interface: Any = sys.modules[self.module.__name__ + ".interface"]
        sides = {path.name: path for path in sorted((folder / "tables").glob("*"))}
        self.job = interface.Job(options=about["options"], tables=sides)
        if hasattr(self.module, "prepare"):
            with self._calling("prepare()"):
                self.job.side = self.module.prepare(self.job)
        with self._calling("inputs()"):
            self.inputs: dict[str, Any] = dict(self.module.inputs(self.job))

    @property
    def needed(self) -> list[str]:
        """Return the names of the columns that a row to predict must have."""
        return [column for column in self.columns if column not in self.blank]

    def arrays(self, rows: Sequence[Mapping[str, Any]]) -> Arrays:
        """Parse rows, and return input name → array: int64 [rows, length] or float32 [rows, width]."""
        columns = {name: new_column(self.inputs[name]) for name in self.features}
        for number, row in enumerate(rows, 1):
            sample = self._parse(row, number)
            for name, column in columns.items():
                try:
                    column.add(sample[name])
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    why = "parse() returned no value" if isinstance(error, KeyError) else error
                    raise _invalid_row(number, f"input {name}: {why}") from error
        arrays = {name: self._empty(name, len(rows)) for name in self.features}
        for name, column in columns.items():
            bad = column.fill(arrays[name])
            if bad is not None:
                raise RowError(
                    f"row {bad + 1}: input {name} is {arrays[name][bad].tolist()}, which is not a finite float32 "
                    "number. Fix: correct the numbers in this row"
                )
        return arrays

    def zeros(self) -> Arrays:
        """Return the network's inputs for one row in which all ids are 0 (padding) and all numbers are 0.0."""
        return {name: self._empty(name, 1) for name in self.features}

    def _empty(self, name: str, rows: int) -> NDArray[Any]:
        kind = self.inputs[name]
        ids = hasattr(kind, "length")
        return np.zeros((rows, kind.length if ids else kind.width), np.int64 if ids else np.float32)

    def _parse(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        full = {**self.blank, **row}
        try:
            typed = getattr(self.module, "TYPED", False)  # parse() takes values, not texts
            texts = {
                c: v if type(v := full[c]) is str or typed else _text(v, c, number) for c in self.columns
            }
        except KeyError:
            missing = [column for column in self.columns if column not in full]
            raise RowError(
                f"row {number} has no {', '.join(missing)}: it has {', '.join(row) or 'no columns'}, but the "
                f"model needs {', '.join(self.needed)}. Fix: add the missing columns to the row"
            ) from None
        with self._calling("parse()"):
            try:
                sample: dict[str, Any] | None = self.module.parse(texts, self.job)
            except ValueError as error:
                raise _invalid_row(number, str(error)) from error
        if sample is None:
            raise RowError(
                f"row {number}: the program skips such rows in training, so it cannot predict them. "
                "Fix: leave the row out"
            )
        return sample

    def describe(self, prediction: NDArray[np.float32]) -> str | None:
        """Return the text that the program's describe() returns for the prediction of one row.

        Return None if the program has no describe().
        """
        if not hasattr(self.module, "describe"):
            return None
        with self._calling("describe()"):
            return str(self.module.describe(prediction))

    @contextlib.contextmanager
    def _calling(self, function: str) -> Iterator[None]:
        try:
            yield
        except ServedError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            raise ModelError(
                f"{function} of the model's program {self.path.name} failed at {where}: "
                f"{type(error).__name__}: {error}. Fix: correct that function, and train the model again"
            ) from error


def _invalid_row(number: int, reason: str) -> RowError:
    return RowError(f"row {number}: {reason}" + ("" if "Fix: " in reason else ". Fix: correct this row"))


def _text(value: Any, column: str, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(
            f"row {number}: column {column} is {value!r}, but must be a text or a number. "
            "Fix: send the value as a JSON string or number"
        )
    return str(value)


def _load(path: Path, interface: Path) -> ModuleType:
    """Import the program under a unique module name, and return the module.

    Programs of several models may have files of the same names. To keep them apart, the modules that the program has
    imported from its folder are removed from sys.modules afterwards.
    """
    name = f"paddle_served_program_{abs(hash(str(path.resolve()))):x}"
    folder = path.parent.iterdir()
    own = {file.stem for file in folder if file.suffix == ".py" or any(file.glob("*.py"))} - {"__main__"}

    def remove() -> dict[str, ModuleType]:
        # A copy, because another thread may import a module meanwhile.
        found = [key for key in list(sys.modules) if key == INTERFACE or key.partition(".")[0] in own]
        return {key: sys.modules.pop(key) for key in found}

    with _importing:
        kept = remove()
        sys.path.insert(0, str(path.parent))  # not removed: a program may import its files later
        try:
            sys.modules[f"{name}.interface"] = _import(interface, INTERFACE)
            with paddle_inference.paddle_stand_in():
                return _import(path, name)
        finally:
            remove()
            sys.modules.update(kept)


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModelError(f"{path} is missing: the copy of the model is incomplete. Fix: copy it again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module while they are defined
    try:
        spec.loader.exec_module(module)
    except ServedError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path.name} of the model cannot be imported: {type(error).__name__}: {error}. Fix: install the "
            "modules that it imports, or copy the model again"
        ) from error
    return module


class Predictor:
    """The network in `<path>.pdmodel` and `<path>.pdiparams`. Several threads may call `run`.

    Each thread gets its own copy of Paddle's predictor, and all copies share the weights.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Load the network. Raise `ModelError` if Paddle is not installed or cannot read the files.

        `threads` is the number of threads that one prediction may use.
        """
        try:
            paddle = paddle_inference.import_inference()
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
        """Return the network's outputs. `feed` has an array for each input of the network; other arrays are ignored."""
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
        """Open the model in a folder. Raise `ModelError` if the model cannot be used.

        The embedding tables are memory-mapped; they are read into memory only if the file system cannot map files.
        `threads` is the number of threads that one prediction may use.
        """
        folder = Path(path)
        self.about = read_description(folder)
        self.version = hashlib.sha256((folder / "model.json").read_bytes()).hexdigest()[:12]
        """Identifies this model: the first 12 hex digits of the sha256 of its model.json."""
        self.program = ModelProgram(folder, self.about)
        self.tables = {
            name: MappedTable(table_folder(folder, name), table["rows"], table["width"])
            for name, table in self.about["tables"].items()
        }
        self._lookups = self.about["lookups"]
        """For each use of a table: the table's name (`table`), the name of the variable with the ids (`ids`), and the
        name of the variable with the vectors (`vectors`).
        """
        self._network = Predictor(folder / "network", threads)
        computed = any(lookup["ids"] not in self.program.features for lookup in self._lookups)
        self._ids = Predictor(folder / "ids", threads) if computed else None
        self.last_row: Mapping[str, Any] | None = None
        """The row that was predicted last, or None. A model that replaces this one must predict the row too."""

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that a row to predict must have."""
        return self.program.needed

    @property
    def score(self) -> dict[str, float]:
        """Return the test scores in model.json, metric → value; empty if the model has none."""
        return dict(self.about.get("score") or {})

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Return the predictions of some rows, float32 of shape [rows, …].

        Args:
            rows: {column: text or number} for each row. Columns in the program's BLANK (such as the label) may be
                missing.

        Raises:
            RowError: a row is invalid, or there are no rows.
            ModelError: parse() or describe() of the model's program failed.
        """
        return self.answer(rows).predictions

    def answer(self, rows: Sequence[Mapping[str, Any]]) -> PredictionResult:
        """Return predictions as `predict` does, with the program's descriptions and the counts of ids."""
        if not len(rows):
            raise RowError("there are no rows to predict. Fix: send at least one row")
        answer = self.predict_arrays(self.program.arrays(rows))
        described = [self.program.describe(prediction) for prediction in answer.predictions]
        words = [text for text in described if text is not None]
        self.last_row = rows[-1]
        return replace(answer, words=words or None)

    def self_check(self, row: Mapping[str, Any] | None) -> tuple[int, ...]:
        """Predict a row of zeros, and also `row` unless it is None. Return the shape of the prediction of one row.

        Raises:
            ModelError: the model's program failed for `row` or rejected it, or the prediction of `row` is not finite.
                Errors of Paddle are raised unchanged.
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
        """Return the predictions for rows that are parsed already.

        `arrays` has an array [rows, …] for each input that the program's inputs() returns. The label is not needed.
        There must be at least one row.
        """
        count = len(arrays[self.program.features[0]])
        found: list[NDArray[np.float32]] = []
        ids, unknown = dict.fromkeys(self.tables, 0), dict.fromkeys(self.tables, 0)
        for first in range(0, count, CHUNK):
            part = {name: arrays[name][first : first + CHUNK] for name in self.program.features}
            found.append(self._run(part, ids, unknown))
        return PredictionResult(np.concatenate(found), None, ids, unknown)

    def _run(
        self, features: Arrays, ids_by_table: dict[str, int], unknown: dict[str, int]
    ) -> NDArray[np.float32]:
        """Return the predictions of one chunk of rows.

        For each table, add the number of ids that were looked up to `ids_by_table`, and the number of unknown ids to
        `unknown`.
        """
        feed = dict(features)
        ids = self._ids.run(features) if self._ids else []
        known = features | dict(zip(self.about["ids"], ids, strict=True))
        for lookup in self._lookups:
            asked, table = known[lookup["ids"]], lookup["table"]
            feed[lookup["vectors"]], lost = self.tables[table].look_up(asked)
            unknown[table] += lost
            ids_by_table[table] += asked.size
        [prediction] = self._network.run(feed)
        return prediction
