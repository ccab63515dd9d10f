"""Reads a mapping into a frozen dataclass by the dataclass's own fields, and collects every mistake.

A field's type may be str, int, bool, tuple[str, ...], dict[str, str], dict[str, Any] or another dataclass.
Its key is its name in camelCase. `rule(...)` gives a field its default and, if wanted, a limit.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from infra.problems import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A limit on one value.

    `holds` says whether it is kept; the rest is what a person reads when it is not.
    """

    holds: Callable[[Any], bool]
    limit: str
    reason: str
    mend: str


def rule(
    default: Any,
    holds: Callable[[Any], bool] | None = None,
    limit: str = "",
    reason: str = "",
    mend: str = "",
) -> Any:
    """A dataclass field with a default, and the rule that a value must keep."""
    limits = {} if holds is None else {"rule": Rule(holds, limit, reason, mend)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=limits)
    return dataclasses.field(default=default, metadata=limits)


def choice(default: str, *choices: str, reason: str) -> Any:
    """A field that holds one of a few words."""
    words = ", ".join(choices)
    return rule(default, lambda value: value in choices, f"one of {words}", reason, f"set one of {words}")


def camel(name: str) -> str:
    """snake_case → camelCase."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


_WORDS = {str: "a text", int: "a whole number", bool: "true or false"}


def _fits(kind: Any, value: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin is tuple:
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(isinstance(item, str) for item in value)
        )
    if origin is dict:
        free = typing.get_args(kind)[1] is Any
        return isinstance(value, Mapping) and all(free or isinstance(item, str) for item in value.values())
    # bool is an int for Python, and no number for a person.
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _wanted(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return "a list of texts"
    if typing.get_origin(kind) is dict:
        return "a mapping of keys" if typing.get_args(kind)[1] is Any else "a mapping of texts to texts"
    return _WORDS.get(kind, "a mapping of keys")


def _typed(kind: Any, value: Any, key: str, problems: list[Problem]) -> Any:
    """`value` as `kind`; a mistake goes into `problems` and gives None."""
    nested = dataclasses.is_dataclass(kind)
    if not (isinstance(value, Mapping) if nested else _fits(kind, value)):
        limit = _wanted(kind)
        mend = f"write {key} as {limit} in the stack's file"
        problems.append(Problem(key, value, limit, f"this is {type(value).__name__}", mend))
        return None
    if nested:
        return read(typing.cast("type[Any]", kind), value, key, problems)
    if typing.get_origin(kind) is tuple:
        return tuple(value)
    return dict(value) if typing.get_origin(kind) is dict else value


def read(cls: type[T], mapping: Mapping[str, Any], key: str, problems: list[Problem]) -> T:
    """Reads `mapping` into `cls`; unknown keys, wrong types and broken rules are added to `problems`.

    A value with a mistake keeps the field's default, so that the checks after it can still look for more
    mistakes.
    """
    hints = typing.get_type_hints(cls)
    fields = {camel(field.name): field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for name, value in mapping.items():
        here = f"{key}.{name}" if "." in key or not key.endswith(":") else f"{key}{name}"
        field = fields.get(name)
        if field is None:
            near = difflib.get_close_matches(name, fields, n=1)
            mend = f"did you mean {near[0]}?" if near else "remove it"
            problems.append(
                Problem(
                    here,
                    value,
                    f"one of {', '.join(sorted(fields))}",
                    "an unknown key would be ignored",
                    mend,
                )
            )
            continue
        before = len(problems)
        typed = _typed(hints[field.name], value, here, problems)
        limits = field.metadata.get("rule")
        if len(problems) == before and limits is not None and not limits.holds(typed):
            problems.append(Problem(here, value, limits.limit, limits.reason, limits.mend))
        if typed is not None and (len(problems) == before or dataclasses.is_dataclass(typed)):
            found[field.name] = typed
    return cls(**found)


def defaults(cls: type[Any]) -> dict[str, Any]:
    """The defaults of a settings class as the plain values that a stack's file would hold."""
    values: dict[str, Any] = plain(cls())
    return values


def plain(value: Any) -> Any:
    """A settings value as what YAML holds: mappings with camelCase keys, lists, texts, numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel(field.name): plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value
