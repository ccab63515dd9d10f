"""Reject inputs that the SDK's args classes do not allow: missing, unknown, or of another type."""

from __future__ import annotations

from typing import Any

from testkit.aws_emulator import sdk_schema
from testkit.aws_emulator.property_values import ASSET_SIGNATURE, SIGNATURE, UNKNOWN

Failure = tuple[str, str]  # path of the property, reason

_SCALARS = {"str": str, "int": int, "float": (int, float), "bool": bool}


def find_failures(shape: sdk_schema.Shape, inputs: dict[str, Any]) -> list[Failure]:
    """Return all problems of `inputs`; an unknown value (in previews) has every type."""
    return _object(shape.module, shape.inputs, inputs, "", shape.token)


def _object(
    module: str, fields: dict[str, sdk_schema.Field], value: dict[str, Any], path: str, owner: str
) -> list[Failure]:
    found: list[Failure] = []
    for name, field in fields.items():
        here = f"{path}.{name}" if path else name
        if value.get(name) is None:
            if field.required:
                found.append((here, f"missing required property: {owner} needs {here!r}; give it a value"))
        else:
            found += _value(module, field.type, value[name], here)
    for name in value:
        if name not in fields and not name.startswith("__"):
            here = f"{path}.{name}" if path else name
            found.append((here, f"unknown property {here!r}: {owner} takes {', '.join(sorted(fields))}"))
    return found


def _value(  # noqa: PLR0911, PLR0912 - one branch a form of type
    module: str, kind: sdk_schema.Type, value: Any, path: str
) -> list[Failure]:
    if value == UNKNOWN or value is None or kind[0] == "any":
        return []
    found: list[Failure] = []
    if kind[0] == "union":
        tries = [_value(module, option, value, path) for option in kind[1:]]
        return min(tries, key=len)
    if kind[0] in _SCALARS:
        fits = isinstance(value, _SCALARS[kind[0]]) and (kind[0] == "bool" or not isinstance(value, bool))
        return [] if fits else [_wrong(path, kind[0], value)]
    if kind[0] == "list":
        if not isinstance(value, list):
            return [_wrong(path, "list", value)]
        for index, item in enumerate(value):
            found += _value(module, kind[1], item, f"{path}[{index}]")
    elif kind[0] == "map":
        if not isinstance(value, dict):
            return [_wrong(path, "map", value)]
        for key, item in value.items():
            found += _value(module, kind[1], item, f"{path}.{key}")
    elif kind[0] == "asset":
        fits = isinstance(value, dict) and value.get(SIGNATURE) == ASSET_SIGNATURE
        return [] if fits else [_wrong(path, "asset", value)]
    elif kind[0] == "object":
        nested = sdk_schema.read_fields(module, kind[1])
        if nested is None:  # an enumeration, or a class of another module
            return []
        if not isinstance(value, dict):
            return [_wrong(path, "object", value)]
        found += _object(module, nested, value, path, kind[1].removesuffix("Args"))
    return found


def _wrong(path: str, expected: str, value: Any) -> Failure:
    return path, f"wrong type: {path!r} must be {expected}, not {type(value).__name__} ({value!r})"
