"""The program inside a model folder: what turns a row's texts into the network's inputs.

The folder brings the interface that the program was written with (`interface.py`), so that neither a launcher
nor its version matters: while the program is imported, `launcher.worker.interface` is that file.
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

from . import lean, values
from .errors import ModelError, RowError, ServedError

Arrays = dict[str, NDArray[Any]]
INTERFACE = "launcher.worker.interface"
_importing = threading.Lock()


class Program:
    """A model's program. `about`: the content of model.json."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.path = folder / "program" / about["config"]
        self.columns: list[str] = about["columns"]
        self.features: list[str] = about["features"]
        self.module = _load(self.path, folder / "interface.py")
        self.blank: dict[str, str] = dict(getattr(self.module, "BLANK", {}))
        """Texts for columns that nobody knows when predicting."""
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
        """The columns that a row to predict must have."""
        return [column for column in self.columns if column not in self.blank]

    def arrays(self, rows: Sequence[Mapping[str, Any]]) -> Arrays:
        """The network's inputs, int64 [rows, length] or float32 [rows, width]. Raises `RowError`."""
        columns = {name: values.column(self.inputs[name]) for name in self.features}
        for number, row in enumerate(rows, 1):
            sample = self._parse(row, number)
            for name, column in columns.items():
                try:
                    column.add(sample[name])
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    raise RowError(f"row {number}: input {name}: {error}") from error
        return {name: self._filled(name, column, len(rows)) for name, column in columns.items()}

    def _filled(self, name: str, column: values.Column, rows: int) -> NDArray[Any]:
        kind = self.inputs[name]
        ids = hasattr(kind, "length")
        array = np.zeros((rows, kind.length if ids else kind.width), np.int64 if ids else np.float32)
        bad = column.fill(array)
        if bad is not None:
            raise RowError(
                f"row {bad + 1}: input {name} is {array[bad].tolist()}: not a number that float32 holds"
            )
        return array

    def _parse(self, row: Mapping[str, Any], number: int) -> dict[str, Any]:
        full = {**self.blank, **row}
        try:
            texts = {c: v if type(v := full[c]) is str else _text(v, c, number) for c in self.columns}
        except KeyError:
            missing = [column for column in self.columns if column not in full]
            raise RowError(
                f"row {number} has no {', '.join(missing)}: it has {', '.join(row) or 'no column'}, but the "
                f"model reads {', '.join(self.needed)}"
            ) from None
        with self._calling("parse()"):
            try:
                sample: dict[str, Any] | None = self.module.parse(texts, self.job)
            except ValueError as error:
                raise RowError(f"row {number}: {error}") from error
        if sample is None:
            raise RowError(f"row {number} is one that the program leaves out, so nothing was learnt of such")
        return sample

    def describe(self, prediction: NDArray[np.float32]) -> str | None:
        """The program's own words for one row's prediction; None when it has none."""
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
                f"{type(error).__name__}: {error}"
            ) from error


def _text(value: Any, column: str, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError(f"row {number}: column {column} is {value!r}, but must be a text or a number")
    return str(value)


def _load(path: Path, interface: Path) -> ModuleType:
    """Imports the program under a name of its own; others find what they loaded, and nothing of this one."""
    name = f"paddle_served_program_{abs(hash(str(path.resolve()))):x}"
    own = {file.stem for file in path.parent.iterdir() if file.suffix == ".py" or file.is_dir()}
    with _importing:
        kept = {key: sys.modules.pop(key) for key in (own | {INTERFACE}) & set(sys.modules)}
        sys.path.insert(0, str(path.parent))  # stays: a program may import its files later on
        try:
            sys.modules[INTERFACE] = sys.modules[f"{name}.interface"] = _import(interface, INTERFACE)
            with lean.stand_in():
                return _import(path, name)
        finally:
            for key in own:
                sys.modules.pop(key, None)
            sys.modules.update(kept)


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModelError(f"{path} is missing: the model was not copied whole. Copy it again.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while they are made
    try:
        spec.loader.exec_module(module)
    except ServedError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path.name} of the model cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return module
