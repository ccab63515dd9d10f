"""The search space of `sweep`: the keys of --search and --search-file, and the values that each may have."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import yaml

from launcher.cli.errors import UsageError
from launcher.cli.releases import read_defaults
from launcher.io import spelling
from launcher.trainer.program_loader import SEED

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "asha", "hyperband"]
_WHOLE = re.compile(r"[+-]?\d+")
_EXAMPLES = "write for example learning_rate=log:1e-4..1e-1, layers=1..4 or width=8,16,32"
MAX_CHOICES = 1000
"""Largest number of whole numbers that a range can have in a grid. A list of choices may have more values."""


@dataclass(frozen=True)
class Axis:
    """One key of the search space: a list of choices, or a range of numbers with both ends included."""

    key: str
    choices: tuple[str, ...] = ()
    """Empty for a range."""
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    """Whether the sampler draws the logarithm of the number uniformly from the range, and not the number itself."""
    is_whole: bool = False
    """Whether only whole numbers are in the range."""

    def setting(self, value: Any) -> str:
        """Return `key=value`, as --set takes it."""
        return f"{self.key}={value if self.choices else repr(int(value) if self.is_whole else float(value))}"

    @property
    def size(self) -> float:
        """The number of values; infinite for a range of numbers that are not whole."""
        return len(self.choices) or (self.high - self.low + 1 if self.is_whole else math.inf)

    def grid_values(self) -> Sequence[Any]:
        """Return all values. Raises UsageError for a range of more than MAX_CHOICES or of infinitely many numbers."""
        if self.choices:
            return self.choices
        if self.size > MAX_CHOICES:
            found = f"{self.size:,.0f} whole numbers" if self.is_whole else "any number"
            raise UsageError(
                f"--sampler grid cannot try the range of {self.key}: it has {found}, and the limit is {MAX_CHOICES}",
                f"list the values, such as {self.key}={self.low:g},{self.high:g}, or choose another --sampler",
            )
        return range(int(self.low), int(self.high) + 1)

    def ends(self) -> tuple[Any, Any]:
        """Return the first and the last choice, or both ends of the range."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)


def read_space(search: Iterable[str], file: Path | None) -> list[Axis]:
    """Return the axes of --search (`KEY=VALUES`) and of the YAML file, which maps each KEY to its VALUES.

    VALUES is a list (`8,16,32`; in the file also a YAML list), or a range (`1..4`, `0.1..0.5`, `log:1e-4..1e-1`).

    Raises UsageError if a key or its values are invalid, a key is given twice, or there is no key.
    """
    given: list[tuple[str, str, Any]] = []
    for text in search:
        key, equals, values = text.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--search {text}: this is not KEY=VALUES", _EXAMPLES)
        given.append((f"--search {text}", key.strip(), values))
    if file is not None:
        try:
            loader = yaml.SafeLoader(file.read_text("utf-8"))
            node = loader.get_single_node()
            pairs = loader.construct_pairs(node, deep=True) if isinstance(node, yaml.MappingNode) else []
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UsageError(f"--search-file {file} cannot be read: {error}", "give a YAML file") from error
        if not pairs:
            raise UsageError(
                f"--search-file {file} has no keys",
                "write in each line KEY: VALUES, such as width: [8, 16, 32]",
            )
        given += [(f"--search-file {file}, {key}", str(key), values) for key, values in pairs]
    axes = [_parse_axis(where, key, values) for where, key, values in given]
    keys = [plain_key(axis.key) for axis in axes]
    if not keys:
        raise UsageError("there is nothing to search", f"give --search KEY=VALUES: {_EXAMPLES}")
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(
            f"the key {twice} is searched twice", "give all its values in one --search or in one line"
        )
    return axes


def plain_key(key: str) -> str:
    """Return a key with each `-` replaced by `_`, because both spellings mean the same option of a program."""
    return key.replace("-", "_")


def _parse_axis(where: str, key: str, values: Any) -> Axis:
    if isinstance(values, Mapping):
        raise UsageError(f"{where}: the values are an object, but must be a list or a range", _EXAMPLES)
    if isinstance(values, list):
        texts = [str(one) if isinstance(one, str | date) else json.dumps(one, default=str) for one in values]
    elif ".." in str(values):
        return _parse_range(where, key, str(values))
    elif str(values).startswith("log:"):
        raise UsageError(f"{where}: log: must be before a range, and this is a list", _EXAMPLES)
    else:
        texts = [text.strip() for text in str("" if values is None else values).split(",")]
    choices = tuple(dict.fromkeys(text for text in texts if text))
    if not choices:
        raise UsageError(f"{where}: the key has no values", _EXAMPLES)
    return Axis(key, choices)


def _parse_range(where: str, key: str, text: str) -> Axis:
    is_log = text.startswith("log:")
    ends = [end.strip() for end in text.removeprefix("log:").split("..", 1)]
    try:
        low, high = (float(end) for end in ends)
    except ValueError as error:
        raise UsageError(f"{where}: an end of the range is not a number", _EXAMPLES) from error
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(f"{where}: an end of the range is infinite or NaN", _EXAMPLES)
    if low >= high:
        raise UsageError(f"{where}: the range is empty, because {ends[0]} is not below {ends[1]}", _EXAMPLES)
    if is_log and low <= 0:
        raise UsageError(
            f"{where}: the lower end {ends[0]} of a range with log: must be above 0", "raise it, or omit log:"
        )
    return Axis(key, (), low, high, is_log, all(map(_WHOLE.fullmatch, ends)))


def describe_space(axes: Iterable[Axis]) -> dict[str, Any]:
    """Return the search space as JSON, sorted by key, to compare it with the search space of an earlier command."""
    return {axis.key: json.loads(json.dumps(asdict(axis))) for axis in sorted(axes, key=lambda one: one.key)}


def grid_points(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Return all combinations of values, each as a dict from key to value; the value of the last key changes fastest.

    Raises the errors of `Axis.grid_values`.
    """
    combinations = itertools.product(*(axis.grid_values() for axis in axes))
    return [dict(zip((axis.key for axis in axes), values, strict=True)) for values in combinations]


def check_options(axes: Iterable[Axis], program: Path) -> None:
    """Raise UsageError for a key that is neither a value of the chart nor an option of the program.

    The options of a program are the keys of its OPTIONS, and SEED. OPTIONS is read without running the program, as
    Paddle may not be installed here. If it is not written as a dict whose keys are constants, nothing is checked.
    """
    for node in ast.parse(program.read_bytes()).body:
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "OPTIONS" for one in node.targets):
            break
    else:
        return
    if not isinstance(node.value, ast.Dict) or not all(
        isinstance(key, ast.Constant) for key in node.value.keys
    ):
        return
    known = [*(str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)), *SEED]
    for axis in axes:
        key = plain_key(axis.key)
        if axis.key.partition(".")[0] not in read_defaults() and key not in known:
            hint = spelling.suggest(key, [*known, *read_defaults()])
            raise UsageError(
                f"--search {axis.key}: {program} has no such option in OPTIONS, and the chart no such value",
                hint or f"search one of: {', '.join(known)}, or a value such as training.batchSize",
            )
