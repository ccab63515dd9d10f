"""Convert dataclasses to JSON values and back, and check JSON values against types."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from launcher.paths import is_safe_name

T = TypeVar("T")

KEY = "key"
"""Key in the metadata of a dataclass field; its value is the field's JSON key, if that is not the name."""
ALWAYS = {"always": True}
"""Metadata of a dataclass field that `to_json` writes even when it has its default value."""
REQUIRED = {"required": True}
"""Metadata of a field that every file has, although it has a default for `read_fields`."""


FileName = Annotated[str, is_safe_name]
"""The path of a file or folder below another folder, which may be joined to that folder."""
Count = Annotated[int, range(2**53).__contains__]
"""A number of bytes, rows, passes and so on. 2**53 is the first integer that not all JSON parsers can read."""

_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


@functools.cache
def _plain_types(shape: Any) -> frozenset[type]:
    """Return the classes of the JSON values that fit bool, int, float, str, None or a union of these; empty for others.

    With them, long lists of numbers (the rows in a checkpoint's contents.json) are checked without a call for each
    number. A value of another class may still fit.
    """
    if isinstance(shape, types.UnionType):
        parts = [_plain_types(part) for part in get_args(shape)]
        return frozenset[type]().union(*parts) if all(parts) else frozenset()
    plain: dict[Any, set[type]] = {
        bool: {bool},
        int: {int},
        float: {int, float},
        str: {str},
        type(None): {type(None)},
    }
    return frozenset(plain.get(shape, ()))


class _Field(NamedTuple):
    """One field of a dataclass: its JSON key, its name, its type, and whether every file has it."""

    key: str
    name: str
    hint: Any
    required: bool


@functools.cache
def _layout(cls: Any) -> tuple[_Field, ...]:
    """Return the fields of a dataclass."""
    hints = _hints(cls)
    return tuple(_Field(_key(f), f.name, hints[f.name], is_required(f)) for f in dataclasses.fields(cls))


def mismatch(value: object, shape: Any, at: str = "") -> str | None:
    """Compare a parsed JSON value with a type; return a description of the first difference, or None.

    Args:
        value: the parsed JSON value.
        shape: bool, int, float, str, None, Any, FileName, Count, a union, list[…], dict[…, …], or a TypedDict or
            dataclass of these types.
        at: the key of `value` in its file, with dots between levels, for the description.
    """
    if shape is Any or type(value) in _plain_types(shape):
        return None
    kind = get_origin(shape) or shape
    if kind is Annotated:
        plain, fits = get_args(shape)
        return mismatch(value, plain, at) or (None if fits(value) else f"{at} is {value!r:.60}")
    inner: list[tuple[object, Any, str]] = []
    why = None
    if kind is types.UnionType:
        whys = [mismatch(value, other, at) for other in get_args(shape)]
        why = None if None in whys else whys[0]
    elif is_typeddict(shape) and isinstance(value, dict):
        missing = sorted(key for key in shape.__required_keys__ if key not in value)
        why = f"{at or 'it'} has no {missing[0]!r}" if missing else None
        inner = [(value[key], hint, key) for key, hint in _hints(shape).items() if key in value]
    elif dataclasses.is_dataclass(shape) and isinstance(value, dict):
        layout = _layout(cast(Any, shape))
        missing = sorted(f.key for f in layout if f.required and f.key not in value)
        why = f"{at or 'it'} has no {missing[0]!r}" if missing else None
        inner = [(value[f.key], f.hint, f.key) for f in layout if f.key in value]
    elif kind is list and isinstance(value, list):
        [entry_shape] = get_args(shape)
        if not _plain_types(entry_shape).issuperset(map(type, value)):
            inner = [(entry, entry_shape, str(number)) for number, entry in enumerate(value)]
    elif kind is dict and isinstance(value, dict):
        keys, entries = get_args(shape)
        inner = [part for key, one in value.items() for part in ((key, keys, key), (one, entries, key))]
    else:
        plain = {float: (int, float)}.get(kind, dict if _is_object(shape) else kind)
        fits = isinstance(value, plain) and not isinstance(value, bool)
        why = None if fits else f"{at} is {value!r:.60}"
    found = (mismatch(entry, hint, f"{at}.{key}".lstrip(".")) for entry, hint, key in inner)
    return why or next(filter(None, found), None)


def to_json(value: Any) -> Any:
    """Convert a dataclass of this package, with everything in it, to dicts and lists for `json.dumps`.

    A field that has its default value is left out, unless its metadata is ALWAYS.
    """
    if dataclasses.is_dataclass(value):
        found = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        return {_key(f): to_json(inner) for f, inner in found if _is_written(f, inner)}
    if isinstance(value, Mapping):
        return {key: to_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def from_json(shape: type[T], value: Any) -> T:
    """Convert parsed JSON to a dataclass, the reverse of `to_json`. Unknown keys are ignored.

    Raises:
        ValueError: a required key is missing, or a value has the wrong type; the message has the key.
    """
    if why := mismatch(value, shape):
        raise ValueError(why)
    built: T = _build(shape, value)
    return built


def read_fields(shape: type[T], value: Mapping[str, Any]) -> T:
    """Convert a JSON object to a dataclass, leniently: a missing or wrong value becomes the field's default.

    All fields must have defaults. A field with the KEY "" receives the whole object.
    """
    cls: Any = shape
    found: dict[str, Any] = {}
    for one in dataclasses.fields(cls):
        key, hint = _key(one), _hints(cls)[one.name]
        entry: Any = value.get(key) if key else value
        inner = get_args(hint)[0] if get_origin(hint) is list else None
        if dataclasses.is_dataclass(inner):
            entries = entry if isinstance(entry, list) else []
            objects = [part for part in entries if isinstance(part, dict)]
            found[one.name] = [read_fields(cast(type[Any], inner), part) for part in objects]
        elif entry is not None and mismatch(entry, hint) is None:
            found[one.name] = float(entry) if hint in (float, float | None) else entry
    made: T = cls(**found)
    return made


def _build(shape: Any, value: Any) -> Any:
    kind = get_origin(shape) or shape
    if _plain_types(shape) or kind is Annotated:
        return value
    if kind is types.UnionType:
        shape = next(other for other in get_args(shape) if mismatch(value, other) is None)
        return _build(shape, value)
    if dataclasses.is_dataclass(shape):
        return kind(**{f.name: _build(f.hint, value[f.key]) for f in _layout(kind) if f.key in value})
    if kind is list:
        [entry_shape] = get_args(shape)
        return list(value) if _plain_types(entry_shape) else [_build(entry_shape, inner) for inner in value]
    if kind is dict and get_args(shape):
        return {key: _build(get_args(shape)[1], inner) for key, inner in value.items()}
    return value


def _key(found: dataclasses.Field[Any]) -> str:
    return str(found.metadata.get(KEY, found.name))


def _default(found: dataclasses.Field[Any]) -> Any:
    made = found.default_factory
    return found.default if made is dataclasses.MISSING else made()


def is_required(found: dataclasses.Field[Any]) -> bool:
    """Return whether the key of this dataclass field must be present in every file."""
    return _default(found) is dataclasses.MISSING or "required" in found.metadata


def _is_written(found: dataclasses.Field[Any], value: Any) -> bool:
    return "always" in found.metadata or is_required(found) or bool(value != _default(found))


def _is_object(shape: Any) -> bool:
    return is_typeddict(shape) or dataclasses.is_dataclass(shape)
