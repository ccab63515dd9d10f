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
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError, RowError, ServedError

Arrays = dict[str, NDArray[Any]]
INTERFACE = "launcher.worker.interface"
LARGEST = 1 << 64
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
        made: Arrays = {}
        for name in self.features:
            kind = self.inputs[name]
            if hasattr(kind, "length"):
                made[name] = np.zeros((len(rows), kind.length), np.uint64)
            else:
                made[name] = np.zeros((len(rows), kind.width), np.float32)
        for number, row in enumerate(rows):
            sample = self._parse(row, number + 1)
            for name, column in made.items():
                try:
                    _fill(column[number], sample[name], self.inputs[name])
                except (KeyError, TypeError, ValueError, OverflowError) as error:
                    raise RowError(f"row {number + 1}: input {name}: {error}") from error
        return {n: c.view(np.int64) if c.dtype == np.uint64 else c for n, c in made.items()}

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


def _fill(into: NDArray[Any], value: Any, kind: Any) -> None:
    """One row of an input, as the launcher's samples.py makes it. Raises `ValueError`, `TypeError`."""
    if not hasattr(kind, "length"):
        numbers = [value] if isinstance(value, int | float) else list(value)
        if len(numbers) != len(into):
            raise ValueError(f"{len(numbers)} numbers where {len(into)} belong")
        with np.errstate(over="ignore"):
            into[:] = numbers
        if not np.isfinite(into).all():
            wrong = next(n for n, kept in zip(numbers, into, strict=True) if not np.isfinite(kept))
            raise ValueError(f"{wrong} is not a number that float32 holds")
        return
    ids = [value] if isinstance(value, int) else list(value)
    if len(ids) > kind.length and not kind.cut:
        raise ValueError(f"{len(ids)} ids, but Ids({kind.length}) takes {kind.length} a row")
    ids = ids[: kind.length]
    try:
        into[: len(ids)] = array("Q", ids)
    except OverflowError:
        wrong = next(each for each in ids if not 0 <= each < LARGEST)
        raise ValueError(f"{wrong} is no id: ids are whole numbers from 0 to 2**64-1") from None


def _load(path: Path, interface: Path) -> ModuleType:
    """Imports the program under a name of its own; others find what they loaded, and nothing of this one."""
    name = f"paddle_served_program_{abs(hash(str(path.resolve()))):x}"
    own = {file.stem for file in path.parent.iterdir() if file.suffix == ".py" or file.is_dir()}
    with _importing:
        kept = {key: sys.modules.pop(key) for key in (own | {INTERFACE}) & set(sys.modules)}
        sys.path.insert(0, str(path.parent))  # stays: a program may import its files later on
        try:
            sys.modules[INTERFACE] = sys.modules[f"{name}.interface"] = _import(interface, INTERFACE)
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
