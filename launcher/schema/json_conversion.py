"""Convert dataclasses to JSON values and back, and check JSON values against types."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")

KEY = "key"
"""Key in the metadata of a dataclass field whose JSON key is not its name; the value is the JSON key."""
ALWAYS = {"always": True}
"""Metadata of a dataclass field that `to_json` writes even when it has its default value."""
REQUIRED = {"required": True}
"""Metadata of a field that must be in every file, although the field has a default for `read_fields`."""

_PLAIN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    type(None): (type(None),),
}
"""Type of a field → classes of the JSON values that fit."""


class _Field(NamedTuple):
    """One field of a dataclass or TypedDict: its JSON key, its name, its type, and whether every file has it."""

    key: str
    name: str
    hint: Any
    required: bool


@functools.cache
def _layout(shape: Any) -> tuple[_Field, ...]:
    """Return a `_Field` for each field of the dataclass or TypedDict `shape`, in their order."""
    hints = get_type_hints(shape, include_extras=True)
    if is_typeddict(shape):
        return tuple(_Field(key, key, hint, key in shape.__required_keys__) for key, hint in hints.items())
    return tuple(_Field(_key(f), f.name, hints[f.name], is_required(f)) for f in dataclasses.fields(shape))


def to_json(value: Any) -> Any:
    """Convert a dataclass of this package, with everything in it, to dicts and lists for `json.dumps`.

    A field that has its default value is left out, unless its metadata contains ALWAYS or REQUIRED.
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
    found: T = _convert(shape, value, "")
    return found


def read_fields(shape: type[T], value: Mapping[str, Any]) -> T:
    """Convert a JSON object to a dataclass, leniently: a missing or wrong value becomes the field's default.

    All fields must have defaults. A field with the KEY "" receives the whole object.
    """
    found: T = _convert(shape, value, "", lenient=True)
    return found


def mismatch(value: object, shape: Any) -> str | None:
    """Return a message with the wrong key if a parsed JSON value does not fit the type `shape`; None if it fits.

    `_convert` lists the types.
    """
    try:
        _convert(shape, value, "")
    except ValueError as error:
        return str(error)
    return None


def _convert(shape: Any, value: Any, at: str, *, lenient: bool = False) -> Any:
    """Convert a parsed JSON value to `shape`.

    Args:
        shape: bool, int, float, str, None, Any, FileName, Count, an enumeration of texts, a union, list[…],
            tuple[…, ...], dict[…, …], or a TypedDict or dataclass of these types.
        value: the parsed JSON value. The value of a TypedDict stays a dict.
        at: the key of `value` in its file, with dots between levels.
        lenient: do not raise for a wrong field of a dataclass, nor for a wrong entry in a list of dataclasses. The
            field gets its default, and the entry is left out.

    Raises:
        ValueError: the value does not fit.
    """
    kind = get_origin(shape) or shape
    if kind is types.UnionType:
        return _convert_union(get_args(shape), value, at, lenient=lenient)
    if kind is Annotated:
        plain, fits = get_args(shape)
        if not fits(_convert(plain, value, at)):
            raise _wrong(value, at)
    elif is_typeddict(kind) or dataclasses.is_dataclass(kind):
        return _convert_object(kind, value, at, lenient=lenient)
    elif kind in (list, tuple) and isinstance(value, list):
        return kind(_convert_entries(get_args(shape)[0], value, at, lenient=lenient))
    elif kind is dict and isinstance(value, dict):
        keys, entries = get_args(shape)
        return {
            _convert(keys, key, _join(at, key)): _convert(entries, entry, _join(at, key))
            for key, entry in value.items()
        }
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    elif shape is not Any and type(value) not in _PLAIN.get(kind, ()):
        raise _wrong(value, at)
    return float(value) if kind is float else value


def _convert_union(shapes: tuple[Any, ...], value: Any, at: str, *, lenient: bool) -> Any:
    first: ValueError | None = None
    for shape in shapes:
        try:
            return _convert(shape, value, at, lenient=lenient)
        except ValueError as error:
            first = first or error
    raise first or _wrong(value, at)


def _convert_object(kind: Any, value: Any, at: str, *, lenient: bool) -> Any:
    """Convert a JSON object to the dataclass or TypedDict `kind`."""
    if not isinstance(value, dict):
        raise _wrong(value, at)
    found: dict[str, Any] = {}
    for key, name, hint, required in _layout(kind):
        if key == "":
            found[name] = value if lenient else {}
        elif key in value:
            try:
                found[name] = _convert(hint, value[key], _join(at, key), lenient=lenient)
            except ValueError:
                if not lenient:
                    raise
        elif required and not lenient:
            raise ValueError(f"{at or 'it'} has no {key!r}")
    try:
        return value if is_typeddict(kind) else kind(**found)
    except TypeError as error:  # lenient: a field without a default is missing or wrong
        raise _wrong(value, at) from error


def _convert_entries(shape: Any, entries: list[Any], at: str, *, lenient: bool) -> list[Any]:
    """Convert the entries of a list.

    A list of numbers or texts is returned as it is, because a call for each number of a checkpoint's rows is slow.
    """
    if {type(entry) for entry in entries} <= set(_PLAIN.get(shape, ())):
        return entries
    found = []
    for number, entry in enumerate(entries):
        try:
            found.append(_convert(shape, entry, _join(at, str(number)), lenient=lenient))
        except ValueError:
            if not (lenient and dataclasses.is_dataclass(shape)):
                raise
    return found


def _wrong(value: object, at: str) -> ValueError:
    return ValueError(f"{at} is {value!r:.60}")


def _join(at: str, key: str) -> str:
    return f"{at}.{key}".lstrip(".")


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
