"""Generate JSON Schemas of the launcher's files from the dataclasses and TypedDicts of launcher/schema."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from launcher import schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def json_schema(shape: Any, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a file.

    Args:
        shape: the dataclass or TypedDict that describes the file's JSON object.
        title: the title of the schema, which is the file's name.
    """
    return {"$schema": DIALECT, "title": title, **_schema(shape)}


def _schema(shape: Any) -> dict[str, Any]:
    kind = get_origin(shape) or shape
    if kind is types.UnionType:
        return {"anyOf": [_schema(each) for each in get_args(shape)]}
    if kind in (list, tuple):
        return {"type": "array", "items": _schema(get_args(shape)[0])}
    if kind is dict:
        values = get_args(shape)[1] if get_args(shape) else Any
        return {"type": "object", "additionalProperties": _schema(values)}
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return _object(kind, hints, sorted(kind.__required_keys__))
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        # The key "" is no key of the file, but the whole object.
        fields = [field for field in dataclasses.fields(kind) if field.metadata.get(schema.KEY) != ""]
        # A field of a lenient reader: an older launcher leaves it out, and null means the same.
        hints = {f.name: hints[f.name] if schema.is_required(f) else hints[f.name] | None for f in fields}
        keys = {field.name: str(field.metadata.get(schema.KEY, field.name)) for field in fields}
        required = [keys[field.name] for field in fields if schema.is_required(field)]
        return _object(kind, {keys[name]: hints[name] for name in keys}, required)
    return {"type": PLAIN[kind]} if kind in PLAIN else {}


def _object(kind: Any, hints: dict[str, Any], required: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    if kind.__doc__:
        found["description"] = " ".join(kind.__doc__.split("\n\n")[0].split())
    return found | {"properties": {name: _schema(hint) for name, hint in hints.items()}, "required": required}
