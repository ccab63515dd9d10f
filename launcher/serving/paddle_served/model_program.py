"""Import the training program inside a model folder, which turns a row's texts into the network's inputs.

The folder contains the interface that the program was written with (`interface.py`), so the program runs with
any version of the launcher, and without it: while the program is imported, `launcher.program` is that file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import light_import
from .errors import ModelError, RowError, ServedError
from .input_arrays import IdColumn, NumberColumn, new_column

Arrays = dict[str, NDArray[Any]]
INTERFACE = "launcher.program"
"""The module from which programs import the interface."""
_importing = threading.Lock()


class ModelProgram:
    """Calls the functions of a model's training program: parse() for rows, describe() for predictions."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Import the program. Raise `ModelError` if it is missing or failed."""
        self.path = folder / "program" / about["config"]
        self.columns: list[str] = about["columns"]
        self.features: list[str] = about["features"]
        self.module = _load(self.path, folder / "interface.py")
        self.blank: dict[str, str] = dict(getattr(self.module, "BLANK", {}))
        """Texts for columns that are unknown when predicting, such as the label."""
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
        """Return the network's inputs for some rows: int64 [rows, length] or float32 [rows, width] by name."""
        columns = {name: new_column(self.inputs[name]) for name in self.features}
        for number, row in enumerate(rows, 1):
            sample = self._parse(row, number)
            for name, column in columns.items():
                try:
                    column.add(sample[name])
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    why = "parse() returned no value" if isinstance(error, KeyError) else error
                    raise _invalid_row(number, f"input {name}: {why}") from error
        return {name: self._filled(name, column, len(rows)) for name, column in columns.items()}

    def zeros(self) -> Arrays:
        """Return the network's inputs for one row of padding and zeros."""
        return {name: self._empty(name, 1) for name in self.features}

    def _empty(self, name: str, rows: int) -> NDArray[Any]:
        kind = self.inputs[name]
        ids = hasattr(kind, "length")
        return np.zeros((rows, kind.length if ids else kind.width), np.int64 if ids else np.float32)

    def _filled(self, name: str, column: IdColumn | NumberColumn, rows: int) -> NDArray[Any]:
        array = self._empty(name, rows)
        bad = column.fill(array)
        if bad is not None:
            raise RowError(
                f"row {bad + 1}: input {name} is {array[bad].tolist()}, which is not a finite float32 number. "
                "Fix: correct the numbers in this row"
            )
        return array

    def _parse(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        full = {**self.blank, **row}
        try:
            texts = {c: v if type(v := full[c]) is str else _text(v, c, number) for c in self.columns}
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
        """Return the program's describe(prediction) of one row; None if the program has no describe()."""
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
    """Import the program under a unique module name.

    The modules in its folder are removed from sys.modules afterwards, so that programs of several models with
    files of the same names do not mix.
    """
    name = f"paddle_served_program_{abs(hash(str(path.resolve()))):x}"
    folder = path.parent.iterdir()
    own = {file.stem for file in folder if file.suffix == ".py" or any(file.glob("*.py"))} - {"__main__"}

    def remove() -> dict[str, ModuleType]:
        found = [key for key in sys.modules if key == INTERFACE or key.partition(".")[0] in own]
        return {key: sys.modules.pop(key) for key in found}

    with _importing:
        kept = remove()
        sys.path.insert(0, str(path.parent))  # not removed: a program may import its files later
        try:
            sys.modules[f"{name}.interface"] = _import(interface, INTERFACE)
            with light_import.paddle_stand_in():
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
