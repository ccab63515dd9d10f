"""Frozen pydantic models of settings, whose mistakes become Problems. Imports no pulumi.

A key is a field's name in camelCase. Types are strict: no text counts as a number. `rule` limits a value.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from infra.problems import Problem, wrong

T = TypeVar("T", bound="Section")


class Section(BaseModel):
    """A mapping of settings; all have defaults, and no other keys are taken."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True
    )


def rule(holds: Callable[[Any], bool] | str, said: str) -> AfterValidator:
    """A limit on one value: a predicate or a pattern, and `limit: reason. Mend` for who breaks it."""
    test = holds if callable(holds) else lambda value: re.fullmatch(holds, value) is not None

    def check(value: Any) -> Any:
        if not test(value):
            raise PydanticCustomError("rule", "{said}", {"said": said})
        return value

    return AfterValidator(check)


def count(low: int, high: int, reason: str) -> AfterValidator:
    """A number between two limits, both included."""
    return rule(lambda n: low <= n <= high, f"{low} to {high}: {reason}. Use a number from {low} to {high}")


def is_network(value: str) -> bool:
    """Whether `value` is an IPv4 network without host bits, such as 10.0.0.0/16."""
    try:
        ipaddress.IPv4Network(value)
    except ValueError:
        return False
    return True


def _wanted(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is dict:
        return "a mapping of keys" if arguments[1] is Any else "a mapping of texts to texts"
    words = {str: "a text", int: "a whole number", bool: "true or false"}
    return "a list of texts" if origin is tuple else words.get(kind, "a mapping of keys")


def _problem(model: type[BaseModel], mapping: Mapping[str, Any], error: ErrorDetails) -> Problem:
    """One mistake, at the field it is in: an item of a list is its list's."""
    keys: list[str] = []
    value: Any = mapping
    kind: Any = model
    for part in map(str, error["loc"]):
        fields = {to_camel(name): field for name, field in kind.model_fields.items()}
        keys.append(part)
        value = value[part]
        if part not in fields:
            near = difflib.get_close_matches(part, fields, n=1)
            mend = f"Did you mean {near[0]}?" if near else "Remove it"
            allowed = ", ".join(sorted(fields))
            return wrong(".".join(keys), value, f"one of {allowed}: an unknown key would be ignored. {mend}")
        kind = fields[part].annotation
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            break
    key = ".".join(keys)
    if error["type"] == "rule":
        return wrong(key, value, error["ctx"]["said"])
    limit = _wanted(kind)
    reason = "nothing else is known" if limit.startswith("one of") else f"this is {type(value).__name__}"
    return wrong(key, value, f"{limit}: {reason}. Write {key} as {limit} in the stack's file")


def read(model: type[T], mapping: Mapping[str, Any]) -> tuple[T, list[Problem]]:
    """The settings in `mapping`, and every mistake; a top-level key with one has its default instead."""
    try:
        return model.model_validate_json(json.dumps(mapping)), []
    except ValidationError as error:
        mistakes = error.errors()
    broken = {mistake["loc"][0] for mistake in mistakes}
    found = {problem.key: problem for problem in (_problem(model, mapping, one) for one in mistakes)}
    sound = {key: value for key, value in mapping.items() if key not in broken}
    return model.model_validate_json(json.dumps(sound)), list(found.values())


def described(model: type[BaseModel]) -> Iterator[tuple[str, str, Any]]:
    """Key, description and default of each setting, as YAML would hold them."""
    defaults = model().model_dump(mode="json", by_alias=True)
    for name, field in model.model_fields.items():
        says = field.description or getattr(field.annotation, "__doc__", None) or ""
        yield to_camel(name), " ".join(says.split()), defaults[to_camel(name)]
