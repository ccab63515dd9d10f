"""Reject inputs that the SDK's args classes do not allow: missing, unknown, or of another type."""

from __future__ import annotations

from typing import Any

from testkit.aws_emulator import sdk_schema
from testkit.aws_emulator.property_values import ASSET_SIGNATURE, SIGNATURE, UNKNOWN

Failure = tuple[str, str]  # path of the property, reason

_CLASSES = {
    **{"str": str, "int": int, "float": (int, float), "bool": bool},
    **{"list": list, "map": dict, "asset": dict, "object": dict},
}


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


def _value(  # noqa: PLR0911 - one return a form of type
    module: str, kind: sdk_schema.Type, value: Any, path: str
) -> list[Failure]:
    form = kind[0]
    if value == UNKNOWN or value is None or form in ("any", "none"):
        return []
    if form == "union":
        return min([_value(module, option, value, path) for option in kind[1:]], key=len)
    nested = sdk_schema.read_fields(module, kind[1]) if form == "object" else {}
    if nested is None:  # an enumeration, or a class of another module
        return []
    fits = isinstance(value, _CLASSES[form]) and (form == "bool" or not isinstance(value, bool))
    if not fits or (form == "asset" and value.get(SIGNATURE) != ASSET_SIGNATURE):
        return [(path, f"wrong type: {path!r} must be {form}, not {type(value).__name__} ({value!r})")]
    if form == "object":
        return _object(module, nested, value, path, kind[1].removesuffix("Args"))
    if form == "list":
        return [
            each for at, item in enumerate(value) for each in _value(module, kind[1], item, f"{path}[{at}]")
        ]
    if form == "map":
        return [
            each for key, item in value.items() for each in _value(module, kind[1], item, f"{path}.{key}")
        ]
    return []
