"""Convert protobuf structs to Python values and back, and compare two such values."""

from __future__ import annotations

import itertools
import json
from typing import Any

from google.protobuf import struct_pb2

Props = dict[str, Any]

# Markers of the engine's wire protocol (sdk/go/common/resource): unknown values and assets.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
ASSET_SIGNATURE = "c44067f5952c0a294b673a41bacd8c17"


def from_struct(struct: struct_pb2.Struct) -> Props:
    """Return the dictionary of a struct, with whole numbers as int."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def _from_value(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return from_struct(value.struct_value)
    if kind == "list_value":
        return [_from_value(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    return getattr(value, kind) if kind in ("string_value", "bool_value") else None


def to_struct(props: Props) -> struct_pb2.Struct:
    """Return the struct of a dictionary."""
    struct = struct_pb2.Struct()
    struct.update(props)
    return struct


def has_unknown(value: Any) -> bool:
    """Return whether any part of `value` is unknown."""
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return value == UNKNOWN


def all_strings(value: Any) -> set[str]:
    """Return all strings inside `value`."""
    if isinstance(value, dict):
        return set().union(*[all_strings(item) for item in value.values()])
    if isinstance(value, list):
        return set().union(*[all_strings(item) for item in value])
    return {value} if isinstance(value, str) else set()


def _same(old: Any, new: Any) -> bool:
    if old == new:
        return True
    if isinstance(old, str) and isinstance(new, str) and old[:1] in "{[" and new[:1] in "{[":
        try:  # policy documents: AWS returns them reformatted
            return json.loads(old) == json.loads(new)
        except ValueError:
            return False
    scalars = (str, int, float)
    if isinstance(old, list) and isinstance(new, list) and all(isinstance(v, scalars) for v in [*old, *new]):
        return sorted(map(str, old)) == sorted(map(str, new))  # AWS treats lists of scalars as sets
    return False


def diff_values(old: Any, new: Any, path: str = "") -> dict[str, str]:
    """Return path → `add`, `delete` or `update` for the deepest values that differ."""
    if _same(old, new):
        return {}
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, str] = {}
        for key in [*old, *(key for key in new if key not in old)]:
            if key.startswith("__"):
                continue
            label = f'["{key}"]' if "." in key or "[" in key else (f".{key}" if path else key)
            found |= diff_values(old.get(key), new.get(key), path + label)
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = {}
        for index, (before, after) in enumerate(itertools.zip_longest(old, new)):
            found |= diff_values(before, after, f"{path}[{index}]")
        return found
    if old is None:
        return {path: "add"}
    return {path: "delete" if new is None else "update"}
